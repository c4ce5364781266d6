package controllers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/container"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
	"github.com/capi-talos/capi-talos/test/mortal"
)

const (
	testNamespace = "fleet"
	testCluster   = "one"
	// tick is how far the clock goes in a round.
	tick = 5 * time.Second
	// rounds are surely enough for anything that does not wait for the clock.
	rounds = 12
)

var (
	testTime       = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	errTerminating = errors.New("the namespace is being terminated")
)

// world is a management cluster and its machines, without anybody else.
type world struct {
	t      *testing.T
	client client.WithWatch
	dialer *talosfake.Dialer
	clock  *clocktesting.FakePassiveClock
	random *rand.Rand
	events *events.FakeRecorder

	// life is that of the managers.
	life mortal.Life
	// noted are the events that were read.
	noted []string
	// reads counts what managers read of the management cluster, as far as no cache
	// answers it.
	reads int
	// listed counts the TalosHosts that were listed.
	listed int
	// asked counts the calls of managers to machines by address, without those of
	// watches, and watched the open watches.
	countMu sync.Mutex
	asked   map[string]int
	watched map[string]int

	// terminating reports whether the namespace is being deleted: nothing can be made.
	terminating bool

	// beforeUpdate, when set, runs before the next update of an object.
	beforeUpdate func(client.Object)

	// yard runs Pods, and gives Services addresses.
	yard *yard
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, storagev1.AddToScheme,
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme,
	} {
		NewWithT(t).Expect(add(scheme)).To(Succeed())
	}

	return scheme
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{
		t:      t,
		dialer: talosfake.NewDialer(),
		clock:  clocktesting.NewFakePassiveClock(testTime),
		random: rand.New(rand.NewPCG(1, 2)),
		events: events.NewFakeRecorder(10000),
		asked:  map[string]int{}, watched: map[string]int{},
	}
	w.yard = newYard(w)
	objects = append(objects, newCluster(), newTalosCluster(), newBundleSecret(t))
	builder := fake.NewClientBuilder().WithScheme(testScheme(t))
	for field, keys := range taloshost.Indexes() {
		builder.WithIndex(&infrav1.TalosHost{}, field, keys)
	}
	w.client = builder.
		WithObjects(objects...).
		WithStatusSubresource(&infrav1.TalosCluster{}, &infrav1.TalosMachine{}, &infrav1.TalosHost{}, &infrav1.TalosMachineTemplate{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(w.apiServer()).
		Build()

	return w
}

// ask counts a call to a machine.
func (w *world) ask(address string) {
	w.countMu.Lock()
	defer w.countMu.Unlock()
	w.asked[address]++
}

// apiServer is what the API server does beside storing objects.
func (w *world) apiServer() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := w.refuseCreation(ctx, o); err != nil {
				return err
			}
			if err := w.yard.admit(o); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if before := w.beforeUpdate; before != nil {
				w.beforeUpdate = nil
				before(o)
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := w.yard.change(o); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			w.yard.deleted = append(w.yard.deleted, fmt.Sprintf("%T", o))
			return c.Delete(ctx, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if hosts, ok := list.(*infrav1.TalosHostList); ok {
				w.listed += len(hosts.Items)
			}
			return err
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, isSecret := o.(*corev1.Secret); isSecret {
				w.reads++ // No cache holds them, but the one for Secrets.
			}
			return c.Get(ctx, key, o, opts...)
		},
	}
}

// mortalDialer is the dialer of a manager that may die before and after a call
// that changes a machine.
type mortalDialer struct {
	*talosfake.Dialer
	world *world
}

func (d mortalDialer) Maintenance(ctx context.Context, address, fingerprint string) (talosclient.Node, error) {
	node, err := d.Dialer.Maintenance(ctx, address, fingerprint)

	return d.opened(address, node, err)
}

func (d mortalDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	node, err := d.Dialer.Secure(ctx, address, creds)

	return d.opened(address, node, err)
}

// opened counts the call with which a connection is verified.
func (d mortalDialer) opened(address string, node talosclient.Node, err error) (talosclient.Node, error) {
	if err == nil {
		d.world.ask(address)
	}

	return mortalNode{Node: node, world: d.world, address: address}, err
}

type mortalNode struct {
	talosclient.Node
	world   *world
	address string
}

func (n mortalNode) Version(ctx context.Context) (string, error) {
	n.world.ask(n.address)

	return n.Node.Version(ctx)
}

func (n mortalNode) MachineStatus(ctx context.Context) (talosclient.MachineStatus, error) {
	n.world.ask(n.address)

	return n.Node.MachineStatus(ctx)
}

func (n mortalNode) Hardware(ctx context.Context) (talosclient.Hardware, error) {
	n.world.ask(n.address)

	return n.Node.Hardware(ctx)
}

func (n mortalNode) Addresses(ctx context.Context) (talosclient.Addresses, error) {
	n.world.ask(n.address)

	return n.Node.Addresses(ctx)
}

func (n mortalNode) Hostname(ctx context.Context) (string, error) {
	n.world.ask(n.address)

	return n.Node.Hostname(ctx)
}

func (n mortalNode) Volumes(ctx context.Context) ([]talosclient.Volume, error) {
	n.world.ask(n.address)

	return n.Node.Volumes(ctx)
}

func (n mortalNode) ApplyConfiguration(ctx context.Context, configuration []byte) error {
	return n.around(func() error { return n.Node.ApplyConfiguration(ctx, configuration) })
}

func (n mortalNode) Reset(ctx context.Context, options talosclient.ResetOptions) error {
	return n.around(func() error { return n.Node.Reset(ctx, options) })
}

func (n mortalNode) around(call func() error) error {
	n.world.ask(n.address)

	return n.world.life.Around(call)
}

// watchDialer is the dialer of a manager's watches, and counts them.
type watchDialer struct {
	*talosfake.Dialer
	world *world
	open  *int
}

func (d watchDialer) Maintenance(ctx context.Context, address, fingerprint string) (talosclient.Node, error) {
	return d.opened(address, func() (talosclient.Node, error) { return d.Dialer.Maintenance(ctx, address, fingerprint) })
}

func (d watchDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	return d.opened(address, func() (talosclient.Node, error) { return d.Dialer.Secure(ctx, address, creds) })
}

func (d watchDialer) opened(address string, dial func() (talosclient.Node, error)) (talosclient.Node, error) {
	node, err := dial()

	return &watchNode{Node: node, dial: dial, dialer: d, address: address}, err
}

func (d watchDialer) count(address string, by int) {
	d.world.countMu.Lock()
	defer d.world.countMu.Unlock()
	d.world.watched[address] += by
	*d.open += by
}

// watchNode is a connection that leads to whoever is at its address, as a real
// one does when it is opened again.
type watchNode struct {
	talosclient.Node
	dial    func() (talosclient.Node, error)
	dialer  watchDialer
	address string
}

// WatchMachineStatus counts a watch once it has told something: from then on the
// machine can break it.
func (n *watchNode) WatchMachineStatus(ctx context.Context, fn func(talosclient.MachineStatus)) error {
	node, err := n.dial()
	if err != nil {
		return err
	}
	n.Node = node
	told := false
	defer func() {
		if told {
			n.dialer.count(n.address, -1)
		}
	}()

	return n.Node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) {
		if !told {
			told = true
			n.dialer.count(n.address, 1)
		}
		fn(status)
	})
}

// manager is one process: its memory is gone when it dies.
type manager struct {
	clusters *ClusterReconciler
	machines *MachineReconciler
	hosts    *HostReconciler

	contacts                    *probe.Log
	counts                      *metrics.Counts
	hostWatcher, machineWatcher *machinewatch.Watcher
	openWatches                 int
}

func (w *world) manager() *manager {
	m, c := &manager{}, w.held(w.life.Client(w.client))
	pace := pacing.Pacing{Interval: 10 * time.Second, Clock: w.clock, Random: w.random}
	dialer := mortalDialer{Dialer: w.dialer, world: w}
	watches := watchDialer{Dialer: w.dialer, world: w, open: &m.openWatches}
	live := liveReader{Reader: c, world: w}
	store := credentials.New(c, cachedReader{Reader: c, world: w}, w.clock)
	m.machineWatcher = machinewatch.New(w.t.Context(), watches, TalosMachineOf)
	m.hostWatcher = machinewatch.New(w.t.Context(), watches, HostOf)
	m.contacts, m.counts = probe.NewLog(w.clock), metrics.NewCounts()
	m.clusters = &ClusterReconciler{Client: c, APIReader: live, ClusterDomain: "example.local"}
	m.machines = &MachineReconciler{
		Client: c, APIReader: live, Changes: m.machineWatcher.Events(),
		Metal: &metal.Backend{
			Client: c, APIReader: live, Dialer: dialer, Credentials: store, Probes: m.contacts, Counts: m.counts, Tracker: machinewatch.NewTracker(m.machineWatcher, w.clock),
			Clock: w.clock, Random: w.random, Recorder: w.events, Pacing: pace,
		},
		Container: &container.Backend{
			Client: c, APIReader: live, Dialer: dialer, Credentials: store, Tracker: machinewatch.NewTracker(m.machineWatcher, w.clock), ClusterDomain: "example.local",
			Clock: w.clock, Random: w.random, Recorder: w.events, Pacing: pace,
		},
	}
	m.hosts = &HostReconciler{
		Client: c, APIReader: live, Dialer: dialer, Credentials: store,
		Clock: w.clock, Recorder: w.events, Pacing: pace,
		Probes: m.contacts, Counts: m.counts, Tracker: machinewatch.NewTracker(m.hostWatcher, w.clock), Changes: m.hostWatcher.Events(),
	}

	return m
}

// rest waits until the watches of a manager have told what they know.
func (w *world) rest(m *manager) {
	w.t.Helper()
	hosts, machines := w.hosts(), w.machines()
	NewWithT(w.t).Eventually(func() bool {
		following := 0
		for i := range hosts {
			if m.hostWatcher.Watching(client.ObjectKeyFromObject(&hosts[i])) {
				following++
			}
		}
		for i := range machines {
			if m.machineWatcher.Watching(client.ObjectKeyFromObject(&machines[i])) {
				following++
			}
		}
		w.countMu.Lock()
		defer w.countMu.Unlock()

		return following <= m.openWatches
	}).WithTimeout(10*time.Second).WithPolling(time.Millisecond).Should(BeTrue(), "a watch hangs")
}

// round lets the manager look at everything once.
func (w *world) round(m *manager) {
	w.t.Helper()
	w.roundWith(m, func(error) bool { return false })
}

// roundWith is a round in which some errors are all right.
func (w *world) roundWith(m *manager, isExpected func(error) bool) {
	w.t.Helper()
	w.yard.work()
	w.rest(m)
	for _, host := range w.hosts() {
		w.pass(m.hosts.Reconcile, &host, isExpected)
	}
	for _, machine := range w.machines() {
		w.pass(m.machines.Reconcile, &machine, isExpected)
	}
	for _, cluster := range w.talosClusters() {
		w.pass(m.clusters.Reconcile, &cluster, isExpected)
	}
	w.clock.SetTime(w.clock.Now().Add(tick))
}

func (w *world) pass(reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), object client.Object, isExpected func(error) bool) {
	w.t.Helper()
	_, err := reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	if w.life.IsOver() || (err != nil && isExpected(err)) {
		return
	}
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred(), "reconciling %T %s", object, object.GetName())
}

// settle is as many rounds as are surely enough.
func (w *world) settle(m *manager) {
	w.t.Helper()
	for range rounds {
		w.round(m)
	}
}
