package metal_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestAMachineWithAWrongClockIsNoStranger: the conditions name the clock, and all
// goes on once it is right.
func TestAMachineWithAWrongClockIsNoStranger(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	setClock := func(wrong bool) {
		metal.Update(func(state *talosfake.State) { state.WrongClock = wrong })
		metal.BreakWatches()
		w.Settle(m)
	}
	namesClocks := And(ContainSubstring("clock"), ContainSubstring("time servers"))

	setClock(true)
	running := conditions.Get(w.Machine("a"), infrav1.RunningCondition)
	g.Expect(running.Reason).To(Equal(infrav1.ClockSkewReason))
	g.Expect(running.Message).To(namesClocks)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned), "it belongs to nobody else")
	setClock(false)
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.RunningCondition)).To(BeTrue())

	setClock(true)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	for _, conditionType := range []string{infrav1.ReleasedCondition, infrav1.ReachableCondition} {
		found := conditions.Get(w.Host("h1"), conditionType)
		g.Expect(found.Reason).To(Equal(infrav1.ReleaseClockSkewReason), conditionType)
		g.Expect(found.Message).To(namesClocks, conditionType)
	}
	g.Expect(metal.Resets()).To(BeEmpty())
	setClock(false)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
}
