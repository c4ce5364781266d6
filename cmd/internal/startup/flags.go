package startup

import (
	"cmp"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
)

// defaults follow Cluster API's own managers, so that one set of arguments
// fits all of a management cluster.
const (
	defaultConcurrency   = 100
	defaultQPS           = 100
	defaultBurst         = 200
	defaultClusterQPS    = 20
	defaultClusterBurst  = 30
	defaultWebhookPort   = 9443
	defaultSyncPeriod    = 10 * time.Minute
	defaultLeaseDuration = 60 * time.Second
	defaultRenewDeadline = 40 * time.Second
	defaultRetryPeriod   = 5 * time.Second
)

// options are the command line of a manager.
type options struct {
	leaderElect         bool
	leaseDuration       time.Duration
	renewDeadline       time.Duration
	retryPeriod         time.Duration
	namespace           string
	watchFilter         string
	profilerAddress     string
	contentionProfiling bool
	concurrency         int
	clusterConcurrency  int
	qps                 float32
	burst               int
	clusterQPS          float32
	clusterBurst        int
	syncPeriod          time.Duration
	webhookPort         int
	webhookCertDir      string
	webhookCertName     string
	webhookKeyName      string
	healthAddress       string
	manager             flags.ManagerOptions
	logs                *logs.Options
}

// addTo adds the flags to fs. Those of a program have its defaults.
func (o *options) addTo(fs *pflag.FlagSet, program Program) {
	o.logs = logs.NewOptions()
	logsv1.AddFlags(o.logs, fs)
	flags.AddManagerOptions(fs, &o.manager)

	fs.BoolVar(&o.leaderElect, "leader-elect", false, "Let only one of several managers act at a time.")
	fs.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", defaultLeaseDuration, "How long another manager waits before it takes the lead.")
	fs.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", defaultRenewDeadline, "How long the leader tries to renew its lease before it gives up.")
	fs.DurationVar(&o.retryPeriod, "leader-elect-retry-period", defaultRetryPeriod, "How long to wait between two tries to take or renew the lease.")
	fs.StringVar(&o.namespace, "namespace", "", "The one namespace to watch; empty means all.")
	fs.StringVar(&o.watchFilter, "watch-filter", "", "Only objects whose label "+clusterv1.WatchLabel+" has this value are reconciled; empty means all.")
	fs.StringVar(&o.profilerAddress, "profiler-address", "", "The address of a profiler without authentication, for example localhost:6060; empty means none. The diagnostics endpoint has one with authentication.")
	fs.BoolVar(&o.contentionProfiling, "contention-profiling", false, "Let profiles tell where goroutines block.")
	fs.IntVar(&o.concurrency, "concurrency", cmp.Or(program.Concurrency, defaultConcurrency), "How many objects of one kind are reconciled at the same time.")
	fs.IntVar(&o.clusterConcurrency, "clustercache-concurrency", defaultConcurrency, "How many workload clusters are connected to at the same time.")
	fs.Float32Var(&o.qps, "kube-api-qps", defaultQPS, "Queries per second to the management cluster's API server.")
	fs.IntVar(&o.burst, "kube-api-burst", defaultBurst, "Queries in one burst to the management cluster's API server.")
	fs.Float32Var(&o.clusterQPS, "clustercache-client-qps", defaultClusterQPS, "Queries per second to the API server of one workload cluster.")
	fs.IntVar(&o.clusterBurst, "clustercache-client-burst", defaultClusterBurst, "Queries in one burst to the API server of one workload cluster.")
	fs.DurationVar(&o.syncPeriod, "sync-period", defaultSyncPeriod, "The longest time between two reconciles of an object.")
	fs.IntVar(&o.webhookPort, "webhook-port", defaultWebhookPort, "The port of the webhook server.")
	fs.StringVar(&o.webhookCertDir, "webhook-cert-dir", "/tmp/k8s-webhook-server/serving-certs/", "The folder of the webhook server's certificate and key.")
	fs.StringVar(&o.webhookCertName, "webhook-cert-name", "tls.crt", "The file of the webhook server's certificate.")
	fs.StringVar(&o.webhookKeyName, "webhook-key-name", "tls.key", "The file of the webhook server's key.")
	fs.StringVar(&o.healthAddress, "health-addr", ":9440", "The address of the health endpoint.")
}
