package webhooks

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-talosmachine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=talosmachines,versions=v1alpha1,name=validation.talosmachine.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosMachine validates TalosMachines, and keeps what a machine in a Pod must not
// forget from everybody but the infrastructure manager.
type TalosMachine struct {
	// Manager is the name of the user that the infrastructure manager is. It is
	// required.
	Manager string
}

var _ admission.Validator[*infrav1.TalosMachine] = &TalosMachine{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosMachine) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if w.Manager == "" {
		return errors.New("setting up the TalosMachine webhook: a required field is not set")
	}
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosMachine{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosMachine webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object. What belongs to the manager may be there
// already, so that a move or a restore can create it; what is immutable is then taken as
// it was stored.
func (w *TalosMachine) ValidateCreate(_ context.Context, object *infrav1.TalosMachine) (admission.Warnings, error) {
	if object.Spec.ProviderID != "" {
		return nil, nil
	}

	return nil, invalid(infrav1.TalosMachineKind, object.Name, validateMachine(&object.Spec, field.NewPath("spec")))
}

// ValidateUpdate refuses changes of what is immutable: the specification of the
// user, and the claim once it is made.
func (w *TalosMachine) ValidateUpdate(ctx context.Context, before, after *infrav1.TalosMachine) (admission.Warnings, error) {
	const wayOut = "a machine is made once; change the template or control plane that it is made from, which replaces the Machine"
	if err := refuseChange(ctx, infrav1.TalosMachineKind, before.Spec.Metal, after.Spec.Metal, after, field.NewPath("spec", "metal"), wayOut); err != nil {
		return nil, err
	}
	if err := refuseChange(ctx, infrav1.TalosMachineKind, before.Spec.Container, after.Spec.Container, after, field.NewPath("spec", "container"), wayOut); err != nil {
		return nil, err
	}
	if err := w.refuseRecord(ctx, before, after); err != nil {
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

// refuseRecord refuses to change what the manager must find again of a Pod, also
// while the machine is being deleted: a Pod could be made twice, or be forgotten. So it
// is with the record that a machine on metal has run: keys could be given away.
func (w *TalosMachine) refuseRecord(ctx context.Context, before, after *infrav1.TalosMachine) error {
	var errs field.ErrorList
	const ours = "belongs to the infrastructure provider; delete the Machine to get rid of its Pod"
	if before.Spec.Pod != after.Spec.Pod {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "pod"), ours))
	}
	if after.Spec.Container != nil && before.Spec.ProviderID != after.Spec.ProviderID {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "providerID"), ours))
	}
	if before.Spec.HostRef.Progress != after.Spec.HostRef.Progress {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "hostRef", "progress"), "belongs to the infrastructure provider; delete the Machine to free its host"))
	}
	if len(errs) == 0 {
		return nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if req.UserInfo.Username == w.Manager {
		return nil
	}

	return invalid(infrav1.TalosMachineKind, after.Name, errs)
}

// ValidateDelete allows every deletion.
func (w *TalosMachine) ValidateDelete(context.Context, *infrav1.TalosMachine) (admission.Warnings, error) {
	return nil, nil
}
