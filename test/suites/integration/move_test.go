package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// place is a management cluster that holds a cluster for a time.
type place struct {
	stack  *management.Stack
	client client.Client
}

// TestAClusterIsMovedThereAndBack (§14.4): "clusterctl move" to a second
// management cluster and back, with a live cluster of three control plane
// machines. Status does not come along, and all UIDs differ: nothing is
// bootstrapped, released, replaced or booted, and all Secrets are what they were.
func TestAClusterIsMovedThereAndBack(t *testing.T) {
	t.Parallel()
	const name = "moved"
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 3, 1)
	here, there := place{world.Stack, world.Client}, newPlace(t)
	booted := boots(machines, hosts)
	for _, move := range []struct{ from, to place }{{here, there}, {there, here}} {
		before, secrets := move.from.identities(t, g, name), move.from.secrets(t, g, name)
		_, err := move.from.stack.Clusterctl.Run(t.Context(), nil, "move", "--namespace", name, "--to-kubeconfig", move.to.stack.Kubeconfig)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(move.from.identities(t, g, name)).To(BeEmpty(), "nothing is left behind")
		move.to.awaitAvailable(t, name)

		same := func(g Gomega) {
			after := move.to.identities(t, g, name)
			g.Expect(slices.Sorted(maps.Keys(after))).To(Equal(slices.Sorted(maps.Keys(before))))
			for object, uid := range after {
				g.Expect(uid).NotTo(Equal(before[object]), object)
			}
			g.Expect(move.to.secrets(t, g, name)).To(Equal(secrets))
			g.Expect(boots(machines, hosts)).To(Equal(booted))
			g.Expect(machines.Bootstraps()).To(Equal(1))
		}
		g.Consistently(same, watched, time.Second).Should(Succeed())
	}
	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	_, err := here.stack.Clusterctl.Run(t.Context(), nil, "move", "--namespace", name, "--to-kubeconfig", there.stack.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	there.awaitAvailable(t, name)
	expectRebuilt(t, machines, hosts, name, there, here)

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// expectRebuilt saves what a management cluster has of a cluster of three control plane machines
// and one host to spare, replaces a machine, and loses the management cluster. Another one
// reads what was saved; the cluster lives on, once somebody has done what docs/backups.md says
// about the machine that is gone, and the one that nobody knows.
func expectRebuilt(t *testing.T, machines *simfleet.Fleet, hosts []fleet.Host, name string, from, to place) {
	t.Helper()
	g, ctx, saved := NewWithT(t), t.Context(), t.TempDir()
	kubectl := func(p place, args ...string) {
		t.Helper()
		_, err := p.stack.Kubectl(ctx, append([]string{"--namespace", name}, args...)...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	kubectl(from, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch", `{"spec":{"etcd":{"leaveTimeoutSeconds":10}}}`)
	from.awaitAvailable(t, name)
	before := from.identities(t, g, name)
	from.typeClusterctl(t, "--to-directory", name, saved)
	g.Expect(from.identities(t, g, name)).To(Equal(before), "it is a copy")

	known := from.controlPlaneNames(t, g, name)
	gone := known[0]
	// The one that replaces it may be given the host that it leaves, once that is wiped.
	left := &infrav1.TalosMachine{}
	g.Expect(from.client.Get(ctx, client.ObjectKey{Namespace: name, Name: gone}, left)).To(Succeed())
	kubectl(from, "patch", "taloshost", left.Spec.HostRef.Name, "--type=merge", "--patch", `{"spec":{"unschedulable":true}}`)
	kubectl(from, "delete", "machine", gone)
	g.Eventually(func(g Gomega) {
		g.Expect(from.controlPlaneNames(t, g, name)).To(And(HaveLen(len(known)), Not(ContainElement(gone))))
		from.expectAvailable(ctx, g, name)
	}).WithTimeout(2 * timeout).Should(Succeed())
	stranger := slices.DeleteFunc(from.controlPlaneNames(t, g, name), func(machine string) bool { return slices.Contains(known, machine) })[0]
	g.Expect(from.stack.Stop(contextAfter(t))).To(Succeed())

	booted := boots(machines, hosts)
	to.typeClusterctl(t, "--from-directory", name, saved)
	g.Eventually(func(g Gomega) {
		g.Expect(to.list(t, g, name, &infrav1.TalosHostList{})).To(ContainElement(WithTransform(func(host client.Object) string {
			return conditions.GetReason(host.(*infrav1.TalosHost), infrav1.AvailableCondition)
		}, Equal(infrav1.HostForeignReason))))
	}).WithTimeout(timeout).Should(Succeed())
	g.Consistently(func(g Gomega) {
		g.Expect(boots(machines, hosts)).To(Equal(booted))
		g.Expect(to.controlPlaneNames(t, g, name)).To(ConsistOf(known))
	}, watched, time.Second).Should(Succeed())

	kubectl(to, "delete", "machine", gone)
	for _, host := range hosts {
		if machine := machines.Machine(host); machine.Hostname() == stranger {
			machine.LoseDisk()
		}
	}
	g.Eventually(func(g Gomega) {
		g.Expect(to.controlPlaneNames(t, g, name)).To(And(HaveLen(len(known)), Not(ContainElement(gone)), ContainElements(known[1:])))
		to.expectAvailable(ctx, g, name)
	}).WithTimeout(2 * timeout).Should(Succeed())
	for i, host := range hosts {
		if machine := machines.Machine(host); slices.Contains(known[1:], machine.Hostname()) {
			g.Expect(machine.Boots()).To(Equal(booted[i]), machine.Hostname())
			g.Expect(machines.Sim.Voters(machine)).To(Equal(etcdmodel.Count{Voters: 3, Answering: 3}))
		}
	}
	g.Expect(machines.Bootstraps()).To(Equal(1))
}

// controlPlaneNames are the names of the Machines of a control plane.
func (p place) controlPlaneNames(t *testing.T, g Gomega, namespace string) []string {
	t.Helper()
	list := &clusterv1.MachineList{}
	g.Expect(p.client.List(t.Context(), list, client.InNamespace(namespace), client.HasLabels{clusterv1.MachineControlPlaneLabel})).To(Succeed())
	names := make([]string, 0, len(list.Items))
	for _, machine := range list.Items {
		names = append(names, machine.Name)
	}
	return names
}

// typeClusterctl types the only command of docs/backups.md with an option, for a namespace
// and a folder.
func (p place) typeClusterctl(t *testing.T, option, namespace, folder string) {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(world.Source, "docs", "backups.md"))
	g.Expect(err).NotTo(HaveOccurred())
	commands := regexp.MustCompile("(?m)^    clusterctl (.* "+option+" .*)$").FindAllStringSubmatch(string(page), -1)
	g.Expect(commands).To(HaveLen(1), option)
	_, err = p.stack.Clusterctl.Run(t.Context(), nil, strings.Fields(strings.NewReplacer("demo", namespace, "saved", folder).Replace(commands[0][1]))...)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestAMoveThatIsInterrupted: a move that dies while it creates is repeated after
// the source was unpaused by hand, and one that dies while it deletes is finished
// by hand (docs/move.md). No machine is released, booted or bootstrapped.
func TestAMoveThatIsInterrupted(t *testing.T) {
	t.Parallel()
	const name = "interrupted"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 1)
	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	here, there := place{world.Stack, world.Client}, newPlace(t)
	booted := boots(machines, hosts)
	before := here.identities(t, g, name)
	untouched := func(g Gomega) {
		g.Expect(boots(machines, hosts)).To(Equal(booted))
		g.Expect(machines.Bootstraps()).To(Equal(1))
	}

	// While it creates: the target takes the Machines, and nothing that is made for
	// them.
	g.Expect(there.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	copied := here.list(t, g, name, &infrav1.TalosMachineList{})[0]
	copied.SetResourceVersion("")
	copied.SetOwnerReferences(nil)
	lift := there.forbid(t, admissionv1.Create, infrav1.GroupVersion.WithResource("talosmachines").GroupResource(), copied,
		func(ctx context.Context, object client.Object) error {
			return there.client.Create(ctx, object, client.DryRunAll)
		})
	here.interruptMove(t, name, there, func(g Gomega) {
		g.Expect(there.list(t, g, name, &clusterv1.MachineList{})).NotTo(BeEmpty())
	})
	lift()
	g.Expect(here.identities(t, g, name)).To(HaveLen(len(before)), "the source has everything")
	g.Consistently(untouched, watched, time.Second).Should(Succeed())
	_, err := here.stack.Kubectl(ctx, "--namespace", name, "patch", "cluster", name, "--type=merge", "--patch", `{"spec":{"paused":false}}`)
	g.Expect(err).NotTo(HaveOccurred())
	here.awaitAvailable(t, name)
	_, err = here.stack.Clusterctl.Run(ctx, nil, "move", "--namespace", name, "--to-kubeconfig", there.stack.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	there.awaitAvailable(t, name)
	g.Expect(slices.Sorted(maps.Keys(there.identities(t, g, name)))).To(Equal(slices.Sorted(maps.Keys(before))))
	g.Consistently(untouched, watched, time.Second).Should(Succeed())

	// While it deletes: what was made for the Machines is gone from the source, and
	// they are not.
	lift = there.forbid(t, admissionv1.Delete, clusterv1.GroupVersion.WithResource("machines").GroupResource(), there.list(t, g, name, &clusterv1.MachineList{})[0],
		func(ctx context.Context, object client.Object) error {
			return there.client.Delete(ctx, object, client.DryRunAll)
		})
	there.interruptMove(t, name, here, func(g Gomega) {
		g.Expect(there.list(t, g, name, &infrav1.TalosMachineList{})).To(BeEmpty())
	})
	lift()
	g.Expect(there.list(t, g, name, &clusterv1.MachineList{})).NotTo(BeEmpty())
	g.Expect(slices.Sorted(maps.Keys(here.identities(t, g, name)))).To(Equal(slices.Sorted(maps.Keys(before))), "the target has everything")
	g.Consistently(untouched, watched, time.Second).Should(Succeed())
	there.finishMove(t, name)
	_, err = here.stack.Kubectl(ctx, "--namespace", name, "patch", "cluster", name, "--type=merge", "--patch", `{"spec":{"paused":false}}`)
	g.Expect(err).NotTo(HaveOccurred())
	here.awaitAvailable(t, name)
	g.Consistently(untouched, watched, time.Second).Should(Succeed())

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// watched is for how long nothing may happen.
const watched = 10 * time.Second

// boots counts how often each machine was switched on.
func boots(machines *simfleet.Fleet, hosts []fleet.Host) []int {
	found := make([]int, 0, len(hosts))
	for _, host := range hosts {
		found = append(found, machines.Machine(host).Boots())
	}
	return found
}

// interruptMove kills a move once it has come so far.
func (p place) interruptMove(t *testing.T, name string, to place, soFar func(Gomega)) {
	t.Helper()
	g := NewWithT(t)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	ended := make(chan error, 1)
	go func() {
		_, err := p.stack.Clusterctl.Run(ctx, nil, "move", "--namespace", name, "--to-kubeconfig", to.stack.Kubeconfig)
		ended <- err
	}()
	g.Eventually(soFar).WithTimeout(timeout).Should(Succeed())
	kill()
	g.Eventually(ended).WithTimeout(timeout).Should(Receive(HaveOccurred()))
}

// forbid refuses an operation on the kind of an object in its namespace, until the
// returned function is called. try tries it.
func (p place) forbid(t *testing.T, operation admissionv1.OperationType, resource schema.GroupResource, object client.Object, try func(context.Context, client.Object) error) func() {
	t.Helper()
	g := NewWithT(t)
	lift, err := p.stack.Forbid(t.Context(), management.Forbidden{
		Operation: operation, Resource: resource, Namespace: object.GetNamespace(),
		Try: func(ctx context.Context) error { return try(ctx, object) },
	})
	g.Expect(err).NotTo(HaveOccurred())
	return func() { g.Expect(lift(t.Context())).To(Succeed()) }
}

// finishMove takes what is left of a moved cluster away, as docs/move.md says.
func (p place) finishMove(t *testing.T, name string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(world.Source, "docs", "move.md"))
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	_, rest, found := strings.Cut(string(page), "```sh\n# finish by hand\n")
	g.Expect(found).To(BeTrue(), "the page has the commands")
	script, _, _ := strings.Cut(rest, "```")
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script) //nolint:gosec // the commands of our own page
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.stack.Kubeconfig, "NAMESPACE="+name, "CLUSTER="+name,
		"PATH="+p.stack.Built.Dir("kubectl")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	g.Expect(p.identities(t, g, name)).To(BeEmpty(), "nothing is left behind")
}

// list are the objects of a kind in a namespace.
func (p place) list(t *testing.T, g Gomega, namespace string, list client.ObjectList) []client.Object {
	t.Helper()
	g.Expect(p.client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
	return items(g, list)
}

// newPlace starts a second management cluster that ends with the test.
func newPlace(t *testing.T) place {
	t.Helper()
	g := NewWithT(t)
	stack, err := management.Up(t.Context(), management.StackOptions{Dir: t.TempDir(), Repository: filepath.Join(world.Source, "out", "repository")})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(stack.Stop(contextAfter(t))).To(Succeed()) })
	scheme, err := demo.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := client.New(stack.Config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return place{stack, reader}
}

// identities are the UIDs of all objects that a move takes along.
func (p place) identities(t *testing.T, g Gomega, namespace string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, list := range append(ourLists(), &corev1.SecretList{}, &clusterv1.ClusterList{}, &clusterv1.MachineList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineDeploymentList{}) {
		for _, object := range p.list(t, g, namespace, list) {
			found[fmt.Sprintf("%T %s", object, object.GetName())] = string(object.GetUID())
		}
	}
	return found
}

// secrets are the contents of all Secrets.
func (p place) secrets(t *testing.T, g Gomega, namespace string) map[string]map[string][]byte {
	t.Helper()
	list, found := &corev1.SecretList{}, map[string]map[string][]byte{}
	g.Expect(p.client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
	for _, secret := range list.Items {
		found[secret.Name] = secret.Data
	}
	return found
}

// awaitAvailable waits until all that is told of the cluster is true again.
func (p place) awaitAvailable(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		p.expectAvailable(t.Context(), g, name)
	}).WithTimeout(2 * timeout).Should(Succeed())
}

func (p place) expectAvailable(ctx context.Context, g Gomega, name string) {
	cluster, controlPlane := &clusterv1.Cluster{}, &controlplanev1.TalosControlPlane{}
	g.Expect(p.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	g.Expect(told(cluster, clusterv1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
	g.Expect(p.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
	g.Expect(controlPlane.Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
	g.Expect(controlPlane.Status.UpToDateReplicas).To(Equal(controlPlane.Spec.Replicas))
	g.Expect(controlPlane.Status.AvailableReplicas).To(Equal(controlPlane.Spec.Replicas))
	list := &clusterv1.MachineList{}
	g.Expect(p.client.List(ctx, list, client.InNamespace(name))).To(Succeed())
	for i := range list.Items {
		g.Expect(conditions.IsTrue(&list.Items[i], clusterv1.AvailableCondition)).To(BeTrue(), list.Items[i].Name)
	}
	hosts := &infrav1.TalosHostList{}
	g.Expect(p.client.List(ctx, hosts, client.InNamespace(name))).To(Succeed())
	g.Expect(hosts.Items).NotTo(BeEmpty())
	for i := range hosts.Items {
		state := infrav1.HostAvailable
		if hosts.Items[i].Spec.ConsumerRef.Name != "" {
			state = infrav1.HostProvisioned
		}
		g.Expect(hosts.Items[i].Status.State).To(Equal(state), hosts.Items[i].Name)
	}
}
