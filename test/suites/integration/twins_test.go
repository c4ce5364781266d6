package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// TestManagersRunTwice: each of our managers runs twice at the same time, as when a leader was
// paused and another one was elected. Neither knows of the other one, and the caches of one of
// them are three seconds behind. Etcd is bootstrapped once, loses no quorum, and all steps of
// the main job end well.
func TestManagersRunTwice(t *testing.T) {
	const lag = 3 * time.Second
	g, ctx := NewWithT(t), t.Context()
	for _, name := range world.Stack.Managers.Ours() {
		twin, err := world.Stack.Twin(ctx, name)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { g.Expect(twin.Kill()).To(Succeed()) })
		kubeconfig, err := world.Stack.Behind(ctx, twin, lag)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(twin.RestartWith(ctx, "--kubeconfig="+kubeconfig)).To(Succeed())
	}
	machines := newFleet(t, simfleet.Options{})
	scenario := newScenario(t, machines, "twice", nil)
	scenario.Workers = []int{1, 2}
	results, err := scenario.Run(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	demo.Table(t.Output(), results)
	g.Expect(machines.Bootstraps()).To(Equal(1), "etcd was bootstrapped once")
}
