// Package setup is the only door to the Talos control plane provider: it
// registers its kinds, controllers and webhooks.
package setup

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/controllers"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/controlplane/internal/webhooks"
)

// Options are what the provider needs from its manager.
type Options struct {
	// WatchFilterValue restricts the controllers to objects with this value of
	// the label cluster.x-k8s.io/watch-filter; empty means all.
	WatchFilterValue string
	// Concurrency is how many TalosControlPlanes are reconciled at a time; 0
	// means 10.
	Concurrency int
	// Dialer opens connections to Talos nodes. It is required.
	Dialer talosclient.Dialer
	// Clock tells the time; nil means the real one.
	Clock clock.PassiveClock
	// Random is the source of names and of jitter; nil means math/rand.
	Random requeue.Random
	// SecretCachingClient reads Secrets from the cache. It is required.
	SecretCachingClient client.Client
	// ClusterCache keeps connections to the API servers of clusters. It is
	// required.
	ClusterCache clustercache.ClusterCache
	// Metrics is the registry in which the provider shows its control planes;
	// nil means that of controller-runtime, which the manager serves.
	Metrics prometheus.Registerer
}

// defaultConcurrency is used when Options.Concurrency is 0.
const defaultConcurrency = 10

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, autoscalingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("adding the kinds of the control plane provider: %w", err)
		}
	}

	return nil
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if options.Dialer == nil || options.SecretCachingClient == nil || options.ClusterCache == nil {
		return errors.New("setting up the control plane provider: Dialer, SecretCachingClient and ClusterCache are required")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Random == nil {
		options.Random = requeue.SharedRandom{}
	}
	if options.Metrics == nil {
		options.Metrics = ctrlmetrics.Registry
	}
	if options.Concurrency == 0 {
		options.Concurrency = defaultConcurrency
	}

	counts := metrics.New()
	if err := counts.Register(options.Metrics); err != nil {
		return err
	}
	reconciler := &controllers.Reconciler{
		Client:              mgr.GetClient(),
		APIReader:           mgr.GetAPIReader(),
		SecretCachingClient: options.SecretCachingClient,
		ClusterCache:        options.ClusterCache,
		Dialer:              options.Dialer,
		Watcher:             machinewatch.New(ctx, options.Dialer, nodes.MachineOf),
		Prober:              health.HTTPProber{},
		Clock:               options.Clock,
		Random:              options.Random,
		Recorder:            reconciliation.NewEventRecorder(mgr, "taloscontrolplane-controller"),
		Metrics:             counts,
		WatchFilterValue:    options.WatchFilterValue,
	}
	if err := reconciler.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: options.Concurrency}); err != nil {
		return err
	}
	// Webhooks are asked about all namespaces, the cache knows those that the
	// manager watches.
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("creating the client of the webhooks: %w", err)
	}
	trials := &configgen.Trials{}
	for _, webhook := range []interface{ SetupWebhookWithManager(ctrl.Manager) error }{
		&webhooks.TalosControlPlane{Trials: trials, Client: live}, &webhooks.TalosControlPlaneTemplate{Trials: trials}, &webhooks.Scale{},
	} {
		if err := webhook.SetupWebhookWithManager(mgr); err != nil {
			return err
		}
	}

	return nil
}
