// The infrastructure manager runs the Talos infrastructure provider.
package main

import (
	"context"
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/cmd/internal/startup"
	"github.com/capi-talos/capi-talos/infrastructure/setup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// defaultProbeInterval is that of the provider.
const defaultProbeInterval = 10 * time.Second

func main() {
	probeInterval := pflag.Duration("host-probe-interval", defaultProbeInterval,
		"How often a machine is looked at that nobody has claimed, or that does not answer.")
	startup.Main(startup.Program{
		Name:          "capt-infrastructure-manager",
		AddToScheme:   setup.AddToScheme,
		CacheByObject: setup.CacheByObject(),
		Setup: func(ctx context.Context, mgr ctrl.Manager, env startup.Environment) error {
			return setup.SetupWithManager(ctx, mgr, setup.Options{
				WatchFilterValue:    env.WatchFilterValue,
				Concurrency:         env.Concurrency,
				ProbeInterval:       *probeInterval,
				Dialer:              env.Dialer,
				SecretCachingClient: env.SecretCachingClient,
			})
		},
	})
}
