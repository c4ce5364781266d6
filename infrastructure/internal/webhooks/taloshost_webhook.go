package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// +kubebuilder:webhook:verbs=create;update;delete,path=/validate-infrastructure-cluster-x-k8s-io-v1alpha1-taloshost,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=infrastructure.cluster.x-k8s.io,resources=taloshosts,versions=v1alpha1,name=validation.taloshost.infrastructure.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// TalosHost validates TalosHosts, and keeps what belongs to the infrastructure
// manager from everybody else (design D10).
type TalosHost struct {
	// Reader reads Namespaces, Clusters and TalosMachines live. It is required.
	Reader client.Reader
	// Reviews asks live who may do what. It is required.
	Reviews client.Writer
	// Manager is the name of the user that the infrastructure manager is. It is
	// required.
	Manager string
}

var _ admission.Validator[*infrav1.TalosHost] = &TalosHost{}

// SetupWebhookWithManager registers the webhook with mgr.
func (w *TalosHost) SetupWebhookWithManager(mgr ctrl.Manager) error {
	if w.Reader == nil || w.Reviews == nil || w.Manager == "" {
		return errors.New("setting up the TalosHost webhook: a required field is not set")
	}
	if err := ctrl.NewWebhookManagedBy(mgr, &infrav1.TalosHost{}).WithValidator(w).Complete(); err != nil {
		return fmt.Errorf("setting up the TalosHost webhook: %w", err)
	}

	return nil
}

// ValidateCreate checks a new object. What belongs to the manager may be there
// already where a move or a restore creates it. A host in use is then taken as it was
// stored: nobody could have mended it, because most of it cannot be changed.
func (w *TalosHost) ValidateCreate(ctx context.Context, host *infrav1.TalosHost) (admission.Warnings, error) {
	if err := w.refuseRecords(ctx, host); err != nil || isHandedOver(host) {
		return nil, err
	}

	return nil, invalid(infrav1.TalosHostKind, host.Name, validateHost(&infrav1.TalosHostSpec{}, &host.Spec))
}

// isHandedOver reports whether the machine of a host has a configuration of this provider,
// or had, and is to be given it again.
func isHandedOver(host *infrav1.TalosHost) bool {
	return host.Spec.Handover.ProviderID != "" || taloshost.IsReprovisioned(host)
}

// ValidateUpdate checks a change. Annotations may always be changed, because
// clusterctl does, and finalizers by whoever may move hosts.
func (w *TalosHost) ValidateUpdate(ctx context.Context, before, after *infrav1.TalosHost) (admission.Warnings, error) {
	if stripsHostInUse(before, after) {
		if err := w.demandMove(ctx, after, "the finalizer "+infrav1.TalosHostFinalizer+" keeps a host until its machine is wiped; delete the Machine"); err != nil {
			return nil, err
		}
	}
	if apiequality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	req, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the admission request: %v", err))
	}
	if req.UserInfo.Username == w.Manager {
		// It writes its own records only, and must be able to whatever else the
		// host says.
		return nil, nil
	}
	errs := append(validateHost(&before.Spec, &after.Spec), refuseOurs(&before.Spec, &after.Spec)...)
	if isHandedOver(before) {
		errs = append(errs, refuseHandedOver(before, after)...)
	}

	return nil, invalid(infrav1.TalosHostKind, after.Name, errs)
}

// refuseOurs refuses to change what belongs to the manager.
func refuseOurs(before, after *infrav1.TalosHostSpec) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name          string
		before, after any
		wayOut        string
	}{
		{"consumerRef", before.ConsumerRef, after.ConsumerRef, "delete the Machine to free the host"},
		{"handover", before.Handover, after.Handover, "delete the Machine, and the host is wiped"},
		{"release", before.Release, after.Release, "the annotation " + infrav1.HostRetryAnnotation + " lets a failed release be tried again"},
		{"quarantine", before.Quarantine, after.Quarantine, "the annotation " + infrav1.HostRetryAnnotation + " ends it"},
		{"reprovision", before.Reprovision, after.Reprovision, "delete the Machine to end it"},
		{"wiped", before.Wiped, after.Wiped, "it is proof that others rely on"},
	} {
		if !apiequality.Semantic.DeepEqual(f.before, f.after) {
			errs = append(errs, field.Forbidden(field.NewPath("spec", f.name), "belongs to the infrastructure provider; "+f.wayOut))
		}
	}

	return errs
}

// refuseHandedOver refuses to point a host in use at another machine. An address more
// leads to no other one, where each contact is with a machine of a known identity.
func refuseHandedOver(old, changed *infrav1.TalosHost) field.ErrorList {
	var errs field.ErrorList
	before, after := &old.Spec, &changed.Spec
	const wayOut = "cannot be changed while the machine has a configuration of this provider: it must be found again to be wiped. Delete the Machine first"
	missing := slices.ContainsFunc(before.Addresses, func(address string) bool { return !slices.Contains(after.Addresses, address) })
	if !apiequality.Semantic.DeepEqual(before.Addresses, after.Addresses) && (missing || !taloshost.Identifies(taloshost.WantedIdentity(old))) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "addresses"), wayOut))
	}
	if !apiequality.Semantic.DeepEqual(before.Identity, after.Identity) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "identity"), wayOut))
	}
	if !apiequality.Semantic.DeepEqual(before.Network.Addresses, after.Network.Addresses) {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "network", "addresses"), wayOut))
	}

	return errs
}

// ValidateDelete refuses to delete a host in use, unless clusterctl has moved it, which
// is believed while its Cluster is paused, or its namespace goes. A host whose TalosMachine does not exist is not in use.
func (w *TalosHost) ValidateDelete(ctx context.Context, host *infrav1.TalosHost) (admission.Warnings, error) {
	ref := host.Spec.ConsumerRef
	if ref.Name == "" {
		return nil, nil
	}
	consumer := &infrav1.TalosMachine{}
	exists, err := w.exists(ctx, client.ObjectKey{Namespace: host.Namespace, Name: ref.Name}, consumer)
	if err != nil || !exists || consumer.Spec.ProviderID != ref.ProviderID {
		return nil, err
	}
	if moved, err := w.isMoved(ctx, host, consumer); err != nil || moved {
		return nil, err
	}
	namespace := &corev1.Namespace{}
	exists, err = w.exists(ctx, client.ObjectKey{Name: host.Namespace}, namespace)
	if err != nil || !exists || !namespace.DeletionTimestamp.IsZero() {
		return nil, err
	}

	return nil, forbidden(host, fmt.Errorf("TalosMachine %s has claimed it; delete its Machine first, which wipes the machine. A move is believed while the Cluster is paused", ref.Name))
}

func (w *TalosHost) exists(ctx context.Context, key client.ObjectKey, object client.Object) (bool, error) {
	err := w.Reader.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", object, key, err)
	}

	return true, nil
}
