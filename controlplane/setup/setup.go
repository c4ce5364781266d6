// Package setup is the only door to the Talos control plane provider: it
// registers its kinds, controllers and webhooks.
package setup

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/controllers"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/controlplane/internal/webhooks"
)

// AddToScheme adds the kinds that the provider reads and writes.
func AddToScheme(scheme *runtime.Scheme) error {
	kinds := runtime.NewSchemeBuilder(clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, backupv1.AddToScheme, autoscalingv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return fmt.Errorf("adding the kinds of the control plane provider: %w", err)
	}

	return nil
}

// CachedSecrets are the ends of the names of the Secrets whose data the provider reads
// again and again, through Options.SecretCachingClient.
func CachedSecrets() []string {
	return []string{secrets.BundleName(""), secrets.CAName(""), secrets.TalosconfigName(""), secret.Name("", secret.Kubeconfig)}
}

// Options are what the provider is built on.
type Options struct {
	provider.Options

	// Dialer opens connections to Talos machines. It is required.
	Dialer talosclient.Dialer
}

// SetupWithManager registers the controllers and webhooks of the provider.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := options.Complete(options.NeedsClusterCache(), provider.Requirement{Name: "Dialer", Given: options.Dialer != nil}); err != nil {
		return fmt.Errorf("setting up the control plane provider: %w", err)
	}

	counts := metrics.New()
	if err := counts.Register(options.Metrics); err != nil {
		return err
	}
	reconciler := &controllers.Reconciler{
		Client:              mgr.GetClient(),
		APIReader:           mgr.GetAPIReader(),
		SecretCachingClient: options.SecretCachingClient,
		ClusterCache:        options.ClusterCache,
		Dialer:              options.Dialer,
		Watcher:             machinewatch.New(ctx, options.Dialer, nodes.MachineOf),
		Prober:              health.HTTPProber{},
		Clock:               options.Clock,
		Random:              options.Random,
		Recorder:            reconciliation.NewEventRecorder(mgr, "taloscontrolplane-controller"),
		Metrics:             counts,
		WatchFilterValue:    options.WatchFilterValue,
	}
	if err := reconciler.SetupWithManager(ctx, mgr, options.Controller()); err != nil {
		return err
	}
	// Webhooks are asked about all namespaces, the cache knows those that the
	// manager watches.
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("creating the client of the webhooks: %w", err)
	}

	return provider.SetupWebhooks(mgr,
		&webhooks.TalosControlPlane{Client: live}, &webhooks.TalosControlPlaneTemplate{}, &webhooks.Scale{})
}
