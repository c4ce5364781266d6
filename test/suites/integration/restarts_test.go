package integration

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// TestManagersAreKilledAtEachStep kills all managers with SIGKILL while a step
// is under way, and starts them again, once per step.
func TestManagersAreKilledAtEachStep(t *testing.T) {
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	kills := 0
	scenario := newScenario(t, machines, "killed", func(ctx context.Context, _ string, do func(context.Context) error) error {
		done := make(chan error, 1)
		go func() { done <- do(ctx) }()
		kills++
		if err := world.Stack.Managers.Restart(ctx); err != nil {
			return err
		}
		return <-done
	})
	results, err := scenario.Run(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	demo.Table(t.Output(), results)
	g.Expect(kills).To(Equal(len(results)))
	g.Expect(machines.Bootstraps()).To(Equal(1), "etcd was bootstrapped once")
}
