package webhooks

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1beta1-talosconfigtemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=talosconfigtemplates,versions=v1beta1,name=validation.talosconfigtemplate.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosConfigTemplate validates TalosConfigTemplates.
type TalosConfigTemplate struct{}

var _ admission.Validator[*bootstrapv1.TalosConfigTemplate] = &TalosConfigTemplate{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosConfigTemplate) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &bootstrapv1.TalosConfigTemplate{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosConfigTemplate webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosConfigTemplate) ValidateCreate(_ context.Context, template *bootstrapv1.TalosConfigTemplate) (admission.Warnings, error) {
	return w.validate(template)
}

// ValidateUpdate refuses changes of the specification, but for the dry runs of
// the topology controller.
func (w *TalosConfigTemplate) ValidateUpdate(ctx context.Context, before, after *bootstrapv1.TalosConfigTemplate) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if topology.IsDryRunRequest(req, after) {
		return w.validate(after)
	}

	return nil, w.invalid(after.Name, field.ErrorList{field.Forbidden(field.NewPath("spec", "template", "spec"),
		"is immutable; create a new TalosConfigTemplate and refer to it instead")})
}

// ValidateDelete allows every deletion.
func (w *TalosConfigTemplate) ValidateDelete(context.Context, *bootstrapv1.TalosConfigTemplate) (admission.Warnings, error) {
	return nil, nil
}

func (w *TalosConfigTemplate) validate(template *bootstrapv1.TalosConfigTemplate) (admission.Warnings, error) {
	path := field.NewPath("spec", "template")
	warnings, errs := configgen.JudgeTemplate(&template.Spec.Template.Spec, path.Child("spec"), "")
	errs = append(template.Spec.Template.ObjectMeta.Validate(path.Child("metadata")), errs...)

	return warnings, w.invalid(template.Name, errs)
}

func (w *TalosConfigTemplate) invalid(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(bootstrapv1.GroupVersion.WithKind(bootstrapv1.TalosConfigTemplateKind).GroupKind(), name, errs)
}
