package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-talosclustertemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=talosclustertemplates,versions=v1alpha1,name=validation.talosclustertemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosClusterTemplate validates TalosClusterTemplates.
type TalosClusterTemplate struct{}

var _ admission.Validator[*infrav1.TalosClusterTemplate] = &TalosClusterTemplate{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosClusterTemplate) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosClusterTemplate{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosClusterTemplate webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosClusterTemplate) ValidateCreate(_ context.Context, object *infrav1.TalosClusterTemplate) (admission.Warnings, error) {
	return nil, invalid(infrav1.TalosClusterTemplateKind, object.Name, append(object.Spec.Template.ObjectMeta.Validate(field.NewPath("spec", "template", "metadata")), validateCluster(&object.Spec.Template.Spec, field.NewPath("spec", "template", "spec"))...))
}

// ValidateUpdate refuses changes of what is immutable.
func (w *TalosClusterTemplate) ValidateUpdate(ctx context.Context, before, after *infrav1.TalosClusterTemplate) (admission.Warnings, error) {
	return nil, refuseChange(ctx, infrav1.TalosClusterTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec, after, field.NewPath("spec", "template", "spec"),
		"create a new TalosClusterTemplate and refer to it instead")
}

// ValidateDelete allows every deletion.
func (w *TalosClusterTemplate) ValidateDelete(context.Context, *infrav1.TalosClusterTemplate) (admission.Warnings, error) {
	return nil, nil
}
