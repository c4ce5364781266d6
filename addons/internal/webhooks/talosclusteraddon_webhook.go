// Package webhooks checks TalosClusterAddons at admission.
package webhooks

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/addons/internal/values"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-addons-cluster-x-k8s-io-v1alpha1-talosclusteraddon,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=addons.cluster.x-k8s.io,resources=talosclusteraddons,versions=v1alpha1,name=validation.talosclusteraddon.addons.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosClusterAddon validates TalosClusterAddons. What the rules of the kind say is not
// said here again.
type TalosClusterAddon struct {
	// Client reads the other add-ons of a namespace, live and in all namespaces. It is
	// required.
	Client client.Reader
}

var _ admission.Validator[*addonv1.TalosClusterAddon] = &TalosClusterAddon{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosClusterAddon) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if err := ctrl.NewWebhookManagedBy(mgr, &addonv1.TalosClusterAddon{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosClusterAddon webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (w *TalosClusterAddon) ValidateCreate(ctx context.Context, addon *addonv1.TalosClusterAddon) (admission.Warnings, error) {
	return nil, w.validate(ctx, addon)
}

// ValidateUpdate checks a changed object, unless it is being deleted.
func (w *TalosClusterAddon) ValidateUpdate(ctx context.Context, _, after *addonv1.TalosClusterAddon) (admission.Warnings, error) {
	if !after.DeletionTimestamp.IsZero() {
		return nil, nil
	}

	return nil, w.validate(ctx, after)
}

// ValidateDelete allows every deletion.
func (w *TalosClusterAddon) ValidateDelete(context.Context, *addonv1.TalosClusterAddon) (admission.Warnings, error) {
	return nil, nil
}

func (w *TalosClusterAddon) validate(ctx context.Context, addon *addonv1.TalosClusterAddon) error {
	spec, path := &addon.Spec, field.NewPath("spec")
	errs := validateSelector(spec, path.Child("clusterSelector"))
	errs = append(errs, validateVersions(spec, path.Child("source"))...)
	errs = append(errs, validateValues(spec, path)...)
	circular, err := w.validateDependencies(ctx, addon, path.Child("dependsOn"))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if errs = append(errs, circular...); len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(addonv1.GroupVersion.WithKind(addonv1.TalosClusterAddonKind).GroupKind(), addon.Name, errs)
}

func validateSelector(spec *addonv1.TalosClusterAddonSpec, path *field.Path) field.ErrorList {
	if _, err := metav1.LabelSelectorAsSelector(&spec.ClusterSelector); err != nil {
		return field.ErrorList{field.Invalid(path, spec.ClusterSelector, err.Error())}
	}

	return nil
}

func validateVersions(spec *addonv1.TalosClusterAddonSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for kind, version := range map[string]string{"repository": spec.Source.Repository.Version, "registry": spec.Source.Registry.Version} {
		if err := source.CheckVersion(version); err != nil {
			errs = append(errs, field.Invalid(path.Child(kind, "version"), version, "must be a version or a range of versions: 1.2.3, 1.x, >=1.2.0 <2.0.0"))
		}
	}

	return errs
}

func validateValues(spec *addonv1.TalosClusterAddonSpec, path *field.Path) field.ErrorList {
	if spec.ValuesTemplate == "" {
		return nil
	}
	if err := values.Check(spec.ValuesTemplate); err != nil {
		return field.ErrorList{field.Invalid(path.Child("valuesTemplate"), field.OmitValueType{}, err.Error())}
	}

	return nil
}

// validateDependencies refuses an add-on that would depend on itself. Two that are made at
// the same time are told by a condition.
func (w *TalosClusterAddon) validateDependencies(ctx context.Context, addon *addonv1.TalosClusterAddon, path *field.Path) (field.ErrorList, error) {
	if len(addon.Spec.DependsOn) == 0 {
		return nil, nil
	}
	others := &addonv1.TalosClusterAddonList{}
	if err := w.Client.List(ctx, others, client.InNamespace(addon.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the TalosClusterAddons of the namespace: %w", err)
	}
	known := []addonv1.TalosClusterAddon{*addon}
	for i := range others.Items {
		if others.Items[i].Name != addon.Name {
			known = append(known, others.Items[i])
		}
	}
	if circle := order.Circle(addon.Name, known); circle != nil {
		return field.ErrorList{field.Invalid(path, strings.Join(circle, " -> "), "add-ons cannot depend on themselves; leave one of them out")}, nil
	}

	return nil, nil
}
