// The controlplane manager runs the TalosControlPlane control plane provider.
package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/cmd/internal/machines"
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
	"github.com/capi-talos/capi-talos/controlplane/setup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	talos := machines.New()
	defer talos.Close()
	startup.Main(startup.Program{
		Name:              "capt-control-plane-manager",
		NeedsClusterCache: true,
		AddToScheme:       setup.AddToScheme,
		CachedSecrets:     setup.CachedSecrets(),
		Setup: func(ctx context.Context, mgr ctrl.Manager, options provider.Options) error {
			dialer, err := talos.Dialer()
			if err != nil {
				return err
			}
			return setup.SetupWithManager(ctx, mgr, setup.Options{Options: options, Dialer: dialer})
		},
	})
}
