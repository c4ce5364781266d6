// Package setup is the only door to the Talos bootstrap provider: it registers
// its kinds, controllers and webhooks.
package setup

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/internal/controllers"
	"github.com/capi-talos/capi-talos/bootstrap/internal/webhooks"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(clusterv1.AddToScheme, bootstrapv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return fmt.Errorf("adding the kinds of the bootstrap provider: %w", err)
	}

	return nil
}

// CachedSecrets are the ends of the names of the Secrets whose data the provider reads
// again and again, through Options.SecretCachingClient.
func CachedSecrets() []string {
	return []string{secrets.BundleName(""), secrets.CAName(""), secrets.TalosconfigName("")}
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options provider.Options) error {
	if err := options.Complete(); err != nil {
		return fmt.Errorf("setting up the bootstrap provider: %w", err)
	}

	reconciler := &controllers.Reconciler{
		Client:              mgr.GetClient(),
		APIReader:           mgr.GetAPIReader(),
		SecretCachingClient: options.SecretCachingClient,
		Clock:               options.Clock,
		Recorder:            reconciliation.NewEventRecorder(mgr, "talosconfig-controller"),
		WatchFilterValue:    options.WatchFilterValue,
	}
	if err := reconciler.SetupWithManager(ctx, mgr, options.Controller()); err != nil {
		return err
	}

	return provider.SetupWebhooks(mgr, &webhooks.TalosConfig{}, &webhooks.TalosConfigTemplate{})
}
