// The addons manager runs the add-on provider.
package main

import (
	"context"
	"net/http"

	"github.com/spf13/pflag"
	// The image has no certificates of the outside, and charts come from there.
	_ "golang.org/x/crypto/x509roots/fallback"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/addons/setup"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// gcPercent is half of what is usual: what Helm makes while it works is most of the memory
// that the manager ever has, and none of it stays.
const gcPercent = 50

// concurrency is the default of --concurrency. What takes long is not done by reconciles
// but beside them, as --max-actions says, so that a few workers keep up with it; each has a
// stack of its own.
const concurrency = 20

func main() {
	maxActions := pflag.Int("max-actions", setup.DefaultMaxActions, "How many releases are acted on at the same time.")
	perCluster := pflag.Int("max-actions-per-cluster", setup.DefaultMaxActionsPerCluster, "How many releases of one cluster are acted on at the same time.")
	allowLocal := pflag.Bool("allow-local-sources", false,
		"Let charts come from loopback and link-local addresses: the manager's own Pod, and the metadata of the cloud that it runs in. Whoever may create a TalosClusterAddon can ask these then.")
	startup.Main(startup.Program{
		Name:              "capt-addon-manager",
		NeedsClusterCache: true,
		Concurrency:       concurrency,
		GCPercent:         gcPercent,
		WatchesSecrets:    true,
		AddToScheme:       setup.AddToScheme,
		CacheByObject:     setup.CacheByObject(),
		Setup: func(ctx context.Context, mgr ctrl.Manager, options provider.Options) error {
			return setup.SetupWithManager(ctx, mgr, setup.Options{
				Options: options, MaxActions: *maxActions, MaxActionsPerCluster: *perCluster, AllowLocalSources: *allowLocal, Proxy: http.ProxyFromEnvironment,
			})
		},
	})
}
