package integration

import (
	"context"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// TestTwoClustersWantTheSameHosts: four TalosMachines, three hosts in one
// namespace. Each host is claimed once; who gets none says why, and takes one by
// itself once there is one.
func TestTwoClustersWantTheSameHosts(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const namespace = "shared"
	machines := newFleet(t, simfleet.Options{})
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	addHosts(t, machines, namespace, 3)
	for _, name := range []string{"left", "right"} {
		createCluster(t, machines, namespace, name)
	}

	var waiting []string
	g.Eventually(func(g Gomega) {
		claimed := map[string]string{}
		waiting = nil
		for _, machine := range talosMachines(g, ctx, namespace) {
			if machine.Spec.HostRef.Claim == infrav1.HostClaimBound {
				g.Expect(claimed).NotTo(HaveKey(machine.Spec.HostRef.Name))
				claimed[machine.Spec.HostRef.Name] = machine.Name
				continue
			}
			waiting = append(waiting, machine.Name)
			condition := conditions.Get(&machine, infrav1.AllocatedCondition)
			g.Expect(condition).NotTo(BeNil())
			g.Expect(condition.Reason).To(Equal(infrav1.NoHostFitsReason))
			g.Expect(condition.Message).To(ContainSubstring("No TalosHost of 3 can be claimed: 3 claimed"))
		}
		g.Expect(claimed).To(HaveLen(3))
		g.Expect(waiting).To(HaveLen(1))
	}).WithTimeout(timeout).Should(Succeed())

	addHosts(t, machines, namespace, 1)
	g.Eventually(func(g Gomega) {
		machine := &infrav1.TalosMachine{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: waiting[0]}, machine)).To(Succeed())
		g.Expect(machine.Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	}).WithTimeout(timeout).Should(Succeed())
	for _, name := range []string{"left", "right"} {
		g.Eventually(func(g Gomega) {
			cluster := &clusterv1.Cluster{}
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster)).To(Succeed())
			g.Expect(conditions.IsTrue(cluster, clusterv1.AvailableCondition)).To(BeTrue())
		}).WithTimeout(timeout).Should(Succeed())
	}
	g.Expect(machines.Bootstraps()).To(Equal(2))
	deleteClusters(t, namespace, "left", "right")
	expectStates(t, namespace, infrav1.HostAvailable, 4)
}

// TestAFleetThatDoesNotWipe: a machine that comes back with its data is never
// available again by itself.
func TestAFleetThatDoesNotWipe(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const namespace = "keeps"
	machines := newFleet(t, simfleet.Options{})
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	hosts := addHosts(t, machines, namespace, 2)
	createCluster(t, machines, namespace, "keeps")
	g.Eventually(func(g Gomega) {
		found := talosMachines(g, ctx, namespace)
		g.Expect(found).To(HaveLen(2))
		for _, machine := range found {
			g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		}
	}).WithTimeout(timeout).Should(Succeed())

	g.Expect(machines.KeepDataOnReset(ctx, true)).To(Succeed())
	deleteClusters(t, namespace, "keeps")
	expectStates(t, namespace, infrav1.HostError, 2)
	for _, host := range hosts {
		g.Expect(machines.Wiped(ctx, host)).NotTo(Succeed())
	}

	// The cause is mended, and a person says so.
	g.Expect(machines.KeepDataOnReset(ctx, false)).To(Succeed())
	for _, host := range hosts {
		object := &infrav1.TalosHost{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: host.Name}, object)).To(Succeed())
		before := object.DeepCopy()
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, infrav1.HostRetryAnnotation, "")
		g.Expect(world.Client.Patch(ctx, object, client.MergeFrom(before))).To(Succeed())
	}
	expectStates(t, namespace, infrav1.HostAvailable, 2)
	for _, host := range hosts {
		g.Expect(machines.Wiped(ctx, host)).To(Succeed())
	}
}

func addHosts(t *testing.T, machines *simfleet.Fleet, namespace string, count int) []fleet.Host {
	t.Helper()
	forgetHosts(t, namespace)
	g := NewWithT(t)
	hosts, err := machines.Add(t.Context(), count)
	g.Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		g.Expect(world.Client.Create(t.Context(), host.Manifest(namespace, nil))).To(Succeed())
	}
	return hosts
}

func createCluster(t *testing.T, machines *simfleet.Fleet, namespace, name string, changes ...func(*unstructured.Unstructured)) {
	t.Helper()
	g := NewWithT(t)
	endpoint, err := machines.Endpoint(t.Context(), name)
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := world.Stack.Clusterctl.Generate(t.Context(), name, map[string]string{
		"CONTROL_PLANE_ENDPOINT_HOST": endpoint.Host, "CONTROL_PLANE_ENDPOINT_PORT": strconv.Itoa(int(endpoint.Port)),
	}, "--infrastructure", "talos", "--flavor", "metal", "--target-namespace", namespace, "--kubernetes-version", machines.KubernetesVersion(),
		"--control-plane-machine-count", "1", "--worker-machine-count", "1")
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects(g, manifest) {
		for _, change := range changes {
			change(object)
		}
		g.Expect(world.Client.Create(t.Context(), object)).To(Succeed(), object.GetKind())
	}
}

func deleteClusters(t *testing.T, namespace string, names ...string) {
	t.Helper()
	expectNoOffence(t)
	g := NewWithT(t)
	for _, name := range names {
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		g.Expect(world.Client.Delete(t.Context(), cluster)).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		clusters := &clusterv1.ClusterList{}
		g.Expect(world.Client.List(t.Context(), clusters, client.InNamespace(namespace))).To(Succeed())
		g.Expect(clusters.Items).To(BeEmpty())
	}).WithTimeout(timeout).Should(Succeed())
}

func talosMachines(g Gomega, ctx context.Context, namespace string) []infrav1.TalosMachine {
	list := &infrav1.TalosMachineList{}
	g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	return list.Items
}

func expectStates(t *testing.T, namespace string, state infrav1.HostState, count int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		list := &infrav1.TalosHostList{}
		g.Expect(world.Client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(count))
		g.Expect(list.Items).To(HaveEach(HaveField("Status.State", state)))
	}).WithTimeout(timeout).Should(Succeed())
}
