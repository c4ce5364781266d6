// Package setup is the only door to the Talos bootstrap provider: it registers
// its kinds, controllers and webhooks.
package setup

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/internal/controllers"
	"github.com/capi-talos/capi-talos/bootstrap/internal/webhooks"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// Options are what the provider needs from its manager.
type Options struct {
	// WatchFilterValue restricts the controllers to objects with this value of
	// the label cluster.x-k8s.io/watch-filter; empty means all.
	WatchFilterValue string
	// Concurrency is how many TalosConfigs are reconciled at a time; 0 means 10.
	Concurrency int
	// Clock tells the time; nil means the real one.
	Clock clock.PassiveClock
	// SecretCachingClient reads Secrets from the cache. It is required.
	SecretCachingClient client.Client
}

// defaultConcurrency is used when Options.Concurrency is 0.
const defaultConcurrency = 10

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, bootstrapv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("adding the kinds of the bootstrap provider: %w", err)
		}
	}

	return nil
}

// CachedSecrets are the ends of the names of the Secrets whose data the provider reads
// again and again, through Options.SecretCachingClient.
func CachedSecrets() []string {
	return []string{secrets.BundleName(""), secrets.CAName(""), secrets.TalosconfigName("")}
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if options.SecretCachingClient == nil {
		return errors.New("setting up the bootstrap provider: SecretCachingClient is required")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Concurrency == 0 {
		options.Concurrency = defaultConcurrency
	}

	reconciler := &controllers.Reconciler{
		Client:              mgr.GetClient(),
		APIReader:           mgr.GetAPIReader(),
		SecretCachingClient: options.SecretCachingClient,
		Clock:               options.Clock,
		Recorder:            reconciliation.NewEventRecorder(mgr, "talosconfig-controller"),
		WatchFilterValue:    options.WatchFilterValue,
	}
	if err := reconciler.SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: options.Concurrency}); err != nil {
		return err
	}
	trials := &configgen.Trials{}
	for _, webhook := range []interface{ SetupWebhookWithManager(ctrl.Manager) error }{
		&webhooks.TalosConfig{Trials: trials}, &webhooks.TalosConfigTemplate{Trials: trials},
	} {
		if err := webhook.SetupWebhookWithManager(mgr); err != nil {
			return err
		}
	}

	return nil
}
