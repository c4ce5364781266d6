package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestManagersOfOneNamespace: with --namespace our managers act there, and
// nowhere else.
func TestManagersOfOneNamespace(t *testing.T) {
	const mine, others = "this-namespace", "other-namespace"
	machines := newFleet(t, simfleet.Options{})
	restartManagers(t, "--namespace="+mine)
	hosts := newPair(t, machines, mine, nil)
	strangers := newPair(t, machines, others, nil)
	awaitAvailable(t, mine)
	expectUntouched(t, others)

	// What was never touched holds nothing up either.
	deleteClusters(t, others, others)
	expectWiped(t, machines, strangers...)
	deleteClusters(t, mine, mine)
	expectStates(t, mine, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// TestManagersOfOneWatchFilter: with --watch-filter our managers act on what
// has the label, and on nothing else. A cluster all of whose objects have it comes
// up.
func TestManagersOfOneWatchFilter(t *testing.T) {
	const mine, others, value = "with-label", "without-label", "blue"
	machines := newFleet(t, simfleet.Options{})
	restartManagers(t, "--watch-filter="+value)
	labels := map[string]string{clusterv1.WatchLabel: value}
	hosts := newPair(t, machines, mine, labels, withLabels(labels))
	strangers := newPair(t, machines, others, nil)
	awaitAvailable(t, mine)
	expectUntouched(t, others)

	// What was never touched holds nothing up either.
	deleteClusters(t, others, others)
	expectWiped(t, machines, strangers...)
	deleteClusters(t, mine, mine)
	expectStates(t, mine, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// restartManagers restarts our managers with further arguments, until the end of
// the test or the next call.
func restartManagers(t *testing.T, args ...string) {
	t.Helper()
	restart := func(args ...string) {
		for _, name := range world.Stack.Managers.Ours() {
			NewWithT(t).Expect(world.Stack.Managers.Get(name).RestartWith(contextAfter(t), args...)).To(Succeed())
		}
	}
	restart(args...)
	if len(args) > 0 {
		t.Cleanup(func() { restart() })
	}
}

// newPair makes a namespace with two hosts, and a cluster of its name for them.
func newPair(t *testing.T, machines *simfleet.Fleet, name string, labels map[string]string, changes ...func(*unstructured.Unstructured)) []fleet.Host {
	t.Helper()
	g := NewWithT(t)
	createNamespace(t, name)
	forgetHosts(t, name)
	hosts, err := machines.Add(t.Context(), 2)
	g.Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		g.Expect(world.Client.Create(t.Context(), host.Manifest(name, labels))).To(Succeed())
	}
	newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: 1, Workers: 1}, changes...)
	return hosts
}

// withLabels labels an object and, where it is made of a template, what is made
// of it.
func withLabels(labels map[string]string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		object.SetLabels(labels)
		paths := map[string][]string{
			"TalosControlPlane": {"spec", "machineTemplate", "metadata", "labels"},
			"MachineDeployment": {"spec", "template", "metadata", "labels"},
		}
		if path, found := paths[object.GetKind()]; found {
			if err := unstructured.SetNestedStringMap(object.Object, labels, path...); err != nil {
				panic(err)
			}
		}
	}
}

// expectUntouched says that none of our managers has written anything in a
// namespace in which Cluster API's own has.
func expectUntouched(t *testing.T, namespace string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		cluster := &infrav1.TalosCluster{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: namespace}, cluster)).To(Succeed())
		g.Expect(cluster.OwnerReferences).NotTo(BeEmpty())
	}).WithTimeout(timeout).Should(Succeed())
	const silence = 3 * time.Second
	g.Consistently(func(g Gomega) {
		for _, object := range everything(t, g, namespace) {
			for _, entry := range object.GetManagedFields() {
				g.Expect(isOurs(entry.Manager)).To(BeFalse(), "%T %s was written by %s", object, object.GetName(), entry.Manager)
			}
		}
	}, silence).Should(Succeed())
}
