package condition

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
)

func TestWhatWasNotObservedStays(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{}
	Set(machine, "Ready", Falsef("Broken", "%d of %d", 1, 3))
	g.Expect(*conditions.Get(machine, "Ready")).To(And(
		HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "Broken"), HaveField("Message", "1 of 3")))
	Set(machine, "Ready", Finding{})
	g.Expect(conditions.GetReason(machine, "Ready")).To(Equal("Broken"))
	Set(machine, "Ready", True("Ready", ""))
	g.Expect(conditions.IsTrue(machine, "Ready")).To(BeTrue())
	Set(machine, "Ready", Unknownf("Unreachable", "%s does not answer", "it"))
	g.Expect(conditions.IsUnknown(machine, "Ready")).To(BeTrue())
}
