package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-talosmachinetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=talosmachinetemplates,versions=v1alpha1,name=validation.talosmachinetemplate.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosMachineTemplate validates TalosMachineTemplates.
type TalosMachineTemplate struct{}

var _ admission.Validator[*infrav1.TalosMachineTemplate] = &TalosMachineTemplate{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosMachineTemplate) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosMachineTemplate{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosMachineTemplate webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosMachineTemplate) ValidateCreate(_ context.Context, object *infrav1.TalosMachineTemplate) (admission.Warnings, error) {
	return nil, invalid(infrav1.TalosMachineTemplateKind, object.Name, append(object.Spec.Template.ObjectMeta.Validate(field.NewPath("spec", "template", "metadata")), validateMachine(&object.Spec.Template.Spec, field.NewPath("spec", "template", "spec"))...))
}

// ValidateUpdate refuses changes of what is immutable.
func (w *TalosMachineTemplate) ValidateUpdate(ctx context.Context, before, after *infrav1.TalosMachineTemplate) (admission.Warnings, error) {
	return nil, refuseChange(ctx, infrav1.TalosMachineTemplateKind, before.Spec.Template.Spec, after.Spec.Template.Spec, after, field.NewPath("spec", "template", "spec"),
		"create a new TalosMachineTemplate and refer to it instead")
}

// ValidateDelete allows every deletion.
func (w *TalosMachineTemplate) ValidateDelete(context.Context, *infrav1.TalosMachineTemplate) (admission.Warnings, error) {
	return nil, nil
}
