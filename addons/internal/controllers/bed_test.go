package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/content"
	"github.com/capi-talos/capi-talos/addons/internal/metrics"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/test/support/series"
)

const namespace = "fleet"

// clusters are workload clusters: a fake Helm each, and whether they answer.
type clusters struct {
	clustercache.ClusterCache

	mu    sync.Mutex
	clock *clocktesting.FakeClock
	known map[string]*workload
	gone  map[string]bool
	// untried says that no connection was tried yet, as after a start.
	untried bool
}

// workload is one workload cluster.
type workload struct {
	*helmfake.Helm

	mu      sync.Mutex
	drifted []addonv1.DriftedObject
	waiting string
	// namespaceMissing says that the cluster has no namespace.
	namespaceMissing bool
	// noDrift and noCorrect are why drift cannot be looked for, and not corrected; nil when
	// it can.
	noDrift, noCorrect error
}

func (w *workload) HasNamespace(context.Context, string) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	return !w.namespaceMissing, nil
}

func (w *workload) Drift(context.Context, release.Content) ([]addonv1.DriftedObject, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	return slices.Clone(w.drifted), w.noDrift
}

func (w *workload) Correct(context.Context, release.Content, []addonv1.DriftedObject) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noCorrect == nil {
		w.drifted = nil
	}

	return w.noCorrect
}

func (w *workload) Waiting(context.Context, release.Content) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.waiting, nil
}

func (c *clusters) of(name string) *workload {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[name] == nil {
		c.known[name] = &workload{Helm: &helmfake.Helm{Clock: c.clock}}
	}

	return c.known[name]
}

func (c *clusters) setReachable(name string, reachable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[name] = !reachable
}

// GetRESTConfig implements clustercache.ClusterCache.
func (c *clusters) GetRESTConfig(_ context.Context, cluster client.ObjectKey) (*rest.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone[cluster.Name] {
		return nil, clustercache.ErrClusterNotConnected
	}

	return &rest.Config{}, nil
}

// GetHealthCheckingState implements clustercache.ClusterCache.
func (c *clusters) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.untried {
		return clustercache.HealthCheckingState{}
	}

	return clustercache.HealthCheckingState{LastProbeTime: c.clock.Now()}
}

func (c *clusters) setUntried(untried bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untried = untried
}

func (c *clusters) connect(ctx context.Context, cluster types.NamespacedName, _ []addonv1.DriftIgnoreRule) (Connection, error) {
	if _, err := c.GetRESTConfig(ctx, cluster); err != nil {
		return Connection{}, err
	}
	found := c.of(cluster.Name)

	return Connection{Helm: found, Objects: found}, nil
}

// shelf is a repository with the newest version of each chart. Its archives are what they
// are called.
type shelf struct {
	mu       sync.Mutex
	versions map[string]string
	err      error
	asked    int
	// noArchive is why archives cannot be fetched; nil when they can.
	noArchive error
	// whileAsked is called while a source is asked; nil does nothing.
	whileAsked func()
}

func (s *shelf) Resolve(_ context.Context, from addonv1.AddonSource, _ source.Access, _ addonv1.ChartStatus) (addonv1.ChartStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.whileAsked != nil {
		s.whileAsked()
	}
	if s.err != nil {
		return addonv1.ChartStatus{}, s.err
	}
	version := from.Repository.Version
	if version == "" {
		version = s.versions[from.Repository.Chart]
	}

	return addonv1.ChartStatus{Name: from.Repository.Chart, Version: version, Digest: "sha256:" + from.Repository.Chart + version}, nil
}

func (s *shelf) Take(archive []byte) (addonv1.ChartStatus, error) {
	return addonv1.ChartStatus{Name: "packed", Version: string(archive), Digest: source.DigestOf(archive)}, nil
}

func (s *shelf) Archive(_ context.Context, _ addonv1.AddonSource, _ source.Access, chart addonv1.ChartStatus) ([]byte, error) {
	return []byte(chart.Version), s.noArchive
}

// bed is a management cluster with the controllers of the provider.
type bed struct {
	*WithT

	t        *testing.T
	client   client.WithWatch
	clock    *clocktesting.FakeClock
	clusters *clusters
	shelf    *shelf
	events   *events.FakeRecorder
	addons   *AddonReconciler
	releases *ReleaseReconciler
	registry *prometheus.Registry
}

func newBed(t *testing.T, objects ...client.Object) *bed {
	t.Helper()
	scheme := runtime.NewScheme()
	g := NewWithT(t)
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, addonv1.AddToScheme, apiextensionsv1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	b := &bed{
		WithT: g, t: t, clock: clock, shelf: &shelf{versions: map[string]string{"demo": "1.0.0", "cni": "1.0.0"}},
		clusters: &clusters{clock: clock, known: map[string]*workload{}, gone: map[string]bool{}}, events: events.NewFakeRecorder(10000),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithStatusSubresource(&addonv1.TalosClusterAddon{}, &addonv1.TalosClusterAddonRelease{}, &clusterv1.Cluster{}).Build(),
	}
	b.start()

	return b
}

// start starts a new manager, which knows nothing of the former one.
func (b *bed) start() {
	reader := &content.Reader{Cached: b.client, Live: b.client}
	b.addons = &AddonReconciler{Client: b.client, APIReader: b.client, Content: reader, Charts: b.shelf, Clock: b.clock, Random: requeue.SharedRandom{}, Recorder: b.events}
	b.addons.init()
	work := jobs.New[addonv1.ReleaseAction, release.Result](b.t.Context(), jobs.Limits{Total: 50, PerCluster: 5})
	counts := metrics.New(b.clock, work.Count)
	b.registry = prometheus.NewRegistry()
	b.Expect(counts.Register(b.registry)).To(Succeed())
	b.releases = &ReleaseReconciler{
		Client: b.client, APIReader: b.client, ClusterCache: b.clusters, Connect: b.clusters.connect, Content: reader, Charts: b.shelf,
		Jobs: work, Metrics: counts, Clock: b.clock, Random: requeue.SharedRandom{}, Recorder: b.events,
	}
	b.releases.init()
}

// settle reconciles everything until nothing changes any more.
func (b *bed) settle() {
	b.t.Helper()
	before := ""
	for range 60 {
		b.round()
		now := b.versions()
		if now == before {
			return
		}
		before = now
	}
	b.t.Fatal("it does not settle")
}

// round reconciles everything once, and waits for the jobs.
func (b *bed) round() {
	b.t.Helper()
	for _, addon := range b.allAddons() {
		_, err := b.addons.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&addon)})
		b.Expect(err).NotTo(HaveOccurred())
	}
	for _, one := range b.allReleases() {
		key := client.ObjectKeyFromObject(&one)
		_, err := b.releases.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: key})
		b.Expect(err).NotTo(HaveOccurred())
		b.Eventually(func() bool { _, running := b.releases.Jobs.Running(key); return running }).WithTimeout(time.Minute).Should(BeFalse())
	}
}

func (b *bed) versions() string {
	var text strings.Builder
	for _, addon := range b.allAddons() {
		text.WriteString(addon.Name + addon.ResourceVersion + " ")
	}
	for _, one := range b.allReleases() {
		text.WriteString(one.Name + one.ResourceVersion + fmt.Sprint(b.releases.Jobs.Result(client.ObjectKeyFromObject(&one)) != nil) + " ")
	}

	return text.String()
}

func (b *bed) allAddons() []addonv1.TalosClusterAddon {
	list := &addonv1.TalosClusterAddonList{}
	b.Expect(b.client.List(b.t.Context(), list)).To(Succeed())

	return list.Items
}

func (b *bed) allReleases() []addonv1.TalosClusterAddonRelease {
	list := &addonv1.TalosClusterAddonReleaseList{}
	b.Expect(b.client.List(b.t.Context(), list)).To(Succeed())

	return list.Items
}

// counted are the series of a metric that are not 0.
func (b *bed) counted(metric string) []string { return series.NonZero(b, b.registry, metric) }

func (b *bed) create(objects ...client.Object) {
	b.t.Helper()
	for _, object := range objects {
		b.Expect(b.client.Create(b.t.Context(), object)).To(Succeed())
	}
}

// edit changes an object of the management cluster.
func edit[T client.Object](b *bed, object T, change func(T)) {
	b.t.Helper()
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	change(object)
	object.SetGeneration(object.GetGeneration() + 1)
	b.Expect(b.client.Update(b.t.Context(), object)).To(Succeed())
}

func (b *bed) addon(name string) *addonv1.TalosClusterAddon {
	b.t.Helper()
	found := &addonv1.TalosClusterAddon{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, found)).To(Succeed())

	return found
}

// release is that of an add-on in a cluster; nil when there is none.
func (b *bed) release(addon, cluster string) *addonv1.TalosClusterAddonRelease {
	b.t.Helper()
	found := &addonv1.TalosClusterAddonRelease{}
	err := b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: naming.Release(addon, cluster)}, found)
	b.Expect(client.IgnoreNotFound(err)).To(Succeed())
	if err != nil {
		return nil
	}

	return found
}

// deployed is the newest revision in a cluster: "<revision> <version>"; empty when there is
// none.
func (b *bed) deployed(addon, cluster string) string {
	history := b.clusters.of(cluster).Revisions(release.Target{Namespace: "default", Name: addon})
	if len(history) == 0 {
		return ""
	}

	return fmt.Sprintf("%d %s", history[0].Number, history[0].Version)
}

// reason is that of a condition, with its status.
func reason(object conditions.Getter, conditionType string) string {
	found := conditions.Get(object, conditionType)
	if found == nil {
		return "none"
	}

	return fmt.Sprint(found.Status, " ", found.Reason)
}

// message is that of a condition.
func message(object conditions.Getter, conditionType string) string {
	return conditions.GetMessage(object, conditionType)
}

func clusterOf(name string, labels map[string]string) *clusterv1.Cluster {
	made := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	made.Status.Initialization.ControlPlaneInitialized = ptr.To(true)

	return made
}

func addonOf(name string, changes ...func(*addonv1.TalosClusterAddon)) *addonv1.TalosClusterAddon {
	made := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	made.Spec.ClusterSelector.MatchLabels = map[string]string{"addons": "on"}
	made.Spec.Source.Repository = addonv1.RepositorySource{URL: "https://example.com", Chart: "demo"}
	for _, change := range changes {
		change(made)
	}

	return made
}

var on = map[string]string{"addons": "on"}

func requestFor(object client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
}
