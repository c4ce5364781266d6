// Package setup is the only door to the add-on provider: it registers its kinds,
// controllers and webhooks.
package setup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/content"
	"github.com/capi-talos/capi-talos/addons/internal/controllers"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/metrics"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/addons/internal/webhooks"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// The defaults of Options.
const (
	DefaultMaxActions           = 50
	DefaultMaxActionsPerCluster = 3
)

// memoryInterval is how often memory is given back to the system while no action of Helm is
// under way: actions come in bursts, take much of it, and leave nothing.
const memoryInterval = 30 * time.Second

// Options are what the provider is built on.
type Options struct {
	provider.Options

	// MaxActions is how many releases are acted on at a time; 0 means 50.
	MaxActions int
	// MaxActionsPerCluster is how many of one cluster are; 0 means 3.
	MaxActionsPerCluster int
	// AllowLocalSources lets charts come from loopback and link-local addresses.
	AllowLocalSources bool
	// Proxy picks the proxy of a request to a source of charts; nil means none.
	Proxy func(*http.Request) (*url.URL, error)

	// connect connects to workload clusters; nil means with Helm.
	connect func(clustercache.ClusterCache) controllers.Connect
}

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(clusterv1.AddToScheme, addonv1.AddToScheme, apiextensionsv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return fmt.Errorf("adding the kinds of the add-on provider: %w", err)
	}

	return nil
}

// CacheByObject is what the cache of the manager has to hold of kinds of which a
// management cluster may have very many: that they have changed, and none of their data.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Transform: withoutData}}
}

func withoutData(in any) (any, error) {
	if object, ok := in.(*corev1.ConfigMap); ok {
		object.Data, object.BinaryData = nil, nil
		object.SetManagedFields(nil)
	}

	return in, nil
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := options.complete(); err != nil {
		return fmt.Errorf("setting up the add-on provider: %w", err)
	}
	reader := &content.Reader{Cached: mgr.GetCache(), Live: mgr.GetAPIReader()}
	work := jobs.New[addonv1.ReleaseAction, release.Result](ctx, jobs.Limits{Total: options.MaxActions, PerCluster: options.MaxActionsPerCluster})
	if err := mgr.Add(givesMemoryBack(memoryInterval, work.Count, debug.FreeOSMemory)); err != nil {
		return fmt.Errorf("setting up the add-on provider: %w", err)
	}
	counts := metrics.New(options.Clock, work.Count)
	if err := counts.Register(options.Metrics); err != nil {
		return err
	}
	charts := counts.Charts(source.NewCharts(source.Network{
		Guard: egress.Guard{AllowLocal: options.AllowLocalSources, Proxy: options.Proxy}, Reading: semaphore.NewWeighted(1),
	}, inspect))
	addons := &controllers.AddonReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Content: reader, Charts: charts, Clock: options.Clock, Random: options.Random,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosclusteraddon-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	releases := &controllers.ReleaseReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: options.ClusterCache, Connect: options.connect(options.ClusterCache),
		Content: reader, Charts: charts, Jobs: work, Metrics: counts, Clock: options.Clock, Random: options.Random,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosclusteraddonrelease-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	if err := errors.Join(addons.SetupWithManager(ctx, mgr, options.Controller()), releases.SetupWithManager(ctx, mgr, options.Controller())); err != nil {
		return err
	}
	// Webhooks are asked about all namespaces, the cache knows those that the manager
	// watches.
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("creating the client of the webhooks: %w", err)
	}

	return provider.SetupWebhooks(mgr, &webhooks.TalosClusterAddon{Client: live})
}

func (o *Options) complete() error {
	if o.MaxActions == 0 {
		o.MaxActions = DefaultMaxActions
	}
	if o.MaxActionsPerCluster == 0 {
		o.MaxActionsPerCluster = DefaultMaxActionsPerCluster
	}
	if o.connect == nil {
		o.connect = controllers.ConnectBy
	}

	return o.Options.Complete(o.NeedsClusterCache())
}

// givesMemoryBack gives memory that nobody uses back to the system, again and again while no
// action is under way. The stacks of goroutines that wait are part of it: each collection
// halves those that are hardly used.
func givesMemoryBack(interval time.Duration, count func() (running, waiting int), free func()) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error {
		wait.UntilWithContext(ctx, func(context.Context) {
			if running, _ := count(); running == 0 {
				free()
			}
		}, interval)

		return nil
	})
}

// inspect reads what an archive says of itself.
func inspect(archive []byte) (source.Metadata, error) {
	said, err := helm.Inspect(archive)

	return source.Metadata(said), err
}
