package webhooks

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-taloscluster,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=talosclusters,versions=v1alpha1,name=validation.taloscluster.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosCluster validates TalosClusters.
type TalosCluster struct{}

var _ admission.Validator[*infrav1.TalosCluster] = &TalosCluster{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosCluster) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosCluster{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosCluster webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosCluster) ValidateCreate(_ context.Context, object *infrav1.TalosCluster) (admission.Warnings, error) {
	return nil, invalid(infrav1.TalosClusterKind, object.Name, validateCluster(&object.Spec, field.NewPath("spec")))
}

// ValidateUpdate checks a change. That the endpoint is set once, the kind's own
// rules say.
func (w *TalosCluster) ValidateUpdate(_ context.Context, before, after *infrav1.TalosCluster) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}

	return nil, invalid(infrav1.TalosClusterKind, after.Name, validateCluster(&after.Spec, field.NewPath("spec")))
}

// ValidateDelete allows every deletion.
func (w *TalosCluster) ValidateDelete(context.Context, *infrav1.TalosCluster) (admission.Warnings, error) {
	return nil, nil
}
