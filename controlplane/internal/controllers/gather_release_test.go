package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestAMachineOfAnotherTalosReleaseIsNotUpToDate: it is not replaced for that, because
// another one would be no better, and nothing else is made or rolled out.
func TestAMachineOfAnotherTalosReleaseIsNotUpToDate(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	machine := w.machines()[0]
	says := func(status metav1.ConditionStatus, reason string) {
		present := w.machines()[0]
		before := present.DeepCopy()
		conditions.Set(present, metav1.Condition{
			Type: clusterv1.MachineInfrastructureReadyCondition, Status: status, Reason: reason, Message: "The machine runs Talos v1.13.8, but v1.13.9 was asked for",
		})
		g.Expect(w.client.Status().Patch(t.Context(), present, client.MergeFrom(before))).To(Succeed())
	}
	says(metav1.ConditionFalse, infrav1.WrongReleaseReason)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	found := conditions.Get(w.machines()[0], clusterv1.MachineUpToDateCondition)
	g.Expect(found.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(found.Message).To(ContainSubstring("v1.13.9 was asked for"))
	g.Expect(w.controlPlane().Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(2)))
	g.Expect(conditions.IsFalse(w.controlPlane(), controlplanev1.RollingOutCondition)).To(BeTrue(), "there is nothing to roll out")

	w.change(func(c *controlplanev1.TalosControlPlane) { *c.Spec.Replicas = 5 })
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3), "no more of the same")
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.ScalingUpCondition)).To(ContainSubstring("Machine " + machine.Name + ": The machine runs Talos v1.13.8"))

	says(metav1.ConditionTrue, clusterv1.ProvisionedReason)
	w.until(r, func() bool { return len(w.machines()) == 5 })
	g.Expect(conditions.IsTrue(w.machines()[0], clusterv1.MachineUpToDateCondition)).To(BeTrue())
}
