package setup

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	capisetup "sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/controllers"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/charts"
	"github.com/capi-talos/capi-talos/test/support/clusters"
	"github.com/capi-talos/capi-talos/test/support/tally"
)

const (
	// long patience: 2000 releases take their time on a busy machine.
	crowdPatience = 20 * time.Minute
	// polling is how exactly times are measured.
	polling = 200 * time.Millisecond
	// quiet is for how long the manager must have done nothing to be at rest.
	quiet = 3 * time.Second

	// The defaults of cmd/addons.
	concurrency, clusterConcurrency, qps, burst = 20, 100, 100, 200
)

// bed is a management cluster with the controllers of the provider, in this process.
type bed struct {
	*WithT

	t      *testing.T
	server *apiserver.Server
	// client is an administrator's.
	client client.Client
	// calls are what the manager asks the management cluster for, and verbs what it does to
	// releases.
	calls, verbs tally.Counter
	began        time.Time
}

// access is how the manager gets to workload clusters.
type access struct {
	// cache makes the ClusterCache of a manager.
	cache func(ctx context.Context, mgr ctrl.Manager, secrets client.Client) (clustercache.ClusterCache, error)
	// connect is Options.connect.
	connect func(clustercache.ClusterCache) controllers.Connect
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{WithT: NewWithT(t), t: t}
	b.SetDefaultEventuallyTimeout(crowdPatience)
	b.SetDefaultEventuallyPollingInterval(polling)
	kinds, err := clusterKinds()
	b.Expect(err).NotTo(HaveOccurred())
	b.server, err = apiserver.Start(t.Context(), apiserver.Options{
		CRDs: []string{"config/addons/crd/bases", kinds}, Webhooks: []string{"config/addons/webhook/manifests.yaml"},
	})
	b.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(b.server.Stop()).To(Succeed()) })
	b.client, err = client.New(b.server.Config, client.Options{Scheme: b.scheme()})
	b.Expect(err).NotTo(HaveOccurred())
	b.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})

	return b
}

func (b *bed) scheme() *kruntime.Scheme {
	scheme := kruntime.NewScheme()
	kinds := kruntime.NewSchemeBuilder(clientgoscheme.AddToScheme, AddToScheme)
	b.Expect(kinds.AddToScheme(scheme)).To(Succeed())

	return scheme
}

// start starts the manager, with the caches and limits of cmd/addons. resync is how often it
// looks at everything again.
func (b *bed) start(to access, resync time.Duration) {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	own := rest.CopyConfig(b.server.Config)
	own.QPS, own.Burst = qps, burst
	own.Wrap(func(inner http.RoundTripper) http.RoundTripper { return transport{&b.calls, inner} })
	caches := capisetup.ManagerCacheOptions(b.scheme(), b.t.Name(), "", resync)
	maps.Copy(caches.ByObject, CacheByObject())
	mgr, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: b.scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Cache: caches, Client: capisetup.ManagerClientOptions(),
		// This process has more than one manager.
		Controller: config.Controller{UsePriorityQueue: ptr.To(true), SkipNameValidation: ptr.To(true)},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: b.server.Webhooks.LocalServingHost, Port: b.server.Webhooks.LocalServingPort, CertDir: b.server.Webhooks.LocalServingCertDir,
		}),
	})
	b.Expect(err).NotTo(HaveOccurred())
	secrets, err := capisetup.CreateSecretCachingClient(mgr)
	b.Expect(err).NotTo(HaveOccurred())
	cache, err := to.cache(ctx, mgr, secrets)
	b.Expect(err).NotTo(HaveOccurred())
	given := provider.Options{Concurrency: concurrency, SecretCachingClient: secrets, ClusterCache: cache, Metrics: prometheus.NewRegistry()}
	b.Expect(SetupWithManager(ctx, mgr, Options{Options: given, connect: b.counted(to.connect)})).To(Succeed())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	b.t.Cleanup(func() {
		stop()
		// A queue that hands something out while it is shut down may keep its workers until the
		// manager has waited long enough for them (controller-runtime issue 3538, mended in v0.25.0).
		NewWithT(b.t).Eventually(ended).WithTimeout(patience).Should(Receive(Or(Succeed(), MatchError(context.DeadlineExceeded))))
	})
	b.Eventually(func() error { return mgr.GetWebhookServer().StartedChecker()(nil) }).Should(Succeed())
}

// counted counts the verbs of connections.
func (b *bed) counted(connect func(clustercache.ClusterCache) controllers.Connect) func(clustercache.ClusterCache) controllers.Connect {
	return func(cache clustercache.ClusterCache) controllers.Connect {
		inner := connect(cache)
		return func(ctx context.Context, cluster types.NamespacedName, ignore []addonv1.DriftIgnoreRule) (controllers.Connection, error) {
			made, err := inner(ctx, cluster, ignore)
			if err != nil {
				return controllers.Connection{}, err
			}
			all := counted{made.Helm, made.Objects, &b.verbs}
			return controllers.Connection{Helm: all, Objects: all}, nil
		}
	}
}

func (b *bed) create(objects ...client.Object) {
	b.t.Helper()
	for _, object := range objects {
		b.Expect(b.client.Create(b.t.Context(), object)).To(Succeed())
	}
}

// createCluster makes a Cluster that is up.
func (b *bed) createCluster(name string) {
	b.t.Helper()
	b.Expect(clusters.Create(b.t.Context(), b.client, namespace, name)).To(Succeed())
}

// createAddons makes so many add-ons for all clusters. The first one has to be ready in a
// cluster before the others are installed there.
func (b *bed) createAddons(count int) {
	b.t.Helper()
	b.began = time.Now()
	b.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chart"}, BinaryData: map[string][]byte{"chart.tgz": typical.Pack("1.0.0")}})
	for i := range count {
		addon := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("addon-%d", i)}, Spec: addonv1.TalosClusterAddonSpec{
			MatchAll: ptr.To(true), Source: addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: "chart"}}, Release: addonv1.ReleaseSpec{Namespace: "apps"},
			Values: &apiextensionsv1.JSON{Raw: []byte(`{"greeting":"hello"}`)}, ValuesTemplate: "cluster: {{ .Cluster.metadata.name }}",
		}}
		if i == 0 {
			addon.Spec.Phase = addonv1.PhaseNetwork
		}
		b.create(addon)
	}
}

// typical is a chart of a size as many are, which needs no controllers of Kubernetes to be ready.
var typical = charts.Chart{
	"values.yaml": "greeting: hi\n",
	"templates/account.yaml": `apiVersion: v1
kind: ServiceAccount
metadata: {name: "{{ .Release.Name }}"}
`,
	"templates/settings.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}"}
data:
  greeting: {{ .Values.greeting | quote }}
  cluster: {{ .Values.cluster | quote }}
`,
	"templates/role.yaml": `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "{{ .Release.Name }}"}
rules:
- {apiGroups: [""], resources: [nodes, pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "{{ .Release.Name }}"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "{{ .Release.Name }}"}
subjects:
- {kind: ServiceAccount, name: "{{ .Release.Name }}", namespace: "{{ .Release.Namespace }}"}
`,
	"templates/service.yaml": `apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec:
  selector: {app: "{{ .Release.Name }}"}
  ports:
  - {port: 80}
`,
}

// awaitReady waits until all add-ons are ready in so many clusters, and in no more.
func (b *bed) awaitReady(addons, clusters int) {
	b.t.Helper()
	b.Eventually(func(g Gomega) {
		found, ready := &addonv1.TalosClusterAddonList{}, 0
		g.Expect(b.client.List(b.t.Context(), found, client.InNamespace(namespace))).To(Succeed())
		for i := range found.Items {
			ready += int(ptr.Deref(found.Items[i].Status.ReadyReleases, 0))
		}
		g.Expect(ready).To(Equal(addons * clusters))
	}).Should(Succeed())
}

// reasons are the reasons of condition Ready of the releases of a cluster.
func (b *bed) reasons(cluster string) map[string]int {
	b.t.Helper()
	found, reasons := &addonv1.TalosClusterAddonReleaseList{}, map[string]int{}
	b.Expect(b.client.List(b.t.Context(), found, client.InNamespace(namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster})).To(Succeed())
	for i := range found.Items {
		reasons[conditions.GetReason(&found.Items[i], addonv1.ReleaseReadyCondition)]++
	}

	return reasons
}

// awaitQuiet waits until the manager has called no verb and written nothing for a while.
func (b *bed) awaitQuiet() {
	b.t.Helper()
	done := func() string { return fmt.Sprint(b.writes(), b.verbs.Counts()) }
	before := ""
	b.Eventually(func() bool {
		now := done()
		same := now == before
		before = now
		return same
	}).WithPolling(quiet).Should(BeTrue())
}

// writes are what the manager has written to the management cluster.
func (b *bed) writes() tally.Counts { return b.calls.Counts().Of(isWrite) }

// staysQuiet fails for each verb that is called, and each write.
func (b *bed) staysQuiet(during time.Duration) {
	b.t.Helper()
	verbs, writes := b.verbs.Counts(), b.writes()
	b.Consistently(func(g Gomega) {
		g.Expect(b.verbs.Counts().Since(verbs)).To(BeEmpty(), "verbs")
		g.Expect(b.writes().Since(writes)).To(BeEmpty(), "writes to the management cluster")
	}).WithTimeout(during).WithPolling(polling).Should(Succeed())
}

// report says how long it took until now, and what it has taken.
func (b *bed) report(what string) {
	b.t.Helper()
	took := time.Since(b.began)
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	self, err := procfs.NewProc(os.Getpid())
	b.Expect(err).NotTo(HaveOccurred())
	status, err := self.NewStatus()
	b.Expect(err).NotTo(HaveOccurred())
	const mebi = 1 << 20
	b.t.Logf("%s after %.1f s; heap %d MiB, resident %d MiB, at most %d MiB", what, took.Seconds(), memory.HeapAlloc/mebi, status.VmRSS/mebi, status.VmHWM/mebi)
	b.t.Logf("verbs: %s", b.verbs.Counts())
	b.t.Logf("calls of the management cluster: %s", b.calls.Counts())
	b.t.Logf("reconciles: %s", b.reconciles())
}

// reconciles are those of each controller, in this process.
func (b *bed) reconciles() tally.Counts {
	families, err := ctrlmetrics.Registry.Gather()
	b.Expect(err).NotTo(HaveOccurred())
	found := tally.Counts{}
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			name := ""
			for _, pair := range metric.GetLabel() {
				if pair.GetName() != "namespace" {
					name += pair.GetValue() + " "
				}
			}
			if count := int(metric.GetCounter().GetValue()); count > 0 {
				found[strings.TrimSpace(name)] = count
			}
		}
	}

	return found
}
