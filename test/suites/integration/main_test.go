// Package integration is rung 2: the real kube-apiserver, etcd and Cluster API
// core, our managers as processes under their shipped rights, and talossim in
// place of machines.
package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

// timeout is how long the tests wait for what takes seconds on an idle machine. It is
// generous, because only a failure lasts that long: with a dozen clusters beside each
// other on two slow cores, one that does come up has been seen to take four minutes.
const timeout = 10 * time.Minute

// world is the management cluster that the tests share, each in namespaces and
// with a fleet of its own, several at a time: most of what they do is wait. Those
// that restart the managers are called TestManagers…: they come first, one after
// the other, or in a process with a management cluster of its own, as with make test.
var world bed.World

func TestMain(m *testing.M) {
	// The S3 servers of tests are on loopback.
	bed.Main(m, bed.Options{ManagerArgs: map[string][]string{"backup": {"--allow-local-endpoints"}}}, &world)
}

// newFleet is a fleet of pretended machines that ends with the test.
func newFleet(t *testing.T, options simfleet.Options) *simfleet.Fleet {
	t.Helper()
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	unjudged.Store(machines, t)
	t.Cleanup(func() {
		if _, found := unjudged.LoadAndDelete(machines); found && !t.Failed() {
			t.Error("the judge of etcd was not asked before the cluster went")
		}
	})
	return machines
}

// unjudged are the fleets with the tests that made them, as long as these have deleted
// no cluster: a cluster that goes takes its quorum along.
var unjudged sync.Map //nolint:gochecknoglobals // Of all tests, which run at the same time.

// expectNoOffence asks the judge of etcd about what was done to the machines of a test
// so far, once.
func expectNoOffence(t *testing.T) {
	t.Helper()
	unjudged.Range(func(machines, maker any) bool {
		if maker == t {
			unjudged.Delete(machines)
			NewWithT(t).Expect(machines.(*simfleet.Fleet).Sim.Offences()).To(BeEmpty())
		}
		return true
	})
}

// kubectl runs the real one in a namespace, as users do.
func kubectl(t *testing.T, namespace string, args ...string) {
	t.Helper()
	_, err := world.Stack.Kubectl(t.Context(), append([]string{"--namespace", namespace}, args...)...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// forgetHosts deletes the hosts of a namespace at the end of a test: the machines
// are gone then, and would be looked for for ever.
func forgetHosts(t *testing.T, namespace string) {
	t.Helper()
	t.Cleanup(func() {
		// Not fatal: a panic of the test would be lost.
		if err := world.Client.DeleteAllOf(context.WithoutCancel(t.Context()), &infrav1.TalosHost{}, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	})
}

// newScenario is the main job in a namespace of its own. around, if any, runs each of
// its steps; the judge of etcd is asked before the cluster is deleted.
func newScenario(t *testing.T, machines *simfleet.Fleet, name string, around func(ctx context.Context, step string, do func(context.Context) error) error) *demo.Scenario {
	t.Helper()
	forgetHosts(t, name)
	return &demo.Scenario{
		Management: demo.ManagementOf(world.Stack),
		Fleet:      machines, Cluster: name, Output: t.Output(), Dir: t.TempDir(),
		Around: func(ctx context.Context, step string, do func(context.Context) error) error {
			if step == "delete cluster" {
				expectNoOffence(t)
			}
			if around == nil {
				return do(ctx)
			}
			return around(ctx, step, do)
		},
	}
}
