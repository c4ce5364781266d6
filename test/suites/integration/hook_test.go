package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// awaitControlPlane waits until the control plane has just that many Machines, all
// healthy, up to date and members of etcd, and none is being deleted.
func awaitControlPlane(t *testing.T, name string, replicas int) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		controlPlane := controlPlaneOf(ctx, g, name)
		g.Expect(controlPlane.Status.Replicas).To(HaveValue(BeEquivalentTo(replicas)))
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(replicas)))
		g.Expect(controlPlane.Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(replicas)))
		for _, machine := range machinesOf(ctx, g, name, true) {
			g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue(), machine.Name)
		}
		g.Expect(told(controlPlane, controlplanev1.EtcdClusterHealthyCondition).Status).To(Equal(metav1.ConditionTrue))
		g.Expect(told(controlPlane, controlplanev1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
		for _, conditionType := range []string{controlplanev1.ScalingUpCondition, controlplanev1.ScalingDownCondition, controlplanev1.RollingOutCondition, controlplanev1.RemediatingCondition} {
			g.Expect(told(controlPlane, conditionType).Status).To(Equal(metav1.ConditionFalse), conditionType)
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// namesOf are the names of the control plane Machines of a Cluster.
func namesOf(t *testing.T, name string) []string {
	t.Helper()
	var names []string
	for _, machine := range machinesOf(t.Context(), NewWithT(t), name, true) {
		names = append(names, machine.Name)
	}

	return names
}

// TestTheOnlyControlPlaneMachineIsReplacedBeforeItGoes: "kubectl delete machine"
// loses no data. Without a free host the Machine waits and says so; with one its
// successor joins etcd first.
func TestTheOnlyControlPlaneMachineIsReplacedBeforeItGoes(t *testing.T) {
	t.Parallel()
	const name = "only"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 0)
	before := namesOf(t, name)
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", before[0], "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(machinesOf(ctx, g, name, true)).To(HaveLen(2))
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.ScalingUpCondition).Status).To(Equal(metav1.ConditionTrue))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Wiped(ctx, hosts[0])).NotTo(Succeed(), "its host is not touched")

	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	awaitControlPlane(t, name, 1)
	g.Expect(namesOf(t, name)).NotTo(ContainElement(before[0]))
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}
