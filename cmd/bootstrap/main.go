// The bootstrap manager runs the TalosConfig bootstrap provider.
package main

import (
	"github.com/capi-talos/capi-talos/bootstrap/setup"
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func main() {
	startup.Main(startup.Program{
		Name:          "capt-bootstrap-manager",
		AddToScheme:   setup.AddToScheme,
		CachedSecrets: setup.CachedSecrets(),
		Setup:         setup.SetupWithManager,
	})
}
