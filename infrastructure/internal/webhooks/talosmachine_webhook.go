package webhooks

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-talosmachine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=talosmachines,versions=v1alpha1,name=validation.talosmachine.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosMachine validates TalosMachines.
type TalosMachine struct{}

var _ admission.Validator[*infrav1.TalosMachine] = &TalosMachine{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosMachine) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosMachine{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosMachine webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosMachine) ValidateCreate(_ context.Context, object *infrav1.TalosMachine) (admission.Warnings, error) {
	return nil, invalid(infrav1.TalosMachineKind, object.Name, validateMachine(&object.Spec, field.NewPath("spec")))
}

// ValidateUpdate refuses changes of what is immutable: the specification of the
// user, and the claim once it is made.
func (w *TalosMachine) ValidateUpdate(ctx context.Context, before, after *infrav1.TalosMachine) (admission.Warnings, error) {
	if err := refuseChange(ctx, infrav1.TalosMachineKind, before.Spec.Metal, after.Spec.Metal, after, field.NewPath("spec", "metal"),
		"a machine is made once; change the template or control plane that it is made from, which replaces the Machine"); err != nil {
		return nil, err
	}
	if before.Spec.HostRef.Claim != infrav1.HostClaimBound {
		return nil, nil
	}
	type claimed struct{ ProviderID, Host, Claim string }

	return nil, refuseChange(ctx, infrav1.TalosMachineKind,
		claimed{before.Spec.ProviderID, before.Spec.HostRef.Name, string(before.Spec.HostRef.Claim)},
		claimed{after.Spec.ProviderID, after.Spec.HostRef.Name, string(after.Spec.HostRef.Claim)},
		after, field.NewPath("spec"), "the host is claimed; delete the Machine to free it")
}

// ValidateDelete allows every deletion.
func (w *TalosMachine) ValidateDelete(context.Context, *infrav1.TalosMachine) (admission.Warnings, error) {
	return nil, nil
}
