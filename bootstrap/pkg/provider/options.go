// Package provider is what all providers need from the manager that runs them.
package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/kubeconfig"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

// defaultConcurrency is used when Options.Concurrency is 0.
const defaultConcurrency = 10

// Options are what the controllers and webhooks of a provider are built on. Complete
// fills in the defaults.
type Options struct {
	// WatchFilterValue restricts the controllers to objects with this value of
	// the label cluster.x-k8s.io/watch-filter; empty means all.
	WatchFilterValue string
	// Concurrency is how many objects of a kind are reconciled at a time; 0 means 10.
	Concurrency int
	// SecretCachingClient reads the Secrets that carry the cluster name label from a
	// cache, and live when the cache does not keep their data. It is required.
	SecretCachingClient client.Client
	// ClusterCache keeps connections to the API servers of clusters. Providers that talk
	// to these require it.
	ClusterCache clustercache.ClusterCache
	// Clock is what time is read from; nil means the real one.
	Clock clock.PassiveClock
	// Random is the source of names and of jitter; nil means math/rand.
	Random requeue.Random
	// Metrics is where metrics are registered; nil means the registry that managers
	// serve.
	Metrics prometheus.Registerer
}

// Requirement is a field of its options that a provider needs and others do not.
type Requirement struct {
	// Name is that of the field, and Given reports whether it is set.
	Name  string
	Given bool
}

// NeedsClusterCache requires ClusterCache.
func (o *Options) NeedsClusterCache() Requirement {
	return Requirement{"ClusterCache", o.ClusterCache != nil}
}

// Complete fills in the defaults, and returns an error that names what the provider needs
// and lacks.
func (o *Options) Complete(requires ...Requirement) error {
	var missing []string
	if o.SecretCachingClient == nil {
		missing = append(missing, "SecretCachingClient")
	}
	for _, required := range requires {
		if !required.Given {
			missing = append(missing, required.Name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("required by the provider and not set: %s", strings.Join(missing, ", "))
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Random == nil {
		o.Random = requeue.SharedRandom{}
	}
	if o.Metrics == nil {
		o.Metrics = ctrlmetrics.Registry
	}

	return nil
}

// Controller are the options of the provider's controllers.
func (o *Options) Controller() controller.Options {
	return controller.Options{MaxConcurrentReconciles: o.Concurrency}
}

// Webhook is a webhook of a kind.
type Webhook interface {
	SetupWebhookWithManager(mgr ctrl.Manager) error
}

// SetupWebhooks registers webhooks.
func SetupWebhooks(mgr ctrl.Manager, webhooks ...Webhook) error {
	for _, webhook := range webhooks {
		if err := webhook.SetupWebhookWithManager(mgr); err != nil {
			return err
		}
	}

	return nil
}

// SetupClusterCache adds the ClusterCache to a manager. Kubeconfigs that name files or
// programs are not used: Cluster API refuses programs only, and users may write kubeconfigs.
func SetupClusterCache(ctx context.Context, mgr ctrl.Manager, options clustercache.Options, controllerOptions controller.Options) (clustercache.ClusterCache, error) {
	options.SecretClient = kubeconfig.NewReader(options.SecretClient)
	cache, err := clustercache.SetupWithManager(ctx, mgr, options, controllerOptions)
	if err != nil {
		return nil, fmt.Errorf("creating the cluster cache: %w", err)
	}

	return cache, nil
}
