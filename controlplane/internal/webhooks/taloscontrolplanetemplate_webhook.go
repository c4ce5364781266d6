package webhooks

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// +kubebuilder:webhook:verbs=create;update,path=/mutate-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplanetemplate,mutating=true,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanetemplates,versions=v1beta1,name=default.taloscontrolplanetemplate.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplanetemplate,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanetemplates,versions=v1beta1,name=validation.taloscontrolplanetemplate.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosControlPlaneTemplate defaults and validates TalosControlPlaneTemplates.
type TalosControlPlaneTemplate struct{}

var (
	_ admission.Defaulter[*controlplanev1.TalosControlPlaneTemplate] = &TalosControlPlaneTemplate{}
	_ admission.Validator[*controlplanev1.TalosControlPlaneTemplate] = &TalosControlPlaneTemplate{}
)

// SetupWebhookWithManager registers the webhooks with mgr.
func (w *TalosControlPlaneTemplate) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &controlplanev1.TalosControlPlaneTemplate{}).WithDefaulter(w).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosControlPlaneTemplate webhooks: %w", err)
	}

	return nil
}

// Default fills in what the object leaves open.
func (w *TalosControlPlaneTemplate) Default(_ context.Context, template *controlplanev1.TalosControlPlaneTemplate) error {
	defaultTemplate(&template.Spec.Template.Spec)

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosControlPlaneTemplate) ValidateCreate(_ context.Context, template *controlplanev1.TalosControlPlaneTemplate) (admission.Warnings, error) {
	return nil, invalidTemplate(template.Name, w.validate(nil, template))
}

// ValidateUpdate refuses changes of the specification, but for the dry runs of
// the topology controller.
func (w *TalosControlPlaneTemplate) ValidateUpdate(ctx context.Context, before, after *controlplanev1.TalosControlPlaneTemplate) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if topology.IsDryRunRequest(req, after) {
		return nil, invalidTemplate(after.Name, w.validate(before, after))
	}
	// What was stored before a default existed must not look like a change.
	before = before.DeepCopy()
	defaultTemplate(&before.Spec.Template.Spec)
	if !apiequality.Semantic.DeepEqual(before.Spec.Template.Spec, after.Spec.Template.Spec) {
		return nil, invalidTemplate(after.Name, field.ErrorList{field.Forbidden(field.NewPath("spec", "template", "spec"),
			"is immutable; create a new TalosControlPlaneTemplate and refer to it instead")})
	}

	return nil, nil
}

// ValidateDelete allows every deletion.
func (w *TalosControlPlaneTemplate) ValidateDelete(context.Context, *controlplanev1.TalosControlPlaneTemplate) (admission.Warnings, error) {
	return nil, nil
}

// validate checks a template by itself; before is nil for a new one. The number of
// replicas is not known here; the TalosControlPlanes made from it are checked with theirs.
func (w *TalosControlPlaneTemplate) validate(before, after *controlplanev1.TalosControlPlaneTemplate) field.ErrorList {
	stored, spec := ptr.Deref(before, controlplanev1.TalosControlPlaneTemplate{}).Spec.Template.Spec, &after.Spec.Template.Spec
	path := field.NewPath("spec", "template", "spec")
	machines, template := path.Child("machineTemplate"), &spec.MachineTemplate
	errs := after.Spec.Template.ObjectMeta.Validate(field.NewPath("spec", "template", "metadata"))
	errs = append(errs, template.ObjectMeta.Validate(machines.Child("metadata"))...)
	errs = append(errs, validateAnnotations(stored.MachineTemplate.ObjectMeta.Annotations, template.ObjectMeta.Annotations, machines.Child("metadata", "annotations"))...)
	errs = append(errs, validateTaints(stored.MachineTemplate.Spec.Taints, template.Spec.Taints, machines.Child("spec", "taints"))...)
	if before == nil || !apiequality.Semantic.DeepEqual(stored.TalosConfigSpec, spec.TalosConfigSpec) {
		errs = append(errs, validateConfig(&spec.TalosConfigSpec, path.Child("talosConfigSpec"))...)
	}
	errs = append(errs, validateRollout(&spec.Rollout, path.Child("rollout"))...)
	if before == nil || stored.MachineNaming != spec.MachineNaming {
		errs = append(errs, validateNaming(spec.MachineNaming.Template, "control-plane", path.Child("machineNaming", "template"))...)
	}

	return errs
}

func invalidTemplate(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneTemplateKind).GroupKind(), name, errs)
}
