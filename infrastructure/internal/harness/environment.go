// Package harness is the environment of the tests of the infrastructure provider: a
// management cluster with a simulated API server, scheduler and kubelet, machines, and
// managers that may die at each of their writes. It is for tests alone.
package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/container"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
	"github.com/capi-talos/capi-talos/test/support/builders"
	"github.com/capi-talos/capi-talos/test/support/mortal"
)

const (
	// TestNamespace is the namespace of all.
	TestNamespace = "fleet"
	// TestCluster is the name of the Cluster.
	TestCluster = "one"
	// tick is how far the clock goes in a round.
	tick = 5 * time.Second
	// Rounds are surely enough for anything that does not wait for the clock.
	Rounds = 12
)

var (
	// TestTime is when all begins.
	TestTime       = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	errTerminating = errors.New("the namespace is being terminated")
)

// Environment is a management cluster and its machines, without anybody else.
type Environment struct {
	T      *testing.T
	Client client.WithWatch
	Dialer *talosfake.Dialer
	Clock  *clocktesting.FakePassiveClock
	Random *rand.Rand
	events *events.FakeRecorder

	// Life is that of the managers.
	Life mortal.Life
	// readEvents are the events that were read.
	readEvents []string
	// Reads counts what managers read of the management cluster, as far as no cache
	// answers it.
	Reads int
	// Listed counts the TalosHosts that were listed.
	Listed int
	// refused counts the writes that the API server has refused.
	refused int
	// asked counts the calls of managers to machines by address, without those of
	// watches, and watched the open watches.
	countMu sync.Mutex
	Asked   map[string]int
	watched map[string]int

	// Terminating reports whether the namespace is being deleted: nothing can be made.
	Terminating bool

	// BeforeUpdate, when set, runs before the next update of an object.
	BeforeUpdate func(client.Object)

	// PodRuntime runs Pods, and gives Services addresses.
	PodRuntime *PodRuntime
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()

	return builders.Scheme(t, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme,
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme)
}

// New is a management cluster with some objects, beside Cluster "one" with its
// TalosCluster and its secrets.
func New(t *testing.T, objects ...client.Object) *Environment {
	t.Helper()
	w := &Environment{
		T:      t,
		Dialer: talosfake.NewDialer(),
		Clock:  clocktesting.NewFakePassiveClock(TestTime),
		Random: rand.New(rand.NewPCG(1, 2)),
		events: events.NewFakeRecorder(10000),
		Asked:  map[string]int{}, watched: map[string]int{},
	}
	w.PodRuntime = newPodRuntime(w)
	objects = append(objects, NewCluster(), newTalosCluster(), NewBundleSecret(t))
	builder := fake.NewClientBuilder().WithScheme(testScheme(t))
	for field, keys := range taloshost.Indexes() {
		builder.WithIndex(&infrav1.TalosHost{}, field, keys)
	}
	w.Client = builder.
		WithObjects(objects...).
		WithStatusSubresource(&infrav1.TalosCluster{}, &infrav1.TalosMachine{}, &infrav1.TalosHost{}, &infrav1.TalosMachineTemplate{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(w.apiServer()).
		Build()

	return w
}

// apiServer is what the API server does beside storing objects.
func (w *Environment) apiServer() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			err := w.refuseCreation(ctx, o)
			if err == nil {
				err = w.PodRuntime.admit(o)
			}
			if err != nil {
				w.refused++
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if before := w.BeforeUpdate; before != nil {
				w.BeforeUpdate = nil
				before(o)
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := w.PodRuntime.Change(o); err != nil {
				w.refused++
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			w.PodRuntime.Deleted = append(w.PodRuntime.Deleted, fmt.Sprintf("%T", o))
			return c.Delete(ctx, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if hosts, ok := list.(*infrav1.TalosHostList); ok {
				w.Listed += len(hosts.Items)
			}
			return err
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, isSecret := o.(*corev1.Secret); isSecret {
				w.Reads++ // No cache holds them, but the one for Secrets.
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
}

// Manager is one process: its memory is gone when it dies.
type Manager struct {
	Clusters *controllers.ClusterReconciler
	Machines *controllers.MachineReconciler
	Hosts    *controllers.HostReconciler

	Probes                      *probe.Log
	Counts                      *metrics.Counts
	hostWatcher, machineWatcher *machinewatch.Watcher
	openWatches                 int
}

// Manager starts a manager: another process, which knows nothing of the one before.
func (w *Environment) Manager() *Manager {
	m, c := &Manager{}, w.held(w.Life.Client(w.Client))
	pace := pacing.Pacing{Interval: 10 * time.Second, Clock: w.Clock, Random: w.Random}
	dialer := mortalDialer{Dialer: w.Dialer, Environment: w}
	watches := watchDialer{Dialer: w.Dialer, Environment: w, open: &m.openWatches}
	live := liveReader{Reader: c, Environment: w}
	store := credentials.New(c, cachedReader{Reader: c, Environment: w}, w.Clock)
	m.machineWatcher = machinewatch.New(w.T.Context(), watches, controllers.TalosMachineOf)
	m.hostWatcher = machinewatch.New(w.T.Context(), watches, controllers.HostOf)
	m.Probes, m.Counts = probe.NewLog(w.Clock), metrics.NewCounts()
	m.Clusters = &controllers.ClusterReconciler{Client: c, APIReader: live, ClusterDomain: "example.local", Recorder: w.events}
	m.Machines = &controllers.MachineReconciler{
		Client: c, APIReader: live, Changes: m.machineWatcher.Events(),
		Metal: &metal.Backend{
			Client: c, APIReader: live, Dialer: dialer, Credentials: store, Probes: m.Probes, Counts: m.Counts, Tracker: machinewatch.NewTracker(m.machineWatcher, w.Clock),
			Clock: w.Clock, Random: w.Random, Recorder: w.events, Pacing: pace,
		},
		Container: &container.Backend{
			Client: c, APIReader: live, Dialer: dialer, Credentials: store, Tracker: machinewatch.NewTracker(m.machineWatcher, w.Clock), ClusterDomain: "example.local",
			Clock: w.Clock, Random: w.Random, Recorder: w.events, Pacing: pace,
		},
	}
	m.Hosts = &controllers.HostReconciler{
		Client: c, APIReader: live, Dialer: dialer, Credentials: store,
		Clock: w.Clock, Recorder: w.events, Pacing: pace,
		Probes: m.Probes, Counts: m.Counts, Tracker: machinewatch.NewTracker(m.hostWatcher, w.Clock), Changes: m.hostWatcher.Events(),
	}

	return m
}

// refuseCreation is what the API server answers in a namespace that terminates.
func (w *Environment) refuseCreation(_ context.Context, object client.Object) error {
	if !w.Terminating {
		return nil
	}

	return apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, object.GetName(), errTerminating)
}
