package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

const namedLikeTheCluster = "{{ .cluster.name }}.{{ .random }}"

// Admission does not know the name of the Cluster.
func TestAMachineWhoseNameCannotBeAHostNameIsNotMade(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Spec.MachineNaming.Template = namedLikeTheCluster
	w := newWorld(t, newCluster(), controlPlane)
	r := w.manager()
	g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("cannot be host names of nodes")))
	g.Expect(w.machines()).To(BeEmpty())
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.InitializedCondition)).To(ContainSubstring("spec.machineNaming.template"))
}

func TestNoMachineGoesWhoseReplacementWouldHaveNoName(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.MachineNaming.Template = namedLikeTheCluster
	})
	w.beginRollout()
	w.settle(r)
	g.Expect(w.staying()).To(Equal(3))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.RollingOutCondition)).To(ContainSubstring("spec.machineNaming.template"))
}
