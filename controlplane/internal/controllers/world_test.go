package controllers

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/test/support/builders"
	"github.com/capi-talos/capi-talos/test/support/mortal"
)

const (
	testNamespace = "fleet"
	testCluster   = "one"
	testName      = "one-cp"
)

var (
	testKey         = client.ObjectKey{Namespace: testNamespace, Name: testName}
	infraMachineGVK = schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Kind: "PlainMachine"}
	templateGVK     = schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Kind: "PlainMachineTemplate"}
	testTime        = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
)

// world is a management cluster with everything around our controller played by
// the test: core Cluster API, the other providers, and Talos machines.
type world struct {
	t      *testing.T
	client client.WithWatch
	dialer *talosfake.Dialer
	talos  map[string]*talosfake.Machine
	prober *proberStub
	clock  *clocktesting.FakePassiveClock
	random *rand.Rand
	events *events.FakeRecorder
	// workload is the API server of the cluster.
	workload client.Client

	// life is that of the managers.
	life mortal.Life
	// core plays the deletion of Machines too.
	core bool
	// gone are the nodes of Machines that are gone.
	gone []*talosfake.Machine
	// quiet nodes do not tell that they have changed.
	quiet bool
}

// proberStub answers for the API server.
type proberStub struct {
	mu    sync.Mutex
	state health.APIServerState
}

func (p *proberStub) set(state health.APIServerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

func (p *proberStub) Probe(context.Context, []byte) (health.APIServerState, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.state, nil
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()

	return builders.Scheme(t, corev1.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, backupv1.AddToScheme)
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{
		t:      t,
		dialer: talosfake.NewDialer(),
		talos:  map[string]*talosfake.Machine{},
		prober: &proberStub{state: health.APIServerSilent},
		clock:  clocktesting.NewFakePassiveClock(testTime),
		random: rand.New(rand.NewPCG(1, 2)),
		events: events.NewFakeRecorder(1000),
	}
	if len(objects) == 0 {
		objects = []client.Object{newCluster(), newControlPlane()}
	}
	objects = append(objects, newTemplate(), newCRD(templateGVK), newCRD(infraMachineGVK), newCRD(bootstrapv1.GroupVersion.WithKind("TalosConfig")))
	w.workload = newWorkload()
	w.client = fake.NewClientBuilder().
		WithScheme(testScheme(t)).
		WithObjects(objects...).
		WithStatusSubresource(&controlplanev1.TalosControlPlane{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: w.create}).
		Build()

	return w
}

// create creates an object with the time of that, as the API server does.
func (w *world) create(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	object.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))

	return c.Create(ctx, object, opts...)
}

// manager starts a manager anew, with empty memory.
func (w *world) manager() *Reconciler {
	c := w.life.Client(w.client)
	r := &Reconciler{
		Client: c, APIReader: c, SecretCachingClient: c,
		Dialer: mortalDialer{Dialer: w.dialer, world: w}, Prober: w.prober, Watcher: machinewatch.New(w.t.Context(), w.dialer, nodes.MachineOf),
		Clock: w.clock, Random: w.random, Recorder: w.events,
		ClusterCache: workloadCache{client: w.workload},
	}
	r.init(w.t.Context())

	return r
}

// mortalDialer is a dialer of a manager that may be dead, and that may die at a call
// that changes a node.
type mortalDialer struct {
	*talosfake.Dialer
	world *world
}

// Secure implements talosclient.Dialer.
func (d mortalDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	if err := d.world.life.Alive(); err != nil {
		return nil, err
	}
	node, err := d.Dialer.Secure(ctx, address, creds)

	return mortalNode{Node: node, world: d.world}, err
}

type mortalNode struct {
	talosclient.Node
	world *world
}

func (n mortalNode) Bootstrap(ctx context.Context) error {
	return n.world.life.Around(func() error { return n.Node.Bootstrap(ctx) })
}

func (n mortalNode) EtcdRecover(ctx context.Context, database io.Reader) error {
	return n.world.life.Around(func() error { return n.Node.EtcdRecover(ctx, database) })
}

func (n mortalNode) BootstrapFromSnapshot(ctx context.Context) error {
	return n.world.life.Around(func() error { return n.Node.BootstrapFromSnapshot(ctx) })
}

func (n mortalNode) Restart(ctx context.Context) error {
	return n.world.life.Around(func() error { return n.Node.Restart(ctx) })
}

func (n mortalNode) EtcdForfeitLeadership(ctx context.Context) error {
	return n.world.life.Around(func() error { return n.Node.EtcdForfeitLeadership(ctx) })
}

func (n mortalNode) EtcdLeave(ctx context.Context) error {
	return n.world.life.Around(func() error { return n.Node.EtcdLeave(ctx) })
}

func (n mortalNode) EtcdRemoveMember(ctx context.Context, id uint64) error {
	return n.world.life.Around(func() error { return n.Node.EtcdRemoveMember(ctx, id) })
}

// reconcile is one pass of a manager, after all nodes have told that they may
// have changed, unless they are to be quiet.
func (w *world) reconcile(r *Reconciler) error {
	for _, machine := range w.machines() {
		if !w.quiet {
			r.memory.Forget(client.ObjectKeyFromObject(machine))
		}
	}
	_, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: testKey})

	return err
}

// settle lets a manager and the others take turns, as often as is surely enough.
func (w *world) settle(r *Reconciler) {
	w.t.Helper()
	for range 12 {
		NewWithT(w.t).Expect(w.reconcile(r)).To(Succeed())
		w.others()
	}
}

// others play core Cluster API, the bootstrap provider, the infrastructure
// provider and the machines for a moment.
func (w *world) others() {
	w.t.Helper()
	w.promote()
	if w.core {
		w.hold()
		w.release()
	}
	for _, machine := range w.machines() {
		if machine.DeletionTimestamp.IsZero() && machine.Spec.ProviderID == "" && !w.held(machine.Name) {
			w.createSecrets()
			w.provision(machine)
		}
	}
}

func (w *world) createSecrets() {
	w.t.Helper()
	g := NewWithT(w.t)
	for name, data := range testSecrets(w.t) {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: testCluster}},
			Data:       data,
		}
		g.Expect(client.IgnoreAlreadyExists(w.client.Create(w.t.Context(), secret))).To(Succeed())
	}
}

func (w *world) controlPlane() *controlplanev1.TalosControlPlane {
	w.t.Helper()
	controlPlane := &controlplanev1.TalosControlPlane{}
	NewWithT(w.t).Expect(w.client.Get(w.t.Context(), testKey, controlPlane)).To(Succeed())

	return controlPlane
}

func (w *world) machines() []*clusterv1.Machine {
	w.t.Helper()
	list := &clusterv1.MachineList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())
	var machines []*clusterv1.Machine
	for i := range list.Items {
		machines = append(machines, &list.Items[i])
	}

	return machines
}

func (w *world) infraMachines() []unstructured.Unstructured {
	w.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(infraMachineGVK.GroupVersion().WithKind(infraMachineGVK.Kind + "List"))
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

func (w *world) talosConfigs() []bootstrapv1.TalosConfig {
	w.t.Helper()
	list := &bootstrapv1.TalosConfigList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

// bootstraps is how often etcd was asked to bootstrap, on all machines.
func (w *world) bootstraps() int {
	total := 0
	for _, machine := range slices.Concat(slices.Collect(maps.Values(w.talos)), w.gone) {
		total += machine.Bootstraps()
	}

	return total
}

// change edits the control plane as a user would.
func (w *world) change(edit func(*controlplanev1.TalosControlPlane)) {
	w.t.Helper()
	controlPlane := w.controlPlane()
	before := controlPlane.DeepCopy()
	edit(controlPlane)
	NewWithT(w.t).Expect(w.client.Patch(w.t.Context(), controlPlane, client.MergeFrom(before))).To(Succeed())
}

// loseStatus empties the status of the control plane, as a move does.
func (w *world) loseStatus() {
	w.t.Helper()
	controlPlane := w.controlPlane()
	controlPlane.Status = controlplanev1.TalosControlPlaneStatus{}
	NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), controlPlane)).To(Succeed())
}

func newCluster() *clusterv1.Cluster {
	cluster := builders.Cluster(testNamespace, testCluster)
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.100", Port: 6443}
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: controlplanev1.GroupVersion.Group, Kind: "TalosControlPlane", Name: testName,
	}

	return cluster
}

func newControlPlane() *controlplanev1.TalosControlPlane {
	return &controlplanev1.TalosControlPlane{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: testName, UID: "control-plane-uid",
			Labels: builders.Labels(newCluster()), OwnerReferences: builders.OwnedByCluster(newCluster()),
		},
		Spec: controlplanev1.TalosControlPlaneSpec{
			Replicas: ptr.To(int32(1)),
			Version:  "v1.36.3",
			MachineTemplate: controlplanev1.TalosControlPlaneMachineTemplate{
				ObjectMeta: clusterv1.ObjectMeta{Labels: map[string]string{"tier": "gold"}, Annotations: map[string]string{"note": "a"}},
				Spec: controlplanev1.TalosControlPlaneMachineTemplateSpec{
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: templateGVK.Group, Kind: templateGVK.Kind, Name: "plain"},
				},
			},
			TalosConfigSpec: bootstrapv1.TalosConfigSpec{GenerateType: "controlplane", TalosVersion: "v1.13", Hostname: bootstrapv1.HostnameSpec{Source: "MachineName"}},
		},
	}
}

func newTemplate() *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"size": "large"}}},
	}}
	template.SetGroupVersionKind(templateGVK)
	template.SetNamespace(testNamespace)
	template.SetName("plain")

	return template
}

func newCRD(gvk schema.GroupVersionKind) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name:   contract.CalculateCRDName(gvk.Group, gvk.Kind),
			Labels: map[string]string{clusterv1.GroupVersion.Group + "/v1beta2": gvk.Version},
		},
	}
}
