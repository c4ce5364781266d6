// Package setup is the only door to the backup provider: it registers its kinds, controllers
// and webhooks.
package setup

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/controllers"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/snapshot"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
	"github.com/capi-talos/capi-talos/backup/internal/webhooks"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// The defaults of Options. Each backup has two parts of 5 MiB in memory while it is stored: one that is on its
// way, and the next one.
const (
	DefaultMaxBackups           = 4
	DefaultMaxBackupsPerCluster = 1
)

// tool is what manifests of backups say that has made them.
const tool = "capi-talos"

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(corev1.AddToScheme, clusterv1.AddToScheme, backupv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return fmt.Errorf("adding the kinds of the backup provider: %w", err)
	}

	return nil
}

// CachedSecrets are the ends of the names of the Secrets whose data the provider reads again
// and again, through Options.SecretCachingClient. Those of stores are read live.
func CachedSecrets() []string { return []string{secrets.BundleName("")} }

// Options are what the provider is built on.
type Options struct {
	provider.Options

	// Dialer opens connections to Talos machines. It is required.
	Dialer talosclient.Dialer
	// MaxBackups is how many backups are made, verified or deleted at a time; 0 means 4.
	MaxBackups int
	// MaxBackupsPerCluster is how many of one cluster are; 0 means 1.
	MaxBackupsPerCluster int
	// ScratchFolder is where backups are unpacked that are verified. Nothing else may be in
	// it: it is cleared. It is required.
	ScratchFolder string
	// ScratchReservePercent is how much of its filesystem is left free, from 0 to 100.
	ScratchReservePercent int
	// EtcdFolder has the programs of etcd: etcdutl-3.6, etcd-3.6 and so on. It is required.
	EtcdFolder string
	// AllowLocalEndpoints lets stores be at loopback and link-local addresses.
	AllowLocalEndpoints bool
	// Proxy picks the proxy of a request to a store; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := options.complete(); err != nil {
		return fmt.Errorf("setting up the backup provider: %w", err)
	}
	work := jobs.New[metrics.Step, controllers.Result](ctx, jobs.Limits{Total: options.MaxBackups, PerCluster: options.MaxBackupsPerCluster})
	counts := metrics.New(work.Count)
	if err := counts.Register(options.Metrics); err != nil {
		return err
	}
	space, err := scratch.New(options.ScratchFolder, options.ScratchReservePercent)
	if err != nil {
		return err
	}
	opener := &stores.Opener{
		Live: mgr.GetAPIReader(), Clock: options.Clock, Guard: egress.Guard{AllowLocal: options.AllowLocalEndpoints, Proxy: options.Proxy},
	}
	programs := etcdtool.Programs{Folder: options.EtcdFolder}
	ofStores := &controllers.StoreReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Stores: opener, Metrics: counts, Clock: options.Clock, Random: options.Random,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosbackupstore-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	backups := &controllers.BackupReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), SecretCachingClient: options.SecretCachingClient, Stores: opener,
		Taker: &snapshot.Taker{Dialer: options.Dialer}, Verifier: &verify.Verifier{Scratch: space, Programs: programs},
		Jobs: work, Metrics: counts, Clock: options.Clock, Random: options.Random,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosetcdbackup-controller"), Tool: tool, WatchFilterValue: options.WatchFilterValue,
	}
	schedules := &controllers.ScheduleReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), SecretCachingClient: options.SecretCachingClient, Metrics: counts, Clock: options.Clock,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosetcdbackupschedule-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	restores := &controllers.RestoreReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), SecretCachingClient: options.SecretCachingClient, Stores: opener, Dialer: options.Dialer,
		Maker: &restore.Maker{Scratch: space, Programs: programs}, Workload: &restore.Workload{Live: mgr.GetAPIReader()},
		Jobs:    jobs.New[metrics.Step, controllers.RestoreResult](ctx, jobs.Limits{Total: options.MaxBackups, PerCluster: 1}),
		Metrics: counts, Clock: options.Clock, Random: options.Random,
		Recorder: reconciliation.NewEventRecorder(mgr, "talosetcdrestore-controller"), WatchFilterValue: options.WatchFilterValue,
	}
	with := options.Controller()

	return errors.Join(
		ofStores.SetupWithManager(ctx, mgr, with), backups.SetupWithManager(ctx, mgr, with), schedules.SetupWithManager(ctx, mgr, with),
		restores.SetupWithManager(ctx, mgr, with),
		webhooks.SetupWithManager(mgr),
	)
}

func (o *Options) complete() error {
	if o.MaxBackups == 0 {
		o.MaxBackups = DefaultMaxBackups
	}
	if o.MaxBackupsPerCluster == 0 {
		o.MaxBackupsPerCluster = DefaultMaxBackupsPerCluster
	}

	return o.Options.Complete(
		provider.Requirement{Name: "Dialer", Given: o.Dialer != nil}, provider.Requirement{Name: "ScratchFolder", Given: o.ScratchFolder != ""},
		provider.Requirement{Name: "EtcdFolder", Given: o.EtcdFolder != ""},
	)
}
