// Package setup is the only door to the Talos infrastructure provider: it
// registers its kinds, controllers and webhooks.
package setup

import (
	"context"
	"fmt"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
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
	provider.Options

	// Dialer opens connections to Talos machines. It is required.
	Dialer talosclient.Dialer
	// ProbeInterval is how often a machine is looked at that nobody has claimed,
	// or that does not answer; 0 means 10 seconds.
	ProbeInterval time.Duration
	// ClusterDomain is the DNS domain of the management cluster; empty means
	// cluster.local.
	ClusterDomain string
	// ImageFactory is the host, and the port if any, of the Image Factory from which
	// installer images come; empty means the one that has made what a machine has
	// booted, else factory.talos.dev.
	ImageFactory string
}

const (
	// DefaultProbeInterval is how often a machine is looked at by default that nobody has
	// claimed, or that does not answer.
	DefaultProbeInterval = 10 * time.Second
	defaultClusterDomain = "cluster.local"
)

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(clusterv1.AddToScheme, bootstrapv1.AddToScheme, infrav1.AddToScheme,
		authenticationv1.AddToScheme, authorizationv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return fmt.Errorf("adding the kinds of the infrastructure provider: %w", err)
	}

	return nil
}

// CachedSecrets are the ends of the names of the Secrets whose data the provider reads
// again and again, through Options.SecretCachingClient.
func CachedSecrets() []string {
	return []string{secrets.BundleName(""), infrav1.AdminSecretSuffix}
}

// SetupWithManager registers the controllers and webhooks of the provider. It
// asks the management cluster which user the manager is.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := options.Complete(provider.Requirement{Name: "Dialer", Given: options.Dialer != nil}); err != nil {
		return fmt.Errorf("setting up the infrastructure provider: %w", err)
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

	return provider.SetupWebhooks(mgr,
		&webhooks.TalosCluster{}, &webhooks.TalosClusterTemplate{}, &webhooks.TalosMachine{Manager: user}, &webhooks.TalosMachineTemplate{},
		&webhooks.TalosHost{Reader: mgr.GetAPIReader(), Reviews: mgr.GetClient(), Manager: user})
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
	if o.ProbeInterval == 0 {
		o.ProbeInterval = DefaultProbeInterval
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
	store := credentials.New(mgr.GetClient(), secretcache.NewReader(options.SecretCachingClient, mgr.GetAPIReader()), options.Clock)
	machineWatcher := machinewatch.New(ctx, options.Dialer, controllers.TalosMachineOf)
	hostWatcher := machinewatch.New(ctx, options.Dialer, controllers.HostOf)
	probes := probe.NewLog(options.Clock)
	counts := metrics.NewCounts()
	if err := registerMetrics(ctx, mgr, options, probes, counts, hostWatcher, machineWatcher); err != nil {
		return err
	}
	concurrency := options.Controller()

	clusters := &controllers.ClusterReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterDomain: options.ClusterDomain,
		Recorder: reconciliation.NewEventRecorder(mgr, "taloscluster-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	if err := clusters.SetupWithManager(ctx, mgr, concurrency); err != nil {
		return err
	}
	machines := machineReconciler(mgr, options, store, probes, counts, machineWatcher)
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
	mgr ctrl.Manager, options Options, store *credentials.Store, probes *probe.Log, counts *metrics.Counts, machineWatcher *machinewatch.Watcher,
) *controllers.MachineReconciler {
	events := reconciliation.NewEventRecorder(mgr, "talosmachine-controller")

	return &controllers.MachineReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(),
		Metal: &metal.Backend{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Dialer: options.Dialer, Credentials: store,
			Probes: probes, Counts: counts, Tracker: machinewatch.NewTracker(machineWatcher, options.Clock),
			Clock: options.Clock, Random: options.Random, Recorder: events, Pacing: options.pacing(),
			ImageFactory: options.ImageFactory,
		},
		Container: &container.Backend{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Dialer: options.Dialer, Credentials: store,
			Tracker: machinewatch.NewTracker(machineWatcher, options.Clock), ClusterDomain: options.ClusterDomain,
			Clock: options.Clock, Random: options.Random, Recorder: events, Pacing: options.pacing(),
		},
		Changes:          machineWatcher.Events(),
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
