// Package startup is what the mains of our managers share: flags, logging,
// caches, health checks, leader election.
package startup

import (
	"context"
	"flag"
	"fmt"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	cliflag "k8s.io/component-base/cli/flag"
	logsv1 "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
)

// cacheSyncTimeout leaves a manager of a large management cluster time to fill
// its caches (controller-runtime's default is 2 minutes).
const cacheSyncTimeout = 5 * time.Minute

// Program is one manager.
type Program struct {
	// Name is the manager's name in logs and user agents; the leader election
	// lease is named after it.
	Name string
	// NeedsClusterCache asks for connections to workload clusters.
	NeedsClusterCache bool
	// Concurrency is the default of the flag --concurrency; 0 means 100.
	Concurrency int
	// GCPercent is how much the memory may grow before what is unused of it is collected, in
	// percent of what is used, where the environment variable GOGC does not say it; 0 means
	// 100.
	GCPercent int
	// CachedSecrets are the ends of the names of the Secrets whose data the cache keeps,
	// because the manager reads it again and again; of all others, it keeps the metadata.
	// Those with the kubeconfigs of clusters are kept for the cluster cache without being
	// named here.
	CachedSecrets []string
	// WatchesSecrets has the cache know all Secrets and not those of clusters alone: the
	// manager follows those that users name. Their data is kept as CachedSecrets says.
	WatchesSecrets bool
	// CacheByObject says what the cache holds of kinds of which only a part is read;
	// nil means all.
	CacheByObject map[client.Object]cache.ByObject
	// AddToScheme adds the kinds of the provider.
	AddToScheme func(*runtime.Scheme) error
	// Setup registers controllers and webhooks.
	Setup func(context.Context, ctrl.Manager, provider.Options) error
}

// Main runs the program until it is told to stop, and ends the process with
// exit code 1 when it fails.
func Main(program Program) {
	opts := &options{}
	fs := pflag.CommandLine
	opts.addTo(fs, program)
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	fs.AddGoFlagSet(flag.CommandLine)
	if err := fs.Set("v", "2"); err != nil {
		fail(program.Name, err)
	}
	pflag.Parse()

	if err := run(ctrl.SetupSignalHandler(), program, opts); err != nil {
		fail(program.Name, err)
	}
}

func fail(name string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(1)
}

func run(ctx context.Context, program Program, opts *options) error {
	if err := logsv1.ValidateAndApply(opts.logs, nil); err != nil {
		return fmt.Errorf("reading the log flags: %w", err)
	}
	ctrl.SetLogger(klog.Background())
	if program.GCPercent > 0 && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(program.GCPercent)
	}
	if opts.contentionProfiling {
		goruntime.SetBlockProfileRate(1)
	}

	mgr, err := newManager(program, opts)
	if err != nil {
		return err
	}
	given, err := providerOptions(ctx, program, opts, mgr)
	if err != nil {
		return err
	}
	if err := program.Setup(ctx, mgr, given); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return fmt.Errorf("adding the ready check: %w", err)
	}
	if err := mgr.AddHealthzCheck("webhook", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return fmt.Errorf("adding the health check: %w", err)
	}
	ctrl.Log.Info("Starting manager", "manager", program.Name)
	return mgr.Start(ctx)
}

func newScheme(program Program) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	kinds := runtime.NewSchemeBuilder(clientgoscheme.AddToScheme, clusterv1.AddToScheme, program.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	return scheme, nil
}

func newManager(program Program, opts *options) (ctrl.Manager, error) {
	scheme, err := newScheme(program)
	if err != nil {
		return nil, err
	}
	tlsOptions, metricsOptions, err := flags.GetManagerOptions(opts.manager)
	if err != nil {
		return nil, fmt.Errorf("reading the flags: %w", err)
	}
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the management cluster: %w", err)
	}
	restConfig.QPS, restConfig.Burst, restConfig.UserAgent = opts.qps, opts.burst, program.Name
	restConfig.WarningHandler = apiwarnings.DefaultHandler(klog.Background().WithName("API Server Warning"))

	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                     scheme,
		Controller:                 config.Controller{UsePriorityQueue: new(true), CacheSyncTimeout: cacheSyncTimeout},
		LeaderElection:             opts.leaderElect,
		LeaderElectionID:           program.Name + "-leader-election",
		LeaderElectionResourceLock: resourcelock.LeasesResourceLock,
		LeaseDuration:              &opts.leaseDuration,
		RenewDeadline:              &opts.renewDeadline,
		RetryPeriod:                &opts.retryPeriod,
		HealthProbeBindAddress:     opts.healthAddress,
		PprofBindAddress:           opts.profilerAddress,
		Metrics:                    *metricsOptions,
		Cache:                      cacheOptions(scheme, program, opts),
		Client:                     setup.ManagerClientOptions(),
		WebhookServer: webhook.NewServer(webhook.Options{
			Port: opts.webhookPort, CertDir: opts.webhookCertDir, CertName: opts.webhookCertName, KeyName: opts.webhookKeyName, TLSOpts: tlsOptions,
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return mgr, nil
}

// providerOptions are what the provider needs from its manager.
func providerOptions(ctx context.Context, program Program, opts *options, mgr ctrl.Manager) (provider.Options, error) {
	secrets, err := newSecretClient(mgr)
	if err != nil {
		return provider.Options{}, err
	}
	given := provider.Options{
		WatchFilterValue:    opts.watchFilter,
		Concurrency:         opts.concurrency,
		SecretCachingClient: secrets,
	}
	if !program.NeedsClusterCache {
		return given, nil
	}
	// Nothing of workload clusters is read from caches, so that there is no index: that of
	// Cluster API would have all their Nodes watched.
	given.ClusterCache, err = provider.SetupClusterCache(ctx, mgr, clustercache.Options{
		SecretClient:     secrets,
		Client:           setup.ClusterCacheClientOptions(program.Name, opts.clusterQPS, opts.clusterBurst),
		WatchFilterValue: opts.watchFilter,
	}, controller.Options{MaxConcurrentReconciles: opts.clusterConcurrency})
	if err != nil {
		return provider.Options{}, err
	}
	return given, nil
}
