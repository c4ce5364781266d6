package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// TestAVersionOfATopologyTakesTheControlPlaneFirst: the new Kubernetes version
// comes to all control plane machines before the first worker is made with it, and
// the versions that the control plane reports are in order all the time.
func TestAVersionOfATopologyTakesTheControlPlaneFirst(t *testing.T) {
	t.Parallel()
	const name, version = "classy-upgrade", "v1.36.4"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runTopology(t, machines, name, 1, 1, 1)
	old := machines.KubernetesVersion()
	g.Expect(old).NotTo(Equal(version))
	g.Eventually(func(g Gomega) {
		cluster := readCluster(ctx, g, name)
		cluster.Spec.Topology.Version = version
		g.Expect(world.Client.Update(ctx, cluster)).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())

	g.Eventually(func(g Gomega) {
		// The workers are read first: what is seen of the control plane is newer.
		workersBegan := workersOf(ctx, g, name).Spec.Template.Spec.Version == version
		workers := machinesOf(ctx, g, name, false)
		for _, machine := range workers {
			workersBegan = workersBegan || machine.Spec.Version == version
		}
		controlPlane, reported := machinesOf(ctx, g, name, true), controlPlaneOf(ctx, g, name).Status.Versions
		if len(reported) == 2 && (reported[0].Version != old || reported[1].Version != version) {
			StopTrying("the versions of the control plane are not from the oldest to the newest").Attach("versions", reported).Now()
		}
		for _, machine := range controlPlane {
			if workersBegan && machine.Spec.Version != version {
				StopTrying("the workers began before the control plane was done").Attach("machine", machine.Name).Now()
			}
		}
		g.Expect(controlPlane).To(And(HaveLen(1), HaveEach(HaveField("Spec.Version", version))))
		g.Expect(workers).To(And(HaveLen(1), HaveEach(HaveField("Spec.Version", version))))
		g.Expect(reported).To(ConsistOf(HaveField("Version", version)))
	}).WithTimeout(2 * timeout).Should(Succeed())
	awaitTopology(t, name)
	awaitAvailable(t, name)
	g.Eventually(func(g Gomega) {
		g.Expect(machinesOf(ctx, g, name, false)).To(HaveEach(HaveField("Status.NodeInfo.KubeletVersion", version)))
		g.Expect(told(readCluster(ctx, g, name), clusterv1.ClusterControlPlaneMachinesUpToDateCondition).Status).To(BeEquivalentTo("True"))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}
