package controllers

import (
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// TestEachActionHasAnEffect: also what only waits is named, so that none is forgotten.
func TestEachActionHasAnEffect(t *testing.T) {
	g := NewWithT(t)
	effects := newWorld(t).manager().effects()
	g.Expect(slices.Collect(maps.Keys(effects))).To(ConsistOf(plan.Actions()))
	for action, effect := range effects {
		waits := slices.Contains([]plan.Action{plan.Stable, plan.Refuse, plan.DeleteWorkersFirst}, action) || len(action) > 7 && action[:7] == "WaitFor"
		g.Expect(effect == nil).To(Equal(waits), string(action))
	}
}
