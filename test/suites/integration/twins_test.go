package integration

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// TestManagersRunTwice: each of our managers runs twice at the same time, as when a leader was
// paused and another one was elected. Neither knows of the other one, and etcd is bootstrapped
// once, loses no quorum, and all steps of the main job end well.
func TestManagersRunTwice(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	for _, name := range world.Stack.Managers.Ours() {
		twin, err := world.Stack.Twin(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { g.Expect(twin.Kill()).To(Succeed()) })
		g.Expect(twin.Start(ctx)).To(Succeed())
	}
	machines := newFleet(t, simfleet.Options{})
	scenario := newScenario(t, machines, "twice", nil)
	scenario.Workers = []int{1, 2}
	results, err := scenario.Run(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	demo.Table(t.Output(), results)
	g.Expect(machines.Bootstraps()).To(Equal(1), "etcd was bootstrapped once")
}
