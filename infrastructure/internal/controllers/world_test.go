package controllers

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/follow"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
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
	testTime  = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	errKilled = errors.New("the manager was killed")
)

// world is a management cluster and its machines, without anybody else.
type world struct {
	t      *testing.T
	client client.Client
	dialer *talosfake.Dialer
	clock  *clocktesting.FakePassiveClock
	random *rand.Rand
	events *events.FakeRecorder

	// killAt is the number of the effect at which the manager dies; 0 is never.
	// An effect is a write, or a call that changes a machine.
	killAt  int
	effects int
	dead    bool
	// beforeUpdate, when set, runs before the next update of an object.
	beforeUpdate func(client.Object)
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme,
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
	}
	objects = append(objects, newCluster(), newTalosCluster(), newBundleSecret(t))
	w.client = fake.NewClientBuilder().
		WithScheme(testScheme(t)).
		WithObjects(objects...).
		WithStatusSubresource(&infrav1.TalosCluster{}, &infrav1.TalosMachine{}, &infrav1.TalosHost{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(w.mortality()).
		Build()

	return w
}

// effect tells whether the manager lives to have one.
func (w *world) effect() error {
	if w.dead {
		return errKilled
	}
	w.effects++
	if w.killAt > 0 && w.effects >= w.killAt {
		w.dead = true
		return errKilled
	}

	return nil
}

func (w *world) alive() error {
	if w.dead {
		return errKilled
	}

	return nil
}

// mortality lets the manager die before a write: from then on every call fails,
// until there is a new manager.
func (w *world) mortality() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := w.effect(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := w.effect(); err != nil {
				return err
			}
			if before := w.beforeUpdate; before != nil {
				w.beforeUpdate = nil
				before(o)
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := w.effect(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := w.effect(); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := w.effect(); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, o, p, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := w.alive(); err != nil {
				return err
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

	return mortalNode{Node: node, world: d.world}, err
}

func (d mortalDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	node, err := d.Dialer.Secure(ctx, address, creds)

	return mortalNode{Node: node, world: d.world}, err
}

type mortalNode struct {
	talosclient.Node
	world *world
}

func (n mortalNode) ApplyConfiguration(ctx context.Context, configuration []byte) error {
	return n.around(func() error { return n.Node.ApplyConfiguration(ctx, configuration) })
}

func (n mortalNode) Reset(ctx context.Context, options talosclient.ResetOptions) error {
	return n.around(func() error { return n.Node.Reset(ctx, options) })
}

func (n mortalNode) around(call func() error) error {
	if err := n.world.effect(); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}

	return n.world.effect()
}

// manager is one process: its memory is gone when it dies.
type manager struct {
	clusters *ClusterReconciler
	machines *MachineReconciler
	hosts    *HostReconciler
}

func (w *world) manager() *manager {
	const probeInterval = 10 * time.Second
	dialer := mortalDialer{Dialer: w.dialer, world: w}
	store := credentials.New(w.client, w.client, w.clock)
	follower := follow.New(w.t.Context(), w.dialer, TalosMachineOf)

	return &manager{
		clusters: &ClusterReconciler{Client: w.client},
		machines: &MachineReconciler{
			Client: w.client, Changes: follower.Events(),
			Metal: &metal.Machines{
				Client: w.client, APIReader: w.client, Dialer: dialer, Credentials: store, Follower: follower,
				Clock: w.clock, Random: w.random, Recorder: w.events, ProbeInterval: probeInterval,
			},
		},
		hosts: &HostReconciler{
			Client: w.client, APIReader: w.client, Dialer: dialer, Credentials: store,
			Clock: w.clock, Random: w.random, Recorder: w.events, ProbeInterval: probeInterval,
		},
	}
}

// round lets the manager look at everything once.
func (w *world) round(m *manager) {
	w.t.Helper()
	for _, host := range w.hosts() {
		w.pass(m.hosts.Reconcile, &host)
	}
	for _, machine := range w.machines() {
		w.pass(m.machines.Reconcile, &machine)
	}
	for _, cluster := range w.talosClusters() {
		w.pass(m.clusters.Reconcile, &cluster)
	}
	w.clock.SetTime(w.clock.Now().Add(tick))
}

func (w *world) pass(reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), object client.Object) {
	w.t.Helper()
	_, err := reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	if w.dead {
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
