package setup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/charts"
	"github.com/capi-talos/capi-talos/test/support/clusters"
	"github.com/capi-talos/capi-talos/test/support/series"
)

// patience is for how long something is waited for: the machine may be busy.
const patience = 2 * time.Minute

const namespace = "fleet"

// management and workload are the API servers of a management cluster, with the manager of
// the provider, and of a workload cluster.
var (
	management, workload             client.Client
	managementConfig, workloadConfig *rest.Config
)

// secretsRead are the kubeconfigs that the manager has read, by their Secret.
var secretsRead sync.Map

// recordingReader records which objects are read.
type recordingReader struct {
	client.Reader

	reads *sync.Map
}

// Get implements client.Reader.
func (c recordingReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	c.reads.Store(key, true)

	return c.Reader.Get(ctx, key, into, options...)
}

// silentHost is a host of charts that nobody asks in earnest, and silentUntil has until when the
// manager would have waited for it.
const silentHost = "charts.invalid"

var silentUntil = make(chan time.Time, 1)

// noProxy is how the manager picks the proxy of a request.
func noProxy(request *http.Request) (*url.URL, error) {
	if request.URL.Hostname() != silentHost {
		return nil, nil //nolint:nilnil // There is none.
	}
	until, _ := request.Context().Deadline()
	select {
	case silentUntil <- until:
	default:
	}

	return nil, errors.New("it does not answer")
}

// registry has the metrics of the manager.
var registry = prometheus.NewRegistry()

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if *long {
		// Nothing but the manager that is measured.
		os.Exit(m.Run())
	}
	kinds, err := clusterKinds()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	options := apiserver.Options{CRDs: []string{"config/addons/crd/bases", kinds}, Webhooks: []string{"config/addons/webhook/manifests.yaml"}}
	os.Exit(apiserver.Run(options, func(own *apiserver.Server) int {
		return apiserver.Run(apiserver.Options{}, func(others *apiserver.Server) int {
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			err := start(ctx, own, others, ended)
			if err != nil {
				stop()
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			code := m.Run()
			stop()
			if err := <-ended; err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return code
		})
	}))
}

// clusterKinds is the folder of the kinds of Cluster API's core.
func clusterKinds() (string, error) {
	folder, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return "", fmt.Errorf("looking for the sources of Cluster API: %w", err)
	}

	return filepath.Join(strings.TrimSpace(string(folder)), "core", "config", "crd", "bases"), nil
}

// start starts the manager, and makes the Cluster.
func start(ctx context.Context, own, others *apiserver.Server, ended chan<- error) error {
	scheme := runtime.NewScheme()
	kinds := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(own.Config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: webhook.NewServer(webhook.Options{
			Host: own.Webhooks.LocalServingHost, Port: own.Webhooks.LocalServingPort, CertDir: own.Webhooks.LocalServingCertDir,
		}),
	})
	if err != nil {
		return err
	}
	connections, err := provider.SetupClusterCache(ctx, mgr, clustercache.Options{
		SecretClient: recordingReader{mgr.GetAPIReader(), &secretsRead}, Client: clustercache.ClientOptions{UserAgent: "test"},
	}, controller.Options{})
	if err != nil {
		return err
	}
	if err := SetupWithManager(ctx, mgr, Options{Options: provider.Options{SecretCachingClient: mgr.GetClient(), ClusterCache: connections, Metrics: registry}, Proxy: noProxy}); err != nil {
		return err
	}
	go func() { ended <- mgr.Start(ctx) }()
	managementConfig = own.Config
	if management, err = client.New(own.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if workload, err = client.New(others.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}

	workloadConfig = others.Config
	if err := management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	server, administrator := asAdministrator(others.Config)

	return makeCluster(ctx, namespace, "blue", server, administrator)
}

// asAdministrator is how the administrator of an API server reaches it.
func asAdministrator(config *rest.Config) (clientcmdapi.Cluster, clientcmdapi.AuthInfo) {
	return clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}, clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
}

// kubeconfigOf is the Secret with the kubeconfig of a Cluster.
func kubeconfigOf(namespace, name string, server clientcmdapi.Cluster, user clientcmdapi.AuthInfo) (*corev1.Secret, error) {
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": &server},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": &user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	})

	return clusters.Kubeconfig(namespace, name, kubeconfig), err
}

// makeCluster makes a Cluster with a kubeconfig.
func makeCluster(ctx context.Context, namespace, name string, server clientcmdapi.Cluster, user clientcmdapi.AuthInfo) error {
	secret, err := kubeconfigOf(namespace, name, server, user)
	if err != nil {
		return err
	}
	if err := management.Create(ctx, secret); err != nil {
		return err
	}

	return clusters.Create(ctx, management, namespace, name)
}

// data is that of the ConfigMap that the chart makes; nil when it is not there.
func data(g Gomega, ctx context.Context) map[string]string {
	found := &corev1.ConfigMap{}
	err := workload.Get(ctx, client.ObjectKey{Namespace: "apps", Name: "demo"}, found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	g.Expect(err).NotTo(HaveOccurred())

	return found.Data
}

// TestAnAddonFollowsTheLabelsOfACluster: through a manager as it is shipped, from the
// admission of the add-on to the objects in the workload cluster.
func TestAnAddonFollowsTheLabelsOfACluster(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(patience)
	chart := charts.Chart{"values.yaml": "greeting: hello\n", "templates/a.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data:
  greeting: {{ .Values.greeting | quote }}
  token: {{ .Values.token | quote }}
  cluster: {{ .Values.cluster | quote }}
  chart: {{ .Chart.Version | quote }}
  size: {{ if gt .Values.size 2.0 }}large{{ else }}small{{ end }}
`}
	packed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chart"}, BinaryData: map[string][]byte{"chart.tgz": chart.Pack("1.0.0")}}
	tokens := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens"}, StringData: map[string]string{"values.yaml": "token: first"}}
	addon := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo"}, Spec: addonv1.TalosClusterAddonSpec{
		ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"demo": "on"}},
		Source:          addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: "chart"}},
		Release:         addonv1.ReleaseSpec{Namespace: "apps"},
		Values:          &apiextensionsv1.JSON{Raw: []byte(`{"greeting":"hi","size":3}`)},
		ValuesTemplate:  "cluster: {{ .Cluster.metadata.name }}",
		ValuesFrom:      []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "tokens"}},
		Drift:           addonv1.DriftSpec{Mode: addonv1.DriftCorrect, IntervalSeconds: ptr.To(int32(10))},
	}}
	refused := addon.DeepCopy()
	refused.Spec.ValuesTemplate = `{{ env "HOME" }}`
	g.Eventually(func() error { return management.Create(ctx, refused) }).Should(MatchError(ContainSubstring(`function "env" not defined`)))
	for _, object := range []client.Object{packed, tokens, addon} {
		g.Expect(management.Create(ctx, object)).To(Succeed())
	}
	label := func(labels map[string]string) {
		cluster := &clusterv1.Cluster{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "blue"}, cluster)).To(Succeed())
		before := cluster.DeepCopy()
		cluster.Labels = labels
		g.Expect(management.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
	}
	is := func(want map[string]string) {
		t.Helper()
		g.Eventually(func(g Gomega) { g.Expect(data(g, ctx)).To(Equal(want)) }).Should(Succeed())
	}

	label(map[string]string{"demo": "on"})
	is(map[string]string{"greeting": "hi", "token": "first", "cluster": "blue", "chart": "1.0.0", "size": "large"})
	g.Eventually(func(g Gomega) {
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(addon), addon)).To(Succeed())
		g.Expect(conditions.IsTrue(addon, addonv1.AddonReadyCondition)).To(BeTrue())
	}).Should(Succeed())

	g.Expect(management.Get(ctx, client.ObjectKeyFromObject(tokens), tokens)).To(Succeed())
	tokens.StringData = map[string]string{"values.yaml": "token: second"}
	g.Expect(management.Update(ctx, tokens)).To(Succeed())
	is(map[string]string{"greeting": "hi", "token": "second", "cluster": "blue", "chart": "1.0.0", "size": "large"})

	packed.BinaryData["chart.tgz"] = chart.Pack("1.1.0")
	g.Expect(management.Update(ctx, packed)).To(Succeed())
	is(map[string]string{"greeting": "hi", "token": "second", "cluster": "blue", "chart": "1.1.0", "size": "large"})

	g.Expect(workload.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "demo"}})).To(Succeed())
	is(map[string]string{"greeting": "hi", "token": "second", "cluster": "blue", "chart": "1.1.0", "size": "large"})

	label(nil)
	is(nil)
	g.Eventually(func(g Gomega) {
		releases := &addonv1.TalosClusterAddonReleaseList{}
		g.Expect(management.List(ctx, releases)).To(Succeed())
		g.Expect(releases.Items).To(BeEmpty())
	}).Should(Succeed())
	g.Expect(management.Delete(ctx, addon)).To(Succeed())
	g.Eventually(func() error { return management.Get(ctx, client.ObjectKeyFromObject(addon), addon) }).Should(Satisfy(apierrors.IsNotFound))

	g.Expect(series.NonZero(g, registry, "capi_talos_addon_actions_total")).To(ContainElements("Install succeeded 1", "Upgrade succeeded 2", "CorrectDrift succeeded 1", "Uninstall succeeded 1"))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_source_resolutions_total")).To(ContainElement("Available ConfigMap 2"))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_jobs")).To(BeEmpty(), "nothing is left to do")
}

// TestASlowSourceHasAllItsTime: the limit of a reconcile, a minute by default in Cluster API, does
// not end it before.
func TestASlowSourceHasAllItsTime(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(patience)
	began := time.Now()
	addon := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "slow"}, Spec: addonv1.TalosClusterAddonSpec{
		ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"slow": "on"}},
		Source:          addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://" + silentHost, Chart: "demo"}},
	}}
	g.Eventually(func() error { return management.Create(ctx, addon) }).Should(Succeed())
	var until time.Time
	g.Eventually(silentUntil).Should(Receive(&until))
	g.Expect(until).NotTo(BeTemporally("<", began.Add(2*time.Minute)))
	g.Eventually(func(g Gomega) {
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(addon), addon)).To(Succeed())
		g.Expect(conditions.GetReason(addon, addonv1.ChartAvailableCondition)).To(Equal(addonv1.SourceUnreachableReason))
	}).Should(Succeed())
	g.Expect(management.Delete(ctx, addon)).To(Succeed())
}

// TestMemoryIsGivenBackBetweenActions, and not while one is under way.
func TestMemoryIsGivenBackBetweenActions(t *testing.T) {
	g := NewWithT(t)
	given := func(running int) (times int) {
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		g.Expect(givesMemoryBack(time.Millisecond, func() (int, int) {
			if asked++; asked == 10 {
				cancel()
			}
			return running, 0
		}, func() { times++ }).Start(ctx)).To(Succeed())
		return times
	}
	g.Expect(given(1)).To(BeZero())
	g.Expect(given(0)).To(Equal(10))
}
