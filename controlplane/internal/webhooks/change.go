package webhooks

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// hasMachines reports whether a control plane has, or may have, Machines.
func hasMachines(controlPlane *controlplanev1.TalosControlPlane) bool {
	annotations := controlPlane.Annotations

	return ptr.Deref(controlPlane.Status.Replicas, 0) > 0 ||
		annotations[controlplanev1.NextMachineAnnotation] != "" ||
		annotations[controlplanev1.BootstrapIntentAnnotation] != ""
}

// validateVersionChange judges a change of the Kubernetes version of a control
// plane that has Machines, unless a person has said not to.
func (w *TalosControlPlane) validateVersionChange(ctx context.Context, before, after *controlplanev1.TalosControlPlane, path *field.Path) (admission.Warnings, field.ErrorList, error) {
	if before.Spec.Version == after.Spec.Version || !hasMachines(before) {
		return nil, nil, nil
	}
	skipped, err := w.versionChecksDisabled(ctx, after)
	if err != nil || skipped {
		return nil, nil, err
	}
	warning, err := versions.CheckChange(before.Spec.Version, before.Status.Version, after.Spec.Version)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path, after.Spec.Version, fmt.Sprintf(
			"%v; to change it nevertheless, set the annotation %s on the TalosControlPlane or its Cluster", err, clusterv1.ClusterTopologyUnsafeUpdateVersionAnnotation))}, nil
	}
	if warning != "" {
		return admission.Warnings{path.String() + ": " + warning + "; control plane components are not tested for going back"}, nil, nil
	}

	return nil, nil, nil
}

// warnCNI warns of another CNI for a cluster that runs with one. It is no refusal: whoever
// has moved the cluster to another one by hand says so in this field.
func warnCNI(before, after *controlplanev1.TalosControlPlane) admission.Warnings {
	said := func(controlPlane *controlplanev1.TalosControlPlane) bootstrapv1.CNI {
		return cmp.Or(controlPlane.Spec.TalosConfigSpec.CNI, bootstrapv1.CNIFlannel)
	}
	if said(before) == said(after) || !hasMachines(before) {
		return nil
	}

	return admission.Warnings{"spec.talosConfigSpec.cni: the CNI that this cluster runs with is not taken away, and with two of them Pods lose their network: " +
		"see docs/cni.md, Changing the CNI later. If it was not meant, change it back"}
}

// versionChecksDisabled reports whether a person has disabled the checks of a
// version change, on the control plane or on its Cluster.
func (w *TalosControlPlane) versionChecksDisabled(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (bool, error) {
	const annotation = clusterv1.ClusterTopologyUnsafeUpdateVersionAnnotation
	if metav1.HasAnnotation(controlPlane.ObjectMeta, annotation) {
		return true, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, w.Client, controlPlane.ObjectMeta)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading the owner Cluster: %w", err)
	}

	return cluster != nil && metav1.HasAnnotation(cluster.ObjectMeta, annotation), nil
}

// validateRelease checks that the Talos release that the infrastructure machine
// template states runs the Kubernetes version. Where the template states none,
// the release is that of the host, and judged when one is claimed.
func (w *TalosControlPlane) validateRelease(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (field.ErrorList, error) {
	ref := controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef
	if ref.Kind != "TalosMachineTemplate" {
		return nil, nil
	}
	template, err := external.GetObjectFromContractVersionedRef(ctx, w.Client, ref, controlPlane.Namespace)
	if apierrors.IsNotFound(err) {
		return nil, nil // It may come later.
	}
	if err != nil {
		return nil, fmt.Errorf("reading the infrastructure machine template: %w", err)
	}
	for _, way := range []string{"metal", "container"} {
		release, _, err := unstructured.NestedString(template.Object, "spec", "template", "spec", way, "talos", "version")
		if err != nil || release == "" {
			continue // It is made in the other way, states none, or is the kind of another vendor.
		}
		if err := versions.Supports(release, controlPlane.Spec.Version); err != nil {
			return field.ErrorList{field.Invalid(field.NewPath("spec", "version"), controlPlane.Spec.Version, fmt.Sprintf(
				"%v; TalosMachineTemplate %s states that release in spec.template.spec.%s.talos.version", err, ref.Name, way))}, nil
		}
	}

	return nil, nil
}
