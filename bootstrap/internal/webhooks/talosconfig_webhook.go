// Package webhooks checks TalosConfigs and TalosConfigTemplates at admission.
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

// +kubebuilder:webhook:verbs=create;update,path=/validate-bootstrap-cluster-x-k8s-io-v1beta1-talosconfig,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs,versions=v1beta1,name=validation.talosconfig.bootstrap.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosConfig validates TalosConfigs.
type TalosConfig struct{}

var _ admission.Validator[*bootstrapv1.TalosConfig] = &TalosConfig{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosConfig) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &bootstrapv1.TalosConfig{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosConfig webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosConfig) ValidateCreate(_ context.Context, config *bootstrapv1.TalosConfig) (admission.Warnings, error) {
	return nil, w.invalid(config.Name, w.validate(config))
}

// ValidateUpdate refuses changes of the specification, but for the dry runs of
// the topology controller.
func (w *TalosConfig) ValidateUpdate(ctx context.Context, before, after *bootstrapv1.TalosConfig) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() || apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if topology.IsDryRunRequest(req, after) {
		return nil, w.invalid(after.Name, w.validate(after))
	}

	return nil, w.invalid(after.Name, field.ErrorList{field.Forbidden(field.NewPath("spec"),
		"is immutable: a machine takes its configuration once; change the template or control plane that the TalosConfig is made from, which replaces the Machine")})
}

// ValidateDelete allows every deletion.
func (w *TalosConfig) ValidateDelete(context.Context, *bootstrapv1.TalosConfig) (admission.Warnings, error) {
	return nil, nil
}

// validate checks a specification. One that a controller has made was judged as the template
// that it is from, perhaps by a release that took what is refused now.
func (w *TalosConfig) validate(config *bootstrapv1.TalosConfig) field.ErrorList {
	path := field.NewPath("spec")
	errs := configgen.FieldErrors(&config.Spec, path)
	if len(config.OwnerReferences) == 0 {
		errs = append(configgen.MissingValues(&config.Spec, path), errs...)
	}

	return errs
}

func (w *TalosConfig) invalid(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(bootstrapv1.GroupVersion.WithKind(bootstrapv1.TalosConfigKind).GroupKind(), name, errs)
}
