// The backup manager runs the backup provider.
package main

import (
	"context"
	"net/http"

	"github.com/spf13/pflag"
	// The image has no certificates of the outside, and stores have them.
	_ "golang.org/x/crypto/x509roots/fallback"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/backup/setup"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/cmd/internal/machines"
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// concurrency is the default of --concurrency. What takes long is not done by reconciles
// but beside them, as --max-backups says.
const concurrency = 20

// gcPercent is less than is usual: most of the memory that is used is what uploads need, and that
// is kept for the next one instead of being collected.
const gcPercent = 15

func main() {
	maxBackups := pflag.Int("max-backups", setup.DefaultMaxBackups, "How many backups are made, verified or deleted at the same time. Each takes about 25 MiB of memory.")
	perCluster := pflag.Int("max-backups-per-cluster", setup.DefaultMaxBackupsPerCluster, "How many backups of one cluster are made, verified or deleted at the same time.")
	allowLocal := pflag.Bool("allow-local-endpoints", false,
		"Let stores be at loopback and link-local addresses: the manager's own Pod, and the metadata of the cloud that it runs in. Whoever may create a TalosBackupStore can ask these then.")
	scratchFolder := pflag.String("scratch-dir", "/scratch", "The folder in which backups are unpacked that are verified: twice the size of a database. What is in it is deleted.")
	// The kubelet evicts Pods when less than a tenth of the filesystem of its node is free.
	scratchReserve := pflag.Int("scratch-reserve-percent", 10, "How much of the filesystem of --scratch-dir is left free, from 0 to 100.")
	etcdFolder := pflag.String("etcd-dir", "/etcd", "The folder with the programs of etcd that verify backups: etcdutl-3.6, etcd-3.6 and so on.")
	talos := machines.New()
	defer talos.Close()
	startup.Main(startup.Program{
		Name:           "capt-backup-manager",
		Concurrency:    concurrency,
		GCPercent:      gcPercent,
		CachedSecrets:  setup.CachedSecrets(),
		WatchesSecrets: true,
		AddToScheme:    setup.AddToScheme,
		Setup: func(ctx context.Context, mgr ctrl.Manager, options provider.Options) error {
			dialer, err := talos.Dialer()
			if err != nil {
				return err
			}
			return setup.SetupWithManager(ctx, mgr, setup.Options{
				Options: options, Dialer: dialer, MaxBackups: *maxBackups, MaxBackupsPerCluster: *perCluster,
				ScratchFolder: *scratchFolder, ScratchReservePercent: *scratchReserve, EtcdFolder: *etcdFolder, AllowLocalEndpoints: *allowLocal, Proxy: http.ProxyFromEnvironment,
			})
		},
	})
}
