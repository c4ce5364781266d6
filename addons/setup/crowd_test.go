package setup

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	capisetup "sigs.k8s.io/cluster-api/core/setup"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/controllers"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/release/fake"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/clusters"
	"github.com/capi-talos/capi-talos/test/support/tally"
)

// make bench-addons has these tests measure: they print what they take.
var (
	long         = flag.Bool("long", false, "bring 50 add-ons to 40 clusters with a fake Helm, and 10 to 8 with the real one, and leave them alone for -idle")
	addonCount   = flag.Int("addons", 0, "how many add-ons there are with -long, where it is not the number above")
	clusterCount = flag.Int("clusters", 0, "how many clusters there are with -long, where it is not the number above")
	idle         = flag.Duration("idle", 10*time.Minute, "for how long nothing is done with -long")
)

// size is how much a test does.
type size struct {
	addons, clusters int
	// idle is for how long nothing may be done when all is ready, and resync how often the
	// manager looks at everything meanwhile.
	idle, resync time.Duration
}

// sized is the size that was asked for. A short test has the manager look often at what
// needs nothing.
func sized(short, large size) size {
	if !*long {
		short.idle, short.resync = 10*time.Second, 2*time.Second
		return short
	}

	return size{
		addons: cmp.Or(*addonCount, large.addons), clusters: cmp.Or(*clusterCount, large.clusters), idle: *idle, resync: 10 * time.Minute,
	}
}

// TestManyAddonsOnManyClusters has a fake Helm, so that only the controllers take time.
func TestManyAddonsOnManyClusters(t *testing.T) {
	size := sized(size{addons: 12, clusters: 10}, size{addons: 50, clusters: 40})
	b := newBed(t)
	b.start(fakeClusters(), size.resync)
	for i := range size.clusters {
		b.createCluster(fmt.Sprintf("cluster-%d", i))
	}
	b.createAddons(size.addons)
	b.awaitReady(size.addons, size.clusters)
	b.report(fmt.Sprintf("%d add-ons are ready on %d clusters", size.addons, size.clusters))
	b.Expect(b.verbs.Counts()).To(HaveKeyWithValue("Install", size.addons*size.clusters))
	b.Expect(b.verbs.Counts()).NotTo(HaveKey("Upgrade"))

	b.awaitQuiet()
	b.staysQuiet(size.idle)
	b.report("at rest")
}

// fakeClusters are clusters that answer at once.
func fakeClusters() access {
	var mu sync.Mutex
	known := map[string]*fake.Helm{}
	connect := func(_ context.Context, cluster types.NamespacedName, _ []addonv1.DriftIgnoreRule) (controllers.Connection, error) {
		mu.Lock()
		defer mu.Unlock()
		if known[cluster.Name] == nil {
			known[cluster.Name] = &fake.Helm{Clock: clock.RealClock{}}
		}
		return controllers.Connection{Helm: known[cluster.Name], Objects: ready{}}, nil
	}

	return access{
		cache: func(context.Context, ctrl.Manager, client.Client) (clustercache.ClusterCache, error) {
			return connected{}, nil
		},
		connect: func(clustercache.ClusterCache) controllers.Connect { return connect },
	}
}

// connected has connections to all clusters.
type connected struct{ clustercache.ClusterCache }

func (connected) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return &rest.Config{}, nil
}

func (connected) GetClusterSource(string, func(context.Context, client.Object) []ctrl.Request, ...clustercache.GetClusterSourceOption) ctrlsource.Source {
	return ctrlsource.Func(func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error { return nil })
}

// ready are objects that are as they should be.
type ready struct{ release.Objects }

func (ready) Waiting(context.Context, release.Content) (string, error) { return "", nil }

// TestAClusterThatDoesNotAnswerHoldsUpNobody has the real Helm, and a real API server for
// each cluster but the one that does not answer.
func TestAClusterThatDoesNotAnswerHoldsUpNobody(t *testing.T) {
	size := sized(size{addons: 4, clusters: 3}, size{addons: 10, clusters: 8})
	b := newBed(t)
	workloads := b.workloads(size.clusters - 1)
	b.start(realClusters(), size.resync)
	b.createAddons(size.addons)
	for i, workload := range workloads {
		b.createConnected(fmt.Sprintf("cluster-%d", i), workload)
	}
	b.createConnected("silent", b.silent())
	b.awaitReady(size.addons, size.clusters-1)
	b.report(fmt.Sprintf("%d add-ons are ready on %d clusters", size.addons, size.clusters-1))
	b.Expect(b.verbs.Counts()).To(HaveKeyWithValue("Install", size.addons*(size.clusters-1)))
	b.Expect(b.verbs.Counts()).NotTo(HaveKey("Upgrade"))
	b.Eventually(func() map[string]int { return b.reasons("silent") }).Should(Equal(map[string]int{addonv1.ClusterUnreachableReason: size.addons}))

	b.awaitQuiet()
	before := b.writesToAll(workloads)
	b.staysQuiet(size.idle)
	for i, writes := range b.writesToAll(workloads) {
		b.Expect(writes.Since(before[i])).To(BeEmpty(), "writes to cluster-%d", i)
	}
	b.report("at rest")
}

// workloads are API servers of workload clusters with a node that is ready.
func (b *bed) workloads(count int) []*apiserver.Server {
	b.t.Helper()
	servers, err := b.server.Several(count)
	b.Expect(err).NotTo(HaveOccurred())
	for _, made := range servers {
		b.t.Cleanup(func() { NewWithT(b.t).Expect(made.Stop()).To(Succeed()) })
		b.Expect(b.makeNode(made)).To(Succeed())
	}

	return servers
}

func (b *bed) makeNode(of *apiserver.Server) error {
	workload, err := client.New(of.Config, client.Options{})
	if err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	if err := workload.Create(b.t.Context(), node); err != nil {
		return fmt.Errorf("making a node: %w", err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}

	return workload.Status().Update(b.t.Context(), node)
}

// silent is an API server that takes connections, and never answers.
func (b *bed) silent() *apiserver.Server {
	b.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(b.t.Context(), "tcp", "127.0.0.1:0")
	b.Expect(err).NotTo(HaveOccurred())
	b.t.Cleanup(func() { _ = listener.Close() })
	to := rest.CopyConfig(b.server.Config)
	to.Host = "https://" + listener.Addr().String()

	return &apiserver.Server{Config: to}
}

// createConnected makes a Cluster with the kubeconfig of its API server.
func (b *bed) createConnected(name string, server *apiserver.Server) {
	b.t.Helper()
	kubeconfig, err := server.Kubeconfig()
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(clusters.Connect(b.t.Context(), b.client, namespace, name, kubeconfig)).To(Succeed())
}

// realClusters are reached as by cmd/addons.
func realClusters() access {
	const clusterQPS, clusterBurst = 20, 30

	return access{connect: controllers.ConnectBy, cache: func(ctx context.Context, mgr ctrl.Manager, secrets client.Client) (clustercache.ClusterCache, error) {
		return clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
			SecretClient: secrets, Client: capisetup.ClusterCacheClientOptions("crowd", clusterQPS, clusterBurst),
		}, controller.Options{MaxConcurrentReconciles: clusterConcurrency})
	}}
}

// writesToAll are the writes that each API server has had.
func (b *bed) writesToAll(servers []*apiserver.Server) []tally.Counts {
	b.t.Helper()
	all := make([]tally.Counts, len(servers))
	for i, server := range servers {
		var err error
		all[i], err = writesTo(b.t.Context(), server.Config)
		b.Expect(err).NotTo(HaveOccurred())
	}

	return all
}
