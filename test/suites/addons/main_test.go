// Package addons holds the add-on provider to charts of the outside: those that come from
// a registry and from a repository, and those that other people have written. It is a
// module of its own, so that nothing else needs a registry.
package addons

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/capi-talos/capi-talos/addons/setup"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/clusters"
)

// parallel is how many tests run at the same time when -parallel does not say so: most
// of their time they wait.
const parallel = "16"

// management and workload are the API servers of all tests, each of which has namespaces
// of its own in them. hooks are the hook Jobs that have run in the latter.
var (
	management, workload client.Client
	workloadConfig       *rest.Config
	workloadKubeconfig   []byte
	hooks                = &hookJobs{}
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", parallel)
	ctrl.SetLogger(logr.Discard())
	// The registry logs each request.
	logrus.SetOutput(io.Discard)
	if *besideCAAPH {
		// Nothing but what is measured.
		os.Exit(m.Run())
	}
	kinds, err := clusterKinds()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	options := apiserver.Options{CRDs: []string{"config/addons/crd/bases", kinds}, Webhooks: []string{"config/addons/webhook/manifests.yaml"}}
	os.Exit(apiserver.Run(options, func(own *apiserver.Server) int {
		return apiserver.Run(apiserver.Options{}, func(others *apiserver.Server) int { return runBeside(own, others, m.Run) })
	}))
}

// runBeside runs the tests beside the managers, and returns the exit code.
func runBeside(own, others *apiserver.Server, tests func() int) int {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	managers, err := managersOf(ctx, own, others)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ended := make(chan error, len(managers))
	for _, mgr := range managers {
		go func() { ended <- mgr.Start(ctx) }()
	}
	code := tests()
	stop()
	for range managers {
		if err := <-ended; err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}

	return code
}

// clusterKinds is the folder with the kinds of Cluster API.
func clusterKinds() (string, error) {
	folder, err := exec.CommandContext(context.Background(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return "", fmt.Errorf("looking for the sources of Cluster API: %w", err)
	}

	return filepath.Join(strings.TrimSpace(string(folder)), "core", "config", "crd", "bases"), nil
}

// newScheme knows the kinds of all clusters here.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	kinds := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, setup.AddToScheme)

	return scheme, kinds.AddToScheme(scheme)
}

// managersOf are the manager of add-ons, and the one that completes hook Jobs in the
// workload cluster.
func managersOf(ctx context.Context, own, others *apiserver.Server) ([]ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	if management, err = client.New(own.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	if workload, err = client.New(others.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	workloadConfig = rest.CopyConfig(others.Config)
	workloadConfig.QPS = -1
	if workloadKubeconfig, err = others.Kubeconfig(); err != nil {
		return nil, err
	}
	addons, err := ctrl.NewManager(own.Config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, WebhookServer: webhook.NewServer(webhook.Options{
			Host: own.Webhooks.LocalServingHost, Port: own.Webhooks.LocalServingPort, CertDir: own.Webhooks.LocalServingCertDir,
		}),
	})
	if err != nil {
		return nil, err
	}
	connections, err := clustercache.SetupWithManager(ctx, addons, clustercache.Options{
		SecretClient: addons.GetAPIReader(), Client: clustercache.ClientOptions{UserAgent: "test"},
	}, controller.Options{})
	if err != nil {
		return nil, err
	}
	if err := setup.SetupWithManager(ctx, addons, setup.Options{
		Options: provider.Options{SecretCachingClient: addons.GetClient(), ClusterCache: connections}, AllowLocalSources: true,
	}); err != nil {
		return nil, err
	}
	kubelet, err := ctrl.NewManager(others.Config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return nil, err
	}

	return []ctrl.Manager{addons, kubelet}, hooks.setupWithManager(kubelet)
}

// makeNamespace makes a namespace of the management cluster.
func makeNamespace(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(management.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
}

// makeCluster makes a namespace with a Cluster whose API server is that of workload.
func makeCluster(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	makeNamespace(t, namespace)
	g.Expect(clusters.Connect(t.Context(), management, namespace, "blue", workloadKubeconfig)).To(Succeed())
}
