package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// What follows is what the intruder does to the victim, from its own namespace or by
// naming the victim's objects.

// neighbourKinds are what the victim has in its namespace, and what a user could do harm
// with there.
func neighbourKinds() []schema.GroupVersionKind {
	core := corev1.SchemeGroupVersion.WithKind
	return []schema.GroupVersionKind{
		core("Secret"), core("Pod"), core("Service"), core("ConfigMap"), core("ServiceAccount"), core("Event"),
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
		clusterv1.GroupVersion.WithKind("Cluster"), clusterv1.GroupVersion.WithKind("Machine"),
		clusterv1.GroupVersion.WithKind("MachineSet"), clusterv1.GroupVersion.WithKind("MachineDeployment"), clusterv1.GroupVersion.WithKind("MachineHealthCheck"),
		bootstrapv1.GroupVersion.WithKind("TalosConfig"), bootstrapv1.GroupVersion.WithKind("TalosConfigTemplate"),
		controlplanev1.GroupVersion.WithKind("TalosControlPlane"),
		infrav1.GroupVersion.WithKind("TalosCluster"), infrav1.GroupVersion.WithKind("TalosMachine"),
		infrav1.GroupVersion.WithKind("TalosMachineTemplate"), infrav1.GroupVersion.WithKind("TalosHost"),
	}
}

// attackNeighbour is what the intruder tries by naming what the victim has.
func (n *neighbours) attackNeighbour() map[string]attempt {
	return attackNamed(n.t.Context(), n.intruder, victimNamespace, n.used.Name, neighbourKinds())
}

// attackNamed are all verbs on objects of another namespace.
func attackNamed(ctx context.Context, intruder client.Client, namespace, name string, kinds []schema.GroupVersionKind) map[string]attempt {
	attempts := map[string]attempt{}
	everything := func(verb string, do func(*unstructured.Unstructured) error) {
		attempts["everything of the other namespace: "+verb] = attempt{func() error {
			for _, kind := range kinds {
				object := &unstructured.Unstructured{}
				object.SetGroupVersionKind(kind)
				object.SetNamespace(namespace)
				object.SetName(name)
				if err := do(object); !apierrors.IsForbidden(err) {
					return fmt.Errorf("%s of %s: %w", verb, kind.Kind, err)
				}
			}
			return apierrors.NewForbidden(schema.GroupResource{}, verb, nil)
		}, apierrors.IsForbidden, nil}
	}
	listOf := func(object *unstructured.Unstructured) *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(object.GroupVersionKind())
		return list
	}
	everything("get", func(o *unstructured.Unstructured) error { return intruder.Get(ctx, client.ObjectKeyFromObject(o), o) })
	everything("list", func(o *unstructured.Unstructured) error {
		return intruder.List(ctx, listOf(o), client.InNamespace(namespace))
	})
	everything("list in all namespaces", func(o *unstructured.Unstructured) error { return intruder.List(ctx, listOf(o)) })
	everything("create", func(o *unstructured.Unstructured) error { return intruder.Create(ctx, o) })
	everything("update", func(o *unstructured.Unstructured) error { return intruder.Update(ctx, o) })
	everything("patch", func(o *unstructured.Unstructured) error {
		return intruder.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte("{}")))
	})
	everything("patch of the status", func(o *unstructured.Unstructured) error {
		return intruder.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte("{}")))
	})
	everything("delete", func(o *unstructured.Unstructured) error { return intruder.Delete(ctx, o) })
	everything("delete all", func(o *unstructured.Unstructured) error {
		return intruder.DeleteAllOf(ctx, o, client.InNamespace(namespace))
	})
	return attempts
}

// forgeBeside is what the intruder tries in its own namespace, and is refused.
func (n *neighbours) forgeBeside() map[string]attempt {
	ctx := n.t.Context()
	attempts := map[string]attempt{
		"a talosconfig of its own, to adopt with": {func() error {
			return n.intruder.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: intruderNamespace, Name: "adopt"}})
		}, apierrors.IsForbidden, nil},
		"a Service at an address of the other's": {func() error {
			return n.intruder.Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: intruderNamespace, Name: "etcd"},
				Spec:       corev1.ServiceSpec{ExternalIPs: n.used.Spec.Addresses, Ports: []corev1.ServicePort{{Port: 2380}}},
			})
		}, apierrors.IsForbidden, nil},
		"a TalosConfig of the other's name": {func() error {
			return n.intruder.Create(ctx, &bootstrapv1.TalosConfig{
				ObjectMeta: metav1.ObjectMeta{Namespace: intruderNamespace, Name: n.used.Spec.ConsumerRef.Name},
				Spec:       bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeControlPlane, TalosVersion: "v1.13"},
			})
		}, apierrors.IsForbidden, nil},
		"a TalosMachine of the other's name and provider ID": {func() error {
			return n.intruder.Create(ctx, &infrav1.TalosMachine{
				ObjectMeta: metav1.ObjectMeta{Namespace: intruderNamespace, Name: n.used.Spec.ConsumerRef.Name},
				Spec:       infrav1.TalosMachineSpec{ProviderID: n.used.Spec.ConsumerRef.ProviderID, Metal: &infrav1.TalosMachineMetalSpec{}},
			})
		}, apierrors.IsForbidden, nil},
		"the address of its host in use is changed to the other's": {func() error {
			return n.patch(n.intruder, n.theirCP, func(h *infrav1.TalosHost) { h.Spec.Addresses = n.used.Spec.Addresses })
		}, apierrors.IsInvalid, []string{"spec.addresses"}},
		"the identity of its host in use is changed to the other's": {func() error {
			return n.patch(n.intruder, n.theirCP, func(h *infrav1.TalosHost) { h.Spec.Identity = n.used.Spec.Identity })
		}, apierrors.IsInvalid, []string{"spec.identity"}},
		"the provider ID of its host in use is changed to the other's": {func() error {
			return n.patch(n.intruder, n.theirCP, func(h *infrav1.TalosHost) { h.Spec.ProviderID = victimID(len(n.hosts)) })
		}, apierrors.IsInvalid, []string{"providerID is immutable"}},
	}
	for field, record := range n.records(intruderNamespace) {
		attempts["a record of the manager in a host for the other's machine: "+field] = attempt{func() error {
			return n.intruder.Create(ctx, twin(n.used, intruderNamespace, "forged", record))
		}, apierrors.IsForbidden, []string{field, `verb "move"`}}
	}
	return attempts
}

// row says which row of docs/tenants.md comes next.
func (n *neighbours) row(name string) {
	n.t.Helper()
	n.t.Log(name)
}

// expectTold waits for what a host says.
func (n *neighbours) expectTold(namespace, name, kind, reason string) metav1.Condition {
	n.t.Helper()
	var found metav1.Condition
	NewWithT(n.t).Eventually(func(g Gomega) {
		host := &infrav1.TalosHost{}
		g.Expect(world.Client.Get(n.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, host)).To(Succeed())
		found = told(host, kind)
		g.Expect(found.Reason).To(Equal(reason), "%s: %s", name, found.Message)
	}).WithTimeout(timeout).Should(Succeed())
	return found
}

// expectDuplicate: a host is told that the machine is another's, and not whose.
func (n *neighbours) expectDuplicate(name string) {
	n.t.Helper()
	found := n.expectTold(intruderNamespace, name, infrav1.IdentityVerifiedCondition, infrav1.IdentityDuplicateReason)
	NewWithT(n.t).Expect(found.Message).To(HavePrefix("A TalosHost of another namespace stands for the same machine"), name)
}

// attackWithoutEffect is what nobody refuses. Each row says what the intruder is told,
// and leaves the victim what it had. Hosts of the intruder's do not stay beside each
// other, or they would be told of each other.
func (n *neighbours) attackWithoutEffect(before tenantState) {
	g, ctx := NewWithT(n.t), n.t.Context()
	subnet, err := talossim.ClaimSubnet(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	silent := subnet.Address(1)
	asked, listening := n.listen(subnet.Address(2))
	defer listening.Close()
	var created []*infrav1.TalosHost
	create := func(host *infrav1.TalosHost) string {
		g.Expect(n.intruder.Create(ctx, host)).To(Succeed(), host.Name)
		created = append(created, host)
		return host.Name
	}
	at := func(addresses ...string) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.Addresses = addresses }
	}
	isSilent := func(name string) {
		found := n.expectTold(intruderNamespace, name, infrav1.ReachableCondition, infrav1.NoAddressAnswersReason)
		g.Expect(found.Message).To(Equal("No address of the host answers"), name)
	}
	rows := map[string]func(){
		"a host at the address of a machine in use": func() { n.expectDuplicate(create(twin(n.used, intruderNamespace, "at-used"))) },
		"a host at the address of a free machine":   func() { n.expectDuplicate(create(twin(n.free, intruderNamespace, "at-free"))) },
		"the address of a machine in use, written in another way": func() {
			n.expectDuplicate(create(twin(n.used, intruderNamespace, "mapped", at("::ffff:"+n.used.Spec.Addresses[0]))))
		},
		"an older host is pointed at a free machine": func() {
			g.Expect(n.patch(n.intruder, n.older, func(h *infrav1.TalosHost) {
				h.Spec.Addresses, h.Spec.Identity = n.free.Spec.Addresses, infrav1.HostIdentity{}
				metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
			})).To(Succeed())
			n.expectDuplicate(n.older.Name)
		},
		"a host names the UUID of the other's machines": func() {
			for i, of := range []*infrav1.TalosHost{n.used, n.free} {
				n.expectDuplicate(create(twin(of, intruderNamespace, fmt.Sprint("uuid-", i), at(subnet.Address(3+i)), func(h *infrav1.TalosHost) {
					h.Spec.Identity = of.Spec.Identity
				})))
			}
		},
		"a host names that UUID with another hardware address": func() {
			isSilent(create(twin(n.free, intruderNamespace, "uuid-twice", at(silent), func(h *infrav1.TalosHost) {
				h.Spec.Identity = infrav1.HostIdentity{UUID: n.free.Spec.Identity.UUID, MACAddresses: []string{"52:54:00:00:00:99"}}
			})))
		},
		"an adoption with the talosconfig of its own cluster, which has the name of the other's": func() {
			n.expectDuplicate(create(twin(n.used, intruderNamespace, "adopting", func(h *infrav1.TalosHost) {
				h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, tenantCluster+"-talosconfig"
			})))
		},
		"annotations and labels of a move": func() {
			// It stays: nobody takes its finalizer, as in a move.
			g.Expect(n.intruder.Create(ctx, twin(n.used, intruderNamespace, "moving", at(subnet.Address(5)), func(h *infrav1.TalosHost) {
				h.Annotations = map[string]string{infrav1.BlockMoveAnnotation: "", infrav1.DeleteForMoveAnnotation: ""}
				h.Labels = map[string]string{infrav1.MoveLabel: "", clusterv1.ClusterNameLabel: tenantCluster}
			}))).To(Succeed())
			n.expectTold(intruderNamespace, "moving", infrav1.AvailableCondition, infrav1.DeletedForMoveReason)
		},
		"owner references to the other's objects": func() {
			owners := n.owners()
			owned := create(twin(n.used, intruderNamespace, "owned", at(silent), func(h *infrav1.TalosHost) { h.OwnerReferences = owners }))
			g.Eventually(func() error {
				return world.Client.Get(ctx, client.ObjectKey{Namespace: intruderNamespace, Name: owned}, &infrav1.TalosHost{})
			}).WithTimeout(timeout).Should(Satisfy(apierrors.IsNotFound), "Kubernetes finds no such owners in its namespace, and deletes it")
			g.Expect(n.patch(n.intruder, n.older, func(h *infrav1.TalosHost) { h.OwnerReferences = owners })).To(Succeed())
		},
		"addresses that lead to the management cluster, or to metadata of a cloud": func() {
			for i, address := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc", "169.254.169.254", "::1", subnet.Address(2)} {
				isSilent(create(twin(n.used, intruderNamespace, fmt.Sprint("forgery-", i), at(address))))
			}
			g.Expect(asked()).To(BeEmpty(), "no request of the manager's")
		},
		"a cluster at the other's endpoint": n.hijack,
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		n.row(name)
		rows[name]()
		g.Expect(n.state()).To(BeComparableTo(before, cmp.AllowUnexported(tenantState{})), name)
		for _, host := range created {
			n.deleteHost(n.intruder, host)
		}
		created = nil
	}
	// That stays until the host is given back. It would not be wiped with the address of a
	// machine in use.
	n.row("a host in use names the other's addresses too")
	third := n.host(g, intruderNamespace, n.theirHosts[2].Name)
	g.Expect(third.Spec.Handover.ProviderID).NotTo(BeEmpty())
	g.Expect(n.patch(n.intruder, third, func(h *infrav1.TalosHost) {
		h.Spec.Addresses = append(h.Spec.Addresses, n.free.Spec.Addresses...)
	})).To(Succeed())
}

// deleteHost takes a free host away, which is its keeper's.
func (n *neighbours) deleteHost(as client.Client, host *infrav1.TalosHost) {
	n.t.Helper()
	g, ctx := NewWithT(n.t), n.t.Context()
	g.Expect(client.IgnoreNotFound(as.Delete(ctx, host))).To(Succeed())
	g.Eventually(func() error { return as.Get(ctx, client.ObjectKeyFromObject(host), host) }).WithTimeout(timeout).Should(Satisfy(apierrors.IsNotFound))
}

// listen serves what is no Talos, and tells what it was asked for.
func (n *neighbours) listen(address string) (asked func() []string, server *httptest.Server) {
	var (
		mu       sync.Mutex
		requests []string
	)
	listener, err := (&net.ListenConfig{}).Listen(n.t.Context(), "tcp", net.JoinHostPort(address, "50000"))
	NewWithT(n.t).Expect(err).NotTo(HaveOccurred())
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.Path)
		_, _ = io.WriteString(w, "what only the management cluster may know")
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Config.ErrorLog = nil
	server.Start()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return requests
	}, server
}

// owners are references to what the victim has.
func (n *neighbours) owners() []metav1.OwnerReference {
	g, ctx := NewWithT(n.t), n.t.Context()
	cluster := &clusterv1.Cluster{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: victimNamespace, Name: tenantCluster}, cluster)).To(Succeed())
	return []metav1.OwnerReference{
		{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID, Controller: new(true)},
		{APIVersion: infrav1.GroupVersion.String(), Kind: infrav1.TalosHostKind, Name: n.used.Name, UID: n.used.UID},
	}
}

// hijack is a second cluster of the intruder's, whose endpoint is the victim's API
// server: etcd is not bootstrapped beside it.
func (n *neighbours) hijack() {
	g, ctx := NewWithT(n.t), n.t.Context()
	endpoint, err := n.machines.Endpoint(ctx, tenantCluster)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.intruder.Create(ctx, manifestOf(n.theirHosts[2], intruderNamespace, 2))).To(Succeed())
	n.createCluster(n.intruder, n.theirs, management.Shape{Namespace: intruderNamespace, Name: "hijack", ControlPlanes: 1},
		setField("TalosCluster", endpoint.Host, "spec", "controlPlaneEndpoint", "host"))
	g.Eventually(func(g Gomega) {
		controlPlane := &controlplanev1.TalosControlPlane{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: intruderNamespace, Name: "hijack-control-plane"}, controlPlane)).To(Succeed())
		g.Expect(controlPlane.GetConditions()).To(ContainElement(HaveField("Reason", controlplanev1.EndpointInUseReason)))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(n.theirs.Bootstraps()).To(Equal(1))
}

// machineState is what was done to a machine: by calls that change it, and by others.
type machineState struct {
	Name, Stage, Configuration string
	Boots                      int
	Changes                    map[string]int
}

// tenantState is what the victim has.
type tenantState struct {
	// objects are the versions of its objects, with events.
	objects map[string]string
	// machines are those of its fleet.
	machines []machineState
}

// reading are the calls of the Talos API that change nothing.
var reading = regexp.MustCompile(`^/(cosi\.|machine\.MachineService/(Version|EtcdMemberList|EtcdStatus|EtcdAlarmList|List|ServiceList|Read)$|version\.)`)

func (n *neighbours) state() tenantState {
	g, ctx := NewWithT(n.t), context.WithoutCancel(n.t.Context())
	found := tenantState{objects: map[string]string{}}
	for _, kind := range neighbourKinds() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		g.Expect(world.Client.List(ctx, list, client.InNamespace(victimNamespace))).To(Succeed())
		for _, item := range list.Items {
			found.objects[kind.Kind+"/"+item.GetName()] = versionOf(g, item)
		}
	}
	for _, host := range n.hosts {
		machine := n.machines.Machine(host)
		state := machineState{
			Name: host.Name, Stage: machine.Stage(), Configuration: string(machine.Configuration()), Boots: machine.Boots(), Changes: map[string]int{},
		}
		for method, count := range machine.Calls() {
			if !reading.MatchString(method) {
				state.Changes[method] = count
			}
		}
		found.machines = append(found.machines, state)
	}
	return found
}

// versionOf changes with an object. Cluster API looks at Machines from time to time, and
// writes what it has seen: of its objects that counts which somebody asks for.
func versionOf(g Gomega, object unstructured.Unstructured) string {
	if object.GroupVersionKind().Group != clusterv1.GroupVersion.Group {
		return object.GetResourceVersion()
	}
	object.SetResourceVersion("")
	object.SetManagedFields(nil)
	delete(object.Object, "status")
	text, err := json.Marshal(object.Object)
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// settled is the state once nothing changes it any more: a manager that has much to do may
// come to what has changed seconds later.
func (n *neighbours) settled() tenantState {
	n.t.Helper()
	const interval, enough = 5 * time.Second, 5
	last, same := n.state(), 0
	NewWithT(n.t).Eventually(func() int {
		now := n.state()
		if same++; !reflect.DeepEqual(now, last) {
			same = 0
		}
		last = now
		return same
	}).WithTimeout(timeout).WithPolling(interval).Should(BeNumerically(">=", enough), "the victim's namespace comes to rest")
	return last
}

// expectNothingSecret: nothing that the intruder may read holds a word of any Secret, or
// the victim's name.
func (n *neighbours) expectNothingSecret() {
	n.row("Secrets, shown in conditions, events or names of what the attacker may read")
	g, ctx := NewWithT(n.t), n.t.Context()
	words := map[string]string{}
	for _, namespace := range []string{victimNamespace, intruderNamespace} {
		secrets := &corev1.SecretList{}
		g.Expect(world.Client.List(ctx, secrets, client.InNamespace(namespace))).To(Succeed())
		g.Expect(secrets.Items).NotTo(BeEmpty())
		for _, secret := range secrets.Items {
			for key, value := range secret.Data {
				for _, word := range regexp.MustCompile(`[A-Za-z0-9+/]{24,}`).FindAllString(string(value), -1) {
					words[word] = namespace + "/" + secret.Name + " " + key
				}
			}
		}
	}
	var readable strings.Builder
	events := &eventsv1.EventList{}
	g.Expect(world.Client.List(ctx, events, client.InNamespace(intruderNamespace))).To(Succeed())
	g.Expect(json.NewEncoder(&readable).Encode(events.Items)).To(Succeed())
	for _, kind := range neighbourKinds() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := n.intruder.List(ctx, list, client.InNamespace(intruderNamespace)); apierrors.IsForbidden(err) {
			continue
		} else if g.Expect(err).NotTo(HaveOccurred()); true {
			for _, item := range list.Items {
				item.SetOwnerReferences(nil)
				item.SetManagedFields(nil)
				g.Expect(json.NewEncoder(&readable).Encode(item.Object)).To(Succeed())
			}
		}
	}
	text := readable.String()
	g.Expect(text).To(ContainSubstring("another namespace"))
	g.Expect(text).NotTo(ContainSubstring(`"` + victimNamespace))
	for word, of := range words {
		if strings.Contains(text, word) {
			g.Expect(of).To(BeEmpty(), "it is shown")
		}
	}
}
