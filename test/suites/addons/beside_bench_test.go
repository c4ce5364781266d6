package addons

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/process"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/audit"
	"github.com/capi-talos/capi-talos/test/support/clusters"
	"github.com/capi-talos/capi-talos/test/support/tally"
)

const (
	// fleet is the namespace of the Clusters and the add-on, demo the name of the latter, and
	// of its releases and their ConfigMap.
	fleet, demoName = "fleet", "demo"
	// benchPatience is how long an add-on may take to be everywhere.
	benchPatience = 20 * time.Minute
	// benchPolling is how exactly times are measured. What is polled are caches of this
	// process, which API servers keep up to date: that costs the providers nothing.
	benchPolling = 50 * time.Millisecond
	// stillness is for how long a manager must have asked for no object to be at rest, and
	// stillnessPatience how long that is waited for.
	stillness, stillnessPatience = 3 * time.Second, 5 * time.Minute
	// observer is the program by which API servers know this process.
	observer = "observer"
)

// bench is a management cluster with the kinds of both providers, and workload clusters.
type bench struct {
	*WithT

	t *testing.T
	// folder has the logs.
	folder     string
	contenders []contender
	server     *apiserver.Server
	workloads  []*apiserver.Server
	client     client.Client
	// seen is what the management cluster has, and seenThere what each workload cluster has.
	seen      client.Reader
	seenThere []client.Reader
	registry  *ociRegistry
	ports     process.Ports
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{WithT: NewWithT(t), t: t, folder: t.TempDir()}
	b.SetDefaultEventuallyTimeout(benchPatience)
	b.SetDefaultEventuallyPollingInterval(benchPolling)
	t.Cleanup(b.ports.Release)
	built, err := apiserver.Build(t.Context(), caaph)
	b.Expect(err).NotTo(HaveOccurred())
	b.contenders = contenders(buildOurs(t, b.folder), filepath.Join(built[caaph], caaph))
	kinds, err := clusterKinds()
	b.Expect(err).NotTo(HaveOccurred())
	b.server, err = apiserver.Start(t.Context(), apiserver.Options{
		CRDs:     []string{"config/addons/crd/bases", kinds, filepath.Join(built[caaph], "crds")},
		Webhooks: []string{"config/addons/webhook/manifests.yaml"},
		Audit:    filepath.Join(b.folder, "audit"),
	})
	b.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(b.server.Stop()).To(Succeed()) })
	b.workloads, err = b.server.Several(*clusterCount)
	b.Expect(err).NotTo(HaveOccurred())
	for _, workload := range b.workloads {
		t.Cleanup(func() { NewWithT(t).Expect(workload.Stop()).To(Succeed()) })
	}
	b.observe()
	b.fill()

	return b
}

// observe begins to watch what all clusters have of the kinds that are looked at.
func (b *bench) observe() {
	b.t.Helper()
	scheme, err := newScheme()
	b.Expect(err).NotTo(HaveOccurred())
	watch := func(server *apiserver.Server, objects ...client.Object) client.Reader {
		made, err := cache.New(observing(server), cache.Options{Scheme: scheme})
		b.Expect(err).NotTo(HaveOccurred())
		go func() { _ = made.Start(b.t.Context()) }()
		for _, object := range objects {
			_, err = made.GetInformer(b.t.Context(), object)
			b.Expect(err).NotTo(HaveOccurred())
		}

		return made
	}
	var addons []client.Object
	for _, c := range b.contenders {
		addons = append(addons, objectOf(c.addon), objectOf(c.release))
	}
	b.seen = watch(b.server, addons...)
	for _, workload := range b.workloads {
		b.seenThere = append(b.seenThere, watch(workload, &corev1.ConfigMap{}))
	}
	b.client, err = client.New(observing(b.server), client.Options{Scheme: scheme})
	b.Expect(err).NotTo(HaveOccurred())
}

// observing is how this process reaches an API server.
func observing(server *apiserver.Server) *rest.Config {
	config := rest.CopyConfig(server.Config)
	config.UserAgent = observer

	return config
}

func objectOf(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(addonv1.GroupVersion.WithKind(kind))

	return object
}

// fill makes the Clusters, and publishes the chart.
func (b *bench) fill() {
	b.t.Helper()
	ctx := b.t.Context()
	b.registry = newRegistry(b.t)
	b.registry.publish(b.t, greeter.Pack("1.0.0"))
	b.Expect(b.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleet}})).To(Succeed())
	for _, secret := range b.registry.secrets(fleet, password) {
		b.Expect(b.client.Create(ctx, secret)).To(Succeed())
	}
	for i, workload := range b.workloads {
		kubeconfig, err := workload.Kubeconfig()
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(clusters.Connect(ctx, b.client, fleet, "cluster-"+strconv.Itoa(i), kubeconfig)).To(Succeed())
	}
}

// calls are what a manager has asked the management cluster and the workload clusters for in
// some time, as these have written down.
func (b *bench) calls(from, until time.Time) (management, workloads tally.Counts) {
	b.t.Helper()
	of := func(servers ...*apiserver.Server) tally.Counts {
		found := tally.Counts{}
		for _, server := range servers {
			for _, request := range b.requests(server) {
				if request.Agent != observer && !request.At.Before(from) && !request.At.After(until) {
					found[callOf(request)]++
				}
			}
		}

		return found
	}

	return of(b.server), of(b.workloads...)
}

func (b *bench) requests(server *apiserver.Server) []audit.Request {
	b.t.Helper()
	log, err := os.Open(server.AuditLog)
	b.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	found, err := audit.Read(log)
	b.Expect(err).NotTo(HaveOccurred())

	return found
}

// pathCall is a call that is for no object: discovery, and probes.
const pathCall = "get a path"

func callOf(request audit.Request) string {
	if strings.HasPrefix(request.Resource, "/") {
		return pathCall
	}

	return request.Verb + " " + request.Resource
}

// run is a provider in one round.
type run struct {
	*bench
	contender

	// namespace is that of the releases in the workload clusters. Each run has its own: an
	// API server alone does not empty one that is deleted.
	namespace string
	manager   *process.Process
}

// measure has a provider bring the add-on to all clusters, change it, rest, and take it away.
func (b *bench) measure(c contender, namespace string) figures {
	b.t.Helper()
	r, ctx := &run{bench: b, contender: c, namespace: namespace}, b.t.Context()
	r.start()
	r.awaitStillness()
	addon := objectOf(c.addon)
	manifest := strings.NewReplacer("REGISTRY", b.registry.address, "NAMESPACE", namespace).Replace(c.manifest)
	b.Expect(yaml.Unmarshal([]byte(manifest), &addon.Object)).To(Succeed())

	began := time.Now()
	b.Expect(b.client.Create(ctx, addon)).To(Succeed())
	r.awaitGreeting("hello")
	found := figures{installed: time.Since(began).Seconds()}
	r.awaitStillness()
	changing := time.Now()
	b.Expect(b.client.Patch(ctx, addon, client.RawPatch(types.MergePatchType, []byte(c.patch)))).To(Succeed())
	r.awaitGreeting("hi")
	found.changed = time.Since(changing).Seconds()
	r.awaitStillness()

	resting := time.Now()
	b.Consistently(r.manager.Err).WithTimeout(*idle).WithPolling(time.Second).ShouldNot(HaveOccurred())
	rested := time.Now()
	usage, err := process.UsageOf(r.manager.PID())
	b.Expect(err).NotTo(HaveOccurred())
	found.residentMiB, found.peakMiB, found.programMiB = usage.ResidentMiB, usage.PeakMiB, usage.FileMiB
	found.management, found.workloads = r.report("until it was changed", began, resting)
	found.restManagement, found.restWorkloads = r.report("at rest", resting, rested)
	found.restManagement /= rested.Sub(resting).Minutes()
	found.restWorkloads /= rested.Sub(resting).Minutes()

	removing := time.Now()
	b.Expect(b.client.Delete(ctx, addon)).To(Succeed())
	r.awaitNothing()
	found.removed = time.Since(removing).Seconds()
	b.Expect(r.manager.Stop(ctx, process.DefaultGrace)).To(Succeed())

	return found
}

// report tells what the manager has asked for in some time, and how often.
func (r *run) report(what string, from, until time.Time) (management, workloads float64) {
	r.t.Helper()
	own, others := r.calls(from, until)
	r.t.Logf("%s %s: calls of the management cluster: %s", r.namespace, what, own)
	r.t.Logf("%s %s: calls of the workload clusters: %s", r.namespace, what, others)

	return float64(own.Total()), float64(others.Total())
}

// start starts the manager with empty folders, and waits until it says that it is ready.
func (r *run) start() {
	r.t.Helper()
	home := r.t.TempDir()
	kubeconfig, err := r.server.Kubeconfig()
	r.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(home, "kubeconfig")
	r.Expect(os.WriteFile(file, kubeconfig, 0o600)).To(Succeed())
	port, err := r.ports.Take(r.t.Context())
	r.Expect(err).NotTo(HaveOccurred())
	health := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	r.manager, err = process.Start(process.Command{
		Name: r.name, Path: r.program, Log: filepath.Join(r.folder, r.namespace+".log"), Env: []string{"HOME=" + home, "TMPDIR=" + home},
		Args: append([]string{
			"--kubeconfig=" + file, "--health-addr=" + health, "--diagnostics-address=127.0.0.1:0",
			"--webhook-port=" + strconv.Itoa(r.server.Webhooks.LocalServingPort), "--webhook-cert-dir=" + r.server.Webhooks.LocalServingCertDir,
		}, r.arguments...),
	})
	r.Expect(err).NotTo(HaveOccurred())
	r.t.Cleanup(func() {
		NewWithT(r.t).Expect(r.manager.Kill()).To(Succeed())
		if r.t.Failed() {
			r.t.Logf("the end of the log of %s:\n%s", r.namespace, r.tail())
		}
	})
	r.Eventually(func() (*http.Response, error) {
		r.lives()
		return get(r.t, "http://"+health+"/readyz")
	}).Should(HaveHTTPStatus(http.StatusOK))
}

func get(t *testing.T, url string) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}

	return response, response.Body.Close()
}

// lives ends what is waited for when the manager has ended.
func (r *run) lives() {
	if err := r.manager.Err(); err != nil {
		StopTrying("the manager is gone").Wrap(err).Now()
	}
}

// tail is the end of the log of the manager.
func (r *run) tail() string {
	const most = 10_000
	said, _ := os.ReadFile(r.manager.Log())

	return string(said[max(0, len(said)-most):])
}

// awaitStillness waits until the manager has asked for no object for a while. Where it goes
// on asking, that is measured.
func (r *run) awaitStillness() {
	r.t.Helper()
	begin := time.Now()
	r.Eventually(func() bool {
		r.lives()
		now := time.Now()
		management, workloads := r.calls(now.Add(-stillness), now)
		isStill := len(management.Of(isForObject))+len(workloads.Of(isForObject)) == 0
		if !isStill && now.Sub(begin) > stillnessPatience {
			r.t.Logf("%s does not come to rest", r.namespace)
			return true
		}

		return isStill && now.Sub(begin) > stillness
	}).WithPolling(time.Second).Should(BeTrue())
}

func isForObject(call string) bool { return call != pathCall }

// awaitGreeting waits until all clusters have the greeting, and the provider says so.
func (r *run) awaitGreeting(greeting string) {
	r.t.Helper()
	r.Eventually(func(g Gomega) {
		r.lives()
		g.Expect(r.greetings()).To(Equal(map[string]int{greeting: *clusterCount}))
		addon, err := r.addonNow()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(saysReady(addon)).To(BeTrue())
		releases, ready := r.releases(), 0
		for i := range releases {
			if saysReady(&releases[i]) {
				ready++
			}
		}
		g.Expect([]int{ready, len(releases)}).To(Equal([]int{*clusterCount, *clusterCount}), "releases that are ready, and all")
	}).Should(Succeed())
}

// awaitNothing waits until no cluster has anything, nor the provider.
func (r *run) awaitNothing() {
	r.t.Helper()
	r.Eventually(func(g Gomega) {
		r.lives()
		g.Expect(r.greetings()).To(Equal(map[string]int{"": *clusterCount}))
		_, err := r.addonNow()
		g.Expect(err).To(Satisfy(apierrors.IsNotFound))
		g.Expect(len(r.releases())).To(BeZero())
	}).Should(Succeed())
}

// greetings are in how many clusters there is which greeting, or none.
func (r *run) greetings() map[string]int {
	r.t.Helper()
	found := map[string]int{}
	for _, cluster := range r.seenThere {
		greeting := &corev1.ConfigMap{}
		err := cluster.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: demoName}, greeting)
		r.Expect(client.IgnoreNotFound(err)).To(Succeed())
		found[greeting.Data["greeting"]]++
	}

	return found
}

func (r *run) addonNow() (*unstructured.Unstructured, error) {
	found := objectOf(r.addon)

	return found, r.seen.Get(r.t.Context(), client.ObjectKey{Namespace: fleet, Name: demoName}, found)
}

func (r *run) releases() []unstructured.Unstructured {
	r.t.Helper()
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(addonv1.GroupVersion.WithKind(r.release + "List"))
	r.Expect(r.seen.List(r.t.Context(), found, client.InNamespace(fleet))).To(Succeed())

	return found.Items
}

// saysReady reports whether an object says that it is ready as it is asked for now.
func saysReady(object *unstructured.Unstructured) bool {
	observed, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	ready, err := conditions.UnstructuredGet(object, clusterv1.ReadyCondition)

	return err == nil && ready != nil && ready.Status == metav1.ConditionTrue && observed == object.GetGeneration()
}
