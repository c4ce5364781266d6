package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// TestManagersAreKilledAtEachStep kills all managers with SIGKILL in the middle of each
// step, after a seeded number of changes of what they work on, and starts them again. A
// step that is over before that goes undisturbed.
func TestManagersAreKilledAtEachStep(t *testing.T) {
	// seed is that of the moments, which are from least to most, and enough is how many
	// steps must have machines that come or go when the managers die.
	const name, seed, least, most, enough = "killed", 5, 5, 20, 5
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	changes, random := watchChanges(t, name), rand.New(rand.NewPCG(seed, seed))
	kills, middles := 0, 0
	scenario := newScenario(t, machines, name, func(ctx context.Context, step string, do func(context.Context) error) error {
		moment, done := least+random.IntN(most-least+1), make(chan error, 1)
		go func() { done <- do(ctx) }()
		for i := range moment {
			select {
			case err := <-done:
				t.Logf("%s was over after %d changes, before change %d (seed %d)", step, i, moment, seed)
				return err
			case <-changes:
			}
		}
		kills++
		middle := isUnderWay(ctx, g, name)
		if middle {
			middles++
		}
		t.Logf("%s: the managers die after change %d (seed %d), machines come or go: %t", step, moment, seed, middle)
		return errors.Join(world.Stack.Managers.Restart(ctx), <-done)
	})
	results, err := scenario.Run(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	demo.Table(t.Output(), results)
	t.Logf("killed in %d of %d steps, in %d of them in the middle", kills, len(results), middles)
	g.Expect(middles).To(BeNumerically(">=", enough))
	g.Expect(machines.Bootstraps()).To(Equal(1), "etcd was bootstrapped once")
}

// watchChanges tells who waits for it of each change of machines in a namespace.
func watchChanges(t *testing.T, namespace string) <-chan struct{} {
	t.Helper()
	g := NewWithT(t)
	changes := make(chan struct{})
	for _, list := range []client.ObjectList{&clusterv1.MachineList{}, &controlplanev1.TalosControlPlaneList{}, &infrav1.TalosMachineList{}, &infrav1.TalosHostList{}} {
		events, err := world.Client.Watch(t.Context(), list, client.InNamespace(namespace))
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(events.Stop)
		go func() {
			for range events.ResultChan() {
				select {
				case changes <- struct{}{}:
				default:
				}
			}
		}()
	}
	return changes
}

// isUnderWay reports whether there are Machines too many or too few, or one of them or a
// host is not what it is to be.
func isUnderWay(ctx context.Context, g Gomega, namespace string) bool {
	machines, hosts := &clusterv1.MachineList{}, &infrav1.TalosHostList{}
	g.Expect(world.Client.List(ctx, machines, client.InNamespace(namespace))).To(Succeed())
	g.Expect(world.Client.List(ctx, hosts, client.InNamespace(namespace))).To(Succeed())
	return len(machines.Items) != int(replicasOf(ctx, g, namespace)) || slices.ContainsFunc(machines.Items, func(machine clusterv1.Machine) bool {
		return !machine.DeletionTimestamp.IsZero() || told(&machine, clusterv1.AvailableCondition).Status != metav1.ConditionTrue
	}) || slices.ContainsFunc(hosts.Items, func(host infrav1.TalosHost) bool {
		return host.Status.State != infrav1.HostAvailable && host.Status.State != infrav1.HostProvisioned
	})
}
