package integration

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// rolesOn are the ClusterRoles that a page of docs has for users.
func rolesOn(t *testing.T, name string) []rbacv1.ClusterRole {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(world.Source, "docs", name))
	g.Expect(err).NotTo(HaveOccurred())
	var roles []rbacv1.ClusterRole
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(block[1], "kind: ClusterRole\n") {
			continue
		}
		role := rbacv1.ClusterRole{}
		g.Expect(yaml.UnmarshalStrict([]byte(block[1]), &role)).To(Succeed())
		roles = append(roles, role)
	}
	g.Expect(roles).To(HaveLen(2))
	return roles
}

// tenant is a client of a user that has both roles of a page in a namespace, and so may list
// some objects there.
func tenant(t *testing.T, namespace, page string, may client.ObjectList) client.Client {
	t.Helper()
	g, ctx, user := NewWithT(t), t.Context(), "tenant-of-"+namespace
	for _, role := range rolesOn(t, page) {
		g.Expect(client.IgnoreAlreadyExists(world.Client.Create(ctx, &role))).To(Succeed())
		g.Expect(world.Client.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		})).To(Succeed())
	}
	config := rest.CopyConfig(world.Stack.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	found, err := client.New(config, client.Options{Scheme: world.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		return found.List(ctx, may, client.InNamespace(namespace))
	}).WithTimeout(timeout).Should(Succeed(), "the rights are there")
	return found
}

// The two tenants, and the cluster that each of them has: their objects have the same
// names, down to the provider IDs of their machines.
const (
	victimNamespace, intruderNamespace = "victim", "intruder"
	tenantCluster                      = "prod"
)

// neighbours are two tenants beside each other. The victim has a control plane machine,
// a worker and a free machine, the intruder a control plane machine and two free ones.
type neighbours struct {
	t *testing.T
	// victim and intruder are their clients.
	victim, intruder client.Client
	// machines are the victim's, theirs the intruder's.
	machines, theirs           *simfleet.Fleet
	hosts, theirHosts          []fleet.Host
	used, free, older, theirCP *infrav1.TalosHost
}

// newNeighbours raises both clusters with nothing but the rights of their tenants. Of
// all hosts one of the intruder's is the oldest.
func newNeighbours(t *testing.T) *neighbours {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	n := &neighbours{t: t, theirs: newFleet(t, simfleet.Options{Personality: talossim.Metal})}
	n.machines = newFleet(t, simfleet.Options{Personality: talossim.Metal})
	for _, namespace := range []string{victimNamespace, intruderNamespace} {
		createNamespace(t, namespace)
		forgetHosts(t, namespace)
	}
	n.victim, n.intruder = tenant(t, victimNamespace, "install.md", &infrav1.TalosHostList{}), tenant(t, intruderNamespace, "install.md", &infrav1.TalosHostList{})
	var err error
	n.theirHosts, err = n.theirs.Add(ctx, 3)
	g.Expect(err).NotTo(HaveOccurred())
	n.hosts, err = n.machines.Add(ctx, 3)
	g.Expect(err).NotTo(HaveOccurred())

	older := n.theirHosts[0].Manifest(intruderNamespace, nil)
	older.Name, older.Spec.Unschedulable = "older", new(true)
	g.Expect(n.intruder.Create(ctx, older)).To(Succeed())
	second := older.CreationTimestamp.Add(time.Second)
	g.Eventually(time.Now).Should(BeTemporally(">", second), "creation times are in seconds")
	for i, host := range n.hosts {
		g.Expect(n.victim.Create(ctx, manifestOf(host, victimNamespace, i))).To(Succeed())
	}
	g.Expect(n.intruder.Create(ctx, manifestOf(n.theirHosts[1], intruderNamespace, 0))).To(Succeed())
	n.createCluster(n.victim, n.machines, management.Shape{Namespace: victimNamespace, Name: tenantCluster, ControlPlanes: 1, Workers: 1})
	n.createCluster(n.intruder, n.theirs, management.Shape{Namespace: intruderNamespace, Name: tenantCluster, ControlPlanes: 1})
	awaitMachines(t, victimNamespace, tenantCluster)
	awaitMachines(t, intruderNamespace, tenantCluster)

	for _, host := range n.hosts {
		found := n.host(g, victimNamespace, host.Name)
		switch {
		case found.Spec.ConsumerRef.Name == "":
			n.free = found
		case n.used == nil || strings.Contains(found.Spec.ConsumerRef.Name, "control-plane"):
			n.used = found
		}
	}
	g.Expect(n.free).NotTo(BeNil())
	g.Expect(n.used.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
	n.older, n.theirCP = n.host(g, intruderNamespace, "older"), n.host(g, intruderNamespace, n.theirHosts[1].Name)
	g.Expect([]string{victimID(0), victimID(1), victimID(2)}).To(ContainElement(n.theirCP.Spec.ConsumerRef.ProviderID), "both have it")
	return n
}

func victimID(number int) string {
	return infrav1.ProviderIDPrefix + "tenant-" + strconv.Itoa(number)
}

// manifestOf is a host that knows its machine by the UUID alone, and names the provider
// ID.
func manifestOf(host fleet.Host, namespace string, number int) *infrav1.TalosHost {
	manifest := host.Manifest(namespace, nil)
	manifest.Spec.Identity.MACAddresses = nil
	manifest.Spec.ProviderID = victimID(number)
	return manifest
}

func (n *neighbours) createCluster(as client.Client, machines fleet.Fleet, shape management.Shape, changes ...func(*unstructured.Unstructured)) {
	n.t.Helper()
	g := NewWithT(n.t)
	manifest, err := world.Stack.Generate(n.t.Context(), machines, shape)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects(g, manifest) {
		for _, change := range changes {
			change(object)
		}
		g.Expect(as.Create(n.t.Context(), object)).To(Succeed(), object.GetKind())
	}
}

func (n *neighbours) host(g Gomega, namespace, name string) *infrav1.TalosHost {
	n.t.Helper()
	found := &infrav1.TalosHost{}
	g.Expect(world.Client.Get(n.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, found)).To(Succeed())
	return found
}

// awaitMachines waits until a cluster and all Machines of its namespace are available.
func awaitMachines(t *testing.T, namespace, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, cluster)).To(Succeed())
		g.Expect(told(cluster, clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue))
		machines := &clusterv1.MachineList{}
		g.Expect(world.Client.List(t.Context(), machines, client.InNamespace(namespace))).To(Succeed())
		for i := range machines.Items {
			g.Expect(told(&machines.Items[i], clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue), machines.Items[i].Name)
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// twin is another host for the machine of a host.
func twin(of *infrav1.TalosHost, namespace, name string, changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	host := &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	host.Spec.Addresses, host.Spec.Install = of.Spec.Addresses, of.Spec.Install
	for _, change := range changes {
		change(host)
	}
	return host
}

// attempt is what somebody tries who is refused.
type attempt struct {
	try func() error
	// as is how the refusal is recognized, and words are in it.
	as    func(error) bool
	words []string
}

func expectRefused(t *testing.T, attempts map[string]attempt) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(attempts)) {
		g, err := NewWithT(t), attempts[name].try()
		g.Expect(attempts[name].as(err)).To(BeTrue(), "%s: %v", name, err)
		for _, word := range attempts[name].words {
			g.Expect(err).To(MatchError(ContainSubstring(word)), name)
		}
	}
}

// records are what belongs to the manager in a host, by field: those of a machine in
// use, for a consumer of the namespace.
func (n *neighbours) records(namespace string) map[string]func(*infrav1.TalosHost) {
	spec, now := n.used.Spec, metav1.Now()
	spec.ConsumerRef.Namespace = namespace
	return map[string]func(*infrav1.TalosHost){
		"spec.consumerRef": func(h *infrav1.TalosHost) { h.Spec.ConsumerRef = spec.ConsumerRef },
		"spec.handover":    func(h *infrav1.TalosHost) { h.Spec.Handover = spec.Handover },
		"spec.release": func(h *infrav1.TalosHost) {
			h.Spec.AdoptionSecretRef.Name = tenantCluster + "-talosconfig"
			h.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeAll, RequestedAt: now}
		},
		"spec.quarantine": func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = now },
		"spec.reprovision": func(h *infrav1.TalosHost) {
			h.Spec.Reprovision = infrav1.HostReprovision{ClusterName: tenantCluster, Previous: spec.Handover}
		},
		"spec.wiped": func(h *infrav1.TalosHost) {
			h.Spec.Wiped = []infrav1.HostWipe{{ProviderID: spec.ConsumerRef.ProviderID, ProvenAt: now}}
		},
	}
}

// patch changes a host of somebody.
func (n *neighbours) patch(as client.Client, host *infrav1.TalosHost, change func(*infrav1.TalosHost)) error {
	changed := host.DeepCopy()
	change(changed)
	return as.Patch(n.t.Context(), changed, client.MergeFrom(host))
}

// attackAtHome is what a tenant tries in the namespace of its own cluster: to get at
// keys of machines that run, or to have them wiped.
func (n *neighbours) attackAtHome() map[string]attempt {
	ctx := n.t.Context()
	attempts := map[string]attempt{
		"the address of a machine in use is changed": {func() error {
			return n.patch(n.victim, n.used, func(h *infrav1.TalosHost) { h.Spec.Addresses = n.free.Spec.Addresses })
		}, apierrors.IsInvalid, []string{"spec.addresses"}},
		"the identity of a machine in use is changed": {func() error {
			return n.patch(n.victim, n.used, func(h *infrav1.TalosHost) { h.Spec.Identity = n.free.Spec.Identity })
		}, apierrors.IsInvalid, []string{"spec.identity"}},
		"the finalizer of a host in use is taken away": {func() error {
			return n.patch(n.victim, n.used, func(h *infrav1.TalosHost) { h.Finalizers = nil })
		}, apierrors.IsForbidden, []string{infrav1.TalosHostFinalizer, `verb "move"`}},
		"a host in use is deleted": {func() error { return n.victim.Delete(ctx, n.used.DeepCopy()) }, apierrors.IsForbidden, []string{"delete its Machine first"}},
		"a host in use is deleted as if it was moved": {func() error {
			moved := func(h *infrav1.TalosHost) {
				metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.DeleteForMoveAnnotation, "")
			}
			if err := n.patch(n.victim, n.used, moved); err != nil {
				return err
			}
			err := n.victim.Delete(ctx, n.used.DeepCopy())
			marked := n.used.DeepCopy()
			moved(marked)
			NewWithT(n.t).Expect(world.Client.Patch(ctx, n.used.DeepCopy(), client.MergeFrom(marked))).To(Succeed(), "the annotation goes again")
			return err
		}, apierrors.IsForbidden, []string{"while the Cluster is paused"}},
		"Secrets are read": {func() error {
			return n.victim.List(ctx, &corev1.SecretList{}, client.InNamespace(victimNamespace))
		}, apierrors.IsForbidden, nil},
		"a TalosMachine is made by hand": {func() error {
			return n.victim.Create(ctx, &infrav1.TalosMachine{
				ObjectMeta: metav1.ObjectMeta{Namespace: victimNamespace, Name: "mine"}, Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}},
			})
		}, apierrors.IsForbidden, nil},
		"the namespace is labelled for privileged Pods": {func() error {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: victimNamespace}}
			labelled := namespace.DeepCopy()
			labelled.Labels = map[string]string{infrav1.PodSecurityLabel: infrav1.PodSecurityPrivileged}
			return n.victim.Patch(ctx, labelled, client.MergeFrom(namespace))
		}, apierrors.IsForbidden, nil},
		"the status of a host is written": {func() error {
			changed := n.free.DeepCopy()
			changed.Status.State = infrav1.HostProvisioned
			return n.victim.Status().Patch(ctx, changed, client.MergeFrom(n.free))
		}, apierrors.IsForbidden, nil},
	}
	for field, record := range n.records(victimNamespace) {
		attempts["a record of the manager in a new host: "+field] = attempt{func() error {
			return n.victim.Create(ctx, twin(n.used, victimNamespace, "forged", record))
		}, apierrors.IsForbidden, []string{field, `verb "move"`}}
		attempts["a record of the manager is changed: "+field] = attempt{func() error {
			return n.patch(n.victim, n.used, func(h *infrav1.TalosHost) {
				before := h.DeepCopy()
				record(h)
				if field == "spec.consumerRef" || field == "spec.handover" {
					h.Spec.ConsumerRef, h.Spec.Handover = infrav1.ConsumerReference{}, infrav1.HostHandover{}
				}
				h.Spec.AdoptionSecretRef = before.Spec.AdoptionSecretRef
			})
		}, apierrors.IsInvalid, []string{field}}
	}
	return attempts
}

// TestWhatATenantCannotDo: two users with the rights of docs/install.md have a cluster
// each, in namespaces beside each other. One of them means harm to its own keys and
// machines first, and then to the other's. Each attempt is refused, or has no effect; the
// rows of docs/tenants.md have the names that they have here.
func TestWhatATenantCannotDo(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	n := newNeighbours(t)
	expectRefused(t, n.attackAtHome())
	n.row("a machine in use is adopted with the talosconfig of its cluster")
	adopting := twin(n.used, victimNamespace, "adopting", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, tenantCluster+"-talosconfig"
	})
	g.Expect(n.victim.Create(ctx, adopting)).To(Succeed())
	n.expectTold(victimNamespace, adopting.Name, infrav1.IdentityVerifiedCondition, infrav1.IdentityDuplicateReason)
	n.deleteHost(n.victim, adopting)

	before := n.settled()
	expectRefused(t, n.attackNeighbour())
	expectRefused(t, n.forgeBeside())
	n.attackWithoutEffect(before)
	n.expectNothingSecret()
	g.Consistently(n.state, watched, time.Second).Should(Equal(before))
	n.crowd()

	n.row("clusters, hosts and provider IDs of the same names, and their deletion")
	deleteClusters(t, intruderNamespace, tenantCluster, "hijack")
	g.Expect(n.state().machines).To(Equal(before.machines), "clusters of one name are two")
	awaitMachines(t, victimNamespace, tenantCluster)
	deleteClusters(t, victimNamespace, tenantCluster)
	expectStates(t, victimNamespace, infrav1.HostAvailable, len(n.hosts))
}
