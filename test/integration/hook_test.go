package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
)

// TestASingleControlPlaneMachineIsHeld: "kubectl delete machine" takes no member
// from etcd. The Machine waits for our hook, the reason is there to be read, and
// the cluster goes on. With the whole control plane it goes.
func TestASingleControlPlaneMachineIsHeld(t *testing.T) {
	t.Parallel()
	const name = "held"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 1)
	held := machinesOf(ctx, g, name, true)[0]
	_, err := world.Kubectl(ctx, "--namespace", name, "delete", "machine", held.Name, "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())

	waits := func(g Gomega) {
		machine := &clusterv1.Machine{}
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&held), machine)).To(Succeed())
		g.Expect(machine.DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(machine.Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
		deleting := told(machine, clusterv1.MachineDeletingCondition)
		g.Expect(deleting.Reason).To(Equal(clusterv1.MachineDeletingWaitingForPreTerminateHookReason))
		infra := &infrav1.TalosMachine{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: machine.Spec.InfrastructureRef.Name}, infra)).To(Succeed())
		g.Expect(infra.DeletionTimestamp.IsZero()).To(BeTrue(), "its host is not touched")
	}
	g.Eventually(waits).WithTimeout(timeout).Should(Succeed())
	g.Eventually(func(g Gomega) {
		var said []string
		for _, condition := range controlPlaneOf(ctx, g, name).Status.Conditions {
			said = append(said, condition.Message)
		}
		g.Expect(said).To(ContainElement(And(ContainSubstring(held.Name), ContainSubstring("etcd"))), "the TalosControlPlane says what the Machine waits for")
	}).WithTimeout(timeout).Should(Succeed())
	const patience = 5 * time.Second
	g.Consistently(waits, patience).Should(Succeed())
	g.Expect(machinesOf(ctx, g, name, true)).To(HaveLen(1), "nothing is put in its place")
	for _, host := range hosts {
		g.Expect(machines.Wiped(ctx, host)).NotTo(Succeed())
	}
	cluster := &clusterv1.Cluster{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	g.Expect(told(cluster, clusterv1.ClusterRemoteConnectionProbeCondition).Status).To(Equal(metav1.ConditionTrue))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}
