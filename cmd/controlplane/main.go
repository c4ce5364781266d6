// The controlplane manager runs the TalosControlPlane control plane provider.
package main

import (
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
	"github.com/capi-talos/capi-talos/controlplane/setup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	startup.Main(startup.Program{
		Name:              "capt-control-plane-manager",
		NeedsClusterCache: true,
		AddToScheme:       setup.AddToScheme,
		CachedSecrets:     setup.CachedSecrets(),
		Setup:             setup.SetupWithManager,
	})
}
