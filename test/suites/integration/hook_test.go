package integration

import (
	"context"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
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
func namesOf(ctx context.Context, g Gomega, name string) []string {
	var names []string
	for _, machine := range machinesOf(ctx, g, name, true) {
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
	before := namesOf(ctx, g, name)
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", before[0], "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(machinesOf(ctx, g, name, true)).To(HaveLen(2))
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.ScalingUpCondition).Status).To(Equal(metav1.ConditionTrue))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Wiped(ctx, hosts[0])).NotTo(Succeed(), "its host is not touched")

	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	awaitControlPlane(t, name, 1)
	g.Expect(namesOf(ctx, g, name)).NotTo(ContainElement(before[0]))
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// TestAPersonGivesTheDataOfEtcdUp: the only Machine is deleted, and there is no other
// host; its successor is to join etcd. A person has it go though nothing can be decided, with the data of etcd. Its
// successor gets the host, and waits until the person names it: then etcd begins anew.
func TestAPersonGivesTheDataOfEtcdUp(t *testing.T) {
	t.Parallel()
	const name = "given-up"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 0)
	old := machinesOf(ctx, g, name, true)[0]
	kubectl(t, name, "delete", "machine", old.Name, "--wait=false")
	g.Eventually(func(g Gomega) {
		g.Expect(namesOf(ctx, g, name)).To(HaveLen(2))
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&old), &old)).To(Succeed())
		g.Expect(told(&old, clusterv1.MachineDeletingCondition).Reason).To(Equal(clusterv1.MachineDeletingWaitingForPreTerminateHookReason))
		g.Expect(told(&old, controlplanev1.MachineEtcdMemberHealthyCondition).Message).To(ContainSubstring(controlplanev1.EtcdPreTerminateHookOverrideAnnotation))
	}).WithTimeout(timeout).Should(Succeed())

	names := namesOf(ctx, g, name)
	next := names[1-slices.Index(names, old.Name)]
	config := &bootstrapv1.TalosConfig{}
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: next}, config)).To(Succeed())
		g.Expect(config.Status.DataSecretName).NotTo(BeEmpty(), "it has its configuration, with which it joins")
	}).WithTimeout(timeout).Should(Succeed())

	spoilKubeconfig(t, name)
	g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&old), &old)).To(Succeed())
	g.Expect(old.Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	g.Expect(machines.Wiped(ctx, hosts[0])).NotTo(Succeed(), "its host is not touched")
	expectNoOffence(t)
	kubectl(t, name, "annotate", "machine", old.Name, controlplanev1.EtcdPreTerminateHookOverrideAnnotation+"=")
	g.Eventually(func(g Gomega) {
		g.Expect(namesOf(ctx, g, name)).To(ConsistOf(next))
	}).WithTimeout(timeout).Should(Succeed())

	kubectl(t, name, "delete", "secret", name+"-kubeconfig")
	g.Eventually(func(g Gomega) {
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.AvailableCondition).Message).To(ContainSubstring(controlplanev1.BootstrapOverrideAnnotation))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Bootstraps()).To(Equal(1))
	kubectl(t, name, "annotate", "taloscontrolplane", name+"-control-plane", controlplanev1.BootstrapOverrideAnnotation+"="+next)
	// Cluster API's watches of the Nodes go on at the revision of the etcd that is lost, until
	// it connects anew: the Machine may not be ready for long.
	g.Eventually(func(g Gomega) {
		controlPlane := controlPlaneOf(ctx, g, name)
		g.Expect(controlPlane.Annotations).NotTo(HaveKey(controlplanev1.BootstrapOverrideAnnotation))
		for _, conditionType := range []string{controlplanev1.EtcdClusterHealthyCondition, controlplanev1.ControlPlaneComponentsHealthyCondition, controlplanev1.AvailableCondition} {
			g.Expect(told(controlPlane, conditionType).Status).To(Equal(metav1.ConditionTrue), conditionType)
		}
	}).WithTimeout(timeout).Should(Succeed())
	clientConfigsOf(t, g, name).expectToWork(t, name)
	g.Expect(namesOf(ctx, g, name)).To(ConsistOf(next))
	g.Expect(machines.Bootstraps()).To(Equal(2))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// spoilKubeconfig makes the kubeconfig of a cluster one of a user with which no API server
// can be asked, and waits until nothing is decided any more.
func spoilKubeconfig(t *testing.T, name string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		secret := clientConfigsOf(t, g, name).kubeconfig
		secret.OwnerReferences, secret.Annotations = nil, nil
		secret.Data["value"] = []byte("none")
		g.Expect(world.Client.Update(ctx, secret)).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.AvailableCondition).Message).To(ContainSubstring("The API server was not asked"))
	}).WithTimeout(timeout).Should(Succeed())
}
