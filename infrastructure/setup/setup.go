// Package setup is the only door to the Talos infrastructure provider: it
// registers its kinds, controllers and webhooks.
package setup

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/container"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
	"github.com/capi-talos/capi-talos/infrastructure/internal/webhooks"
)

// Options are what the provider needs from its manager.
type Options struct {
	// WatchFilterValue restricts the controllers to objects with this value of
	// the label cluster.x-k8s.io/watch-filter; empty means all.
	WatchFilterValue string
	// Concurrency is how many objects of a kind are reconciled at a time; 0
	// means 10.
	Concurrency int
	// ProbeInterval is how often a machine is looked at that nobody has claimed,
	// or that does not answer; 0 means 10 seconds.
	ProbeInterval time.Duration
	// Dialer opens connections to Talos machines. It is required.
	Dialer talosclient.Dialer
	// Clock tells the time; nil means the real one.
	Clock clock.PassiveClock
	// Random picks hosts, mints provider IDs and spreads retries; nil means
	// math/rand.
	Random requeue.Random
	// Metrics is where metrics are registered; nil means the registry that managers
	// serve.
	Metrics prometheus.Registerer
	// SecretCachingClient reads Secrets from the cache. It is required.
	SecretCachingClient client.Client
	// ClusterDomain is the DNS domain of the management cluster; empty means
	// cluster.local.
	ClusterDomain string
	// ImageFactory is the host, and the port if any, of the Image Factory from which
	// installer images come; empty means the one that has made what a machine has
	// booted, else factory.talos.dev.
	ImageFactory string
}

const (
	defaultConcurrency   = 10
	defaultProbeInterval = 10 * time.Second
	defaultClusterDomain = "cluster.local"
)

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("adding the kinds of the infrastructure provider: %w", err)
		}
	}

	return nil
}

// SetupWithManager registers the controllers and webhooks of the provider. It
// asks the management cluster which user the manager is.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if options.Dialer == nil || options.SecretCachingClient == nil {
		return errors.New("setting up the infrastructure provider: Dialer and SecretCachingClient are required")
	}
	if err := checkFactory(options.ImageFactory); err != nil {
		return fmt.Errorf("setting up the infrastructure provider: %w", err)
	}
	options.setDefaults()
	if err := setupControllers(ctx, mgr, options); err != nil {
		return err
	}
	user, err := whoAmI(ctx, mgr)
	if err != nil {
		return err
	}
	for _, webhook := range []interface{ SetupWebhookWithManager(ctrl.Manager) error }{
		&webhooks.TalosCluster{}, &webhooks.TalosClusterTemplate{}, &webhooks.TalosMachine{Manager: user}, &webhooks.TalosMachineTemplate{},
		&webhooks.TalosHost{Reader: mgr.GetAPIReader(), Reviews: mgr.GetClient(), Manager: user},
	} {
		if err := webhook.SetupWebhookWithManager(mgr); err != nil {
			return err
		}
	}

	return nil
}

// checkFactory refuses what is no host with an optional port: it becomes the first
// part of an image.
func checkFactory(factory string) error {
	if factory == "" {
		return nil
	}
	parsed, err := url.Parse("https://" + factory)
	if err != nil || parsed.Host != factory || parsed.Hostname() == "" {
		return fmt.Errorf("the image factory must be a host with an optional port, such as %s, not %q", metal.DefaultImageFactory, factory)
	}

	return nil
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Random == nil {
		o.Random = requeue.SharedRandom{}
	}
	if o.Metrics == nil {
		o.Metrics = ctrlmetrics.Registry
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.ProbeInterval == 0 {
		o.ProbeInterval = defaultProbeInterval
	}
	if o.ClusterDomain == "" {
		o.ClusterDomain = defaultClusterDomain
	}
}

func (o *Options) pacing() pacing.Pacing {
	return pacing.Pacing{Interval: o.ProbeInterval, Clock: o.Clock, Random: o.Random}
}

func setupControllers(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := taloshost.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	store := credentials.New(mgr.GetClient(), secrets.NewReader(options.SecretCachingClient, mgr.GetAPIReader()), options.Clock)
	follower := machinewatch.New(ctx, options.Dialer, controllers.TalosMachineOf)
	hostWatcher := machinewatch.New(ctx, options.Dialer, controllers.HostOf)
	probes := probe.NewLog(options.Clock)
	counts := metrics.NewCounts()
	if err := registerMetrics(ctx, mgr, options, probes, counts, hostWatcher, follower); err != nil {
		return err
	}
	concurrency := controller.Options{MaxConcurrentReconciles: options.Concurrency}

	clusters := &controllers.ClusterReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterDomain: options.ClusterDomain, WatchFilterValue: options.WatchFilterValue,
	}
	if err := clusters.SetupWithManager(ctx, mgr, concurrency); err != nil {
		return err
	}
	machines := machineReconciler(mgr, options, store, probes, counts, follower)
	if err := machines.SetupWithManager(ctx, mgr, concurrency); err != nil {
		return err
	}
	hosts := &controllers.HostReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Dialer: options.Dialer, Credentials: store,
		Clock: options.Clock, Pacing: options.pacing(), Recorder: reconciliation.NewEventRecorder(mgr, "taloshost-controller"),
		Probes: probes, Counts: counts, Tracker: machinewatch.NewTracker(hostWatcher, options.Clock), Changes: hostWatcher.Events(),
		WatchFilterValue: options.WatchFilterValue,
	}
	if err := hosts.SetupWithManager(ctx, mgr, concurrency); err != nil {
		return err
	}
	templates := &controllers.MachineTemplateReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), WatchFilterValue: options.WatchFilterValue}

	return templates.SetupWithManager(ctx, mgr, concurrency)
}

// machineReconciler is the controller of TalosMachines, with both ways of getting one.
func machineReconciler(
	mgr ctrl.Manager, options Options, store *credentials.Store, probes *probe.Log, counts *metrics.Counts, follower *machinewatch.Watcher,
) *controllers.MachineReconciler {
	events := reconciliation.NewEventRecorder(mgr, "talosmachine-controller")

	return &controllers.MachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Metal: &metal.Backend{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Dialer: options.Dialer, Credentials: store,
			Probes: probes, Counts: counts, Tracker: machinewatch.NewTracker(follower, options.Clock),
			Clock: options.Clock, Random: options.Random, Recorder: events, Pacing: options.pacing(),
			ImageFactory: options.ImageFactory,
		},
		Container: &container.Backend{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Dialer: options.Dialer, Credentials: store,
			Tracker: machinewatch.NewTracker(follower, options.Clock), ClusterDomain: options.ClusterDomain,
			Clock: options.Clock, Random: options.Random, Recorder: events, Pacing: options.pacing(),
		},
		Changes:          follower.Events(),
		WatchFilterValue: options.WatchFilterValue,
	}
}

// registerMetrics registers the metrics of hosts. The machine of a host has answered
// just now while it is watched; else when it was last asked.
func registerMetrics(ctx context.Context, mgr ctrl.Manager, options Options, probes *probe.Log, counts *metrics.Counts, hosts, machines *machinewatch.Watcher) error {
	list := func() []infrav1.TalosHost {
		found := &infrav1.TalosHostList{}
		if err := mgr.GetClient().List(ctx, found, client.UnsafeDisableDeepCopy); err != nil {
			// The cache has not begun, or has ended.
			return nil
		}
		return found.Items
	}
	answered := func(host *infrav1.TalosHost) (time.Time, bool) {
		key := client.ObjectKeyFromObject(host)
		if hosts.Watching(key) || machines.Watching(client.ObjectKey{Namespace: host.Namespace, Name: host.Spec.ConsumerRef.Name}) {
			return options.Clock.Now(), true
		}
		return probes.Last(key)
	}

	return metrics.NewHosts(list, answered, counts).Register(options.Metrics)
}

// whoAmI asks which user the manager is.
func whoAmI(ctx context.Context, mgr ctrl.Manager) (string, error) {
	review := &authenticationv1.SelfSubjectReview{}
	writer, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme()})
	if err == nil {
		err = writer.Create(ctx, review)
	}
	if err != nil {
		return "", fmt.Errorf("asking which user the manager is: %w", err)
	}

	return review.Status.UserInfo.Username, nil
}
