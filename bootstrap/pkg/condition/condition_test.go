package condition

import (
	"strings"
	"testing"
	"unicode/utf8"

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

// TestAMessageIsCutToWhatAnAPIServerTakes, and stays a text.
func TestAMessageIsCutToWhatAnAPIServerTakes(t *testing.T) {
	g, machine := NewWithT(t), &clusterv1.Machine{}
	Set(machine, "Ready", False("Broken", strings.Repeat("é", 20000)))
	message := conditions.GetMessage(machine, "Ready")
	g.Expect(len(message)).To(BeNumerically("<=", 32768))
	g.Expect(message).To(And(HaveSuffix("é..."), Satisfy(utf8.ValidString)))
	Set(machine, "Ready", False("Broken", strings.Repeat("x", 32768)))
	g.Expect(conditions.GetMessage(machine, "Ready")).To(HaveLen(32768))
}
