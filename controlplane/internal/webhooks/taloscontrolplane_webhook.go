package webhooks

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/cluster-api/util/topology"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// +kubebuilder:webhook:verbs=create;update,path=/mutate-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplane,mutating=true,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes,versions=v1beta1,name=default.taloscontrolplane.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-controlplane-cluster-x-k8s-io-v1beta1-taloscontrolplane,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes,versions=v1beta1,name=validation.taloscontrolplane.controlplane.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosControlPlane defaults and validates TalosControlPlanes.
type TalosControlPlane struct {
	// Client reads Clusters and infrastructure machine templates, live and in all
	// namespaces. It is required.
	Client client.Client
}

var (
	_ admission.Defaulter[*controlplanev1.TalosControlPlane] = &TalosControlPlane{}
	_ admission.Validator[*controlplanev1.TalosControlPlane] = &TalosControlPlane{}
)

// SetupWebhookWithManager registers the webhooks with mgr.
func (w *TalosControlPlane) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &controlplanev1.TalosControlPlane{}).WithDefaulter(w).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosControlPlane webhooks: %w", err)
	}

	return nil
}

// Default fills in what the object leaves open.
func (w *TalosControlPlane) Default(_ context.Context, controlPlane *controlplanev1.TalosControlPlane) error {
	defaultControlPlane(&controlPlane.Spec)

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosControlPlane) ValidateCreate(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (admission.Warnings, error) {
	errs := w.validate(nil, controlPlane)
	unsupported, err := w.validateRelease(ctx, controlPlane)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}

	return warnRollout(&controlPlane.Spec), invalidControlPlane(controlPlane.Name, append(errs, unsupported...))
}

// ValidateUpdate checks a change. An object that is being deleted may always be
// written, so that its finalizers can go.
func (w *TalosControlPlane) ValidateUpdate(ctx context.Context, before, after *controlplanev1.TalosControlPlane) (admission.Warnings, error) {
	// What was accepted once is not judged again by the rules of a later release.
	if !after.DeletionTimestamp.IsZero() || apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	errs := w.validate(before, after)
	if before.Spec.Version != after.Spec.Version ||
		before.Spec.MachineTemplate.Spec.InfrastructureRef != after.Spec.MachineTemplate.Spec.InfrastructureRef {
		unsupported, err := w.validateRelease(ctx, after)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		errs = append(errs, unsupported...)
	}

	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	var warnings admission.Warnings
	// The topology controller only wants to know what it would write.
	if !topology.IsDryRunRequest(req, after) {
		var changes field.ErrorList
		if warnings, changes, err = w.validateVersionChange(ctx, before, after, field.NewPath("spec", "version")); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		errs = append(errs, changes...)
	}

	warnings = append(warnings, warnCNI(before, after)...)

	return append(warnings, warnRollout(&after.Spec)...), invalidControlPlane(after.Name, errs)
}

// ValidateDelete allows every deletion.
func (w *TalosControlPlane) ValidateDelete(context.Context, *controlplanev1.TalosControlPlane) (admission.Warnings, error) {
	return nil, nil
}

func invalidControlPlane(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind).GroupKind(), name, errs)
}
