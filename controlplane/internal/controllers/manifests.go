package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/rollout"
)

// inventoryAnnotation is on objects that Talos counts among its own. It belongs to
// Talos' field manager, and so would go if it were not applied again.
const inventoryAnnotation = "config.k8s.io/owning-inventory"

// errNoManifests says that no node could be asked for its manifests.
var errNoManifests = errors.New("no control plane node could be asked")

// manifestsPending tells that Talos' own manifests in the cluster are those of another
// version than wanted, and that nobody keeps them so.
func manifestsPending(s *scope) bool {
	version, recorded := s.controlPlane.Annotations[controlplanev1.ManifestsAnnotation]

	return recorded && version != s.controlPlane.Spec.Version && !keepsManifests(s)
}

// keepsManifests tells that a person wants Talos' own manifests left alone.
func keepsManifests(s *scope) bool {
	return metav1.HasAnnotation(s.controlPlane.ObjectMeta, controlplanev1.SkipManifestsAnnotation)
}

// rememberManifests records, once the API server has answered, the version of Talos'
// own manifests in the cluster: Talos has made them with the first machine. Of a
// cluster that is older than the record, the lowest version of its Machines is taken,
// so that a rollout that has begun is followed, and nothing else changes.
func (r *Reconciler) rememberManifests(ctx context.Context, s *scope) error {
	_, recorded := s.controlPlane.Annotations[controlplanev1.ManifestsAnnotation]
	if recorded || len(s.machines) == 0 || !s.initialized() || s.deleting() {
		return nil
	}
	lowest := s.controlPlane.Spec.Version
	for _, machine := range s.machines {
		if machine.Spec.Version != "" && compareVersions(machine.Spec.Version, lowest) < 0 {
			lowest = machine.Spec.Version
		}
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.ManifestsAnnotation: lowest}); err != nil {
		return fmt.Errorf("recording the version of the built-in manifests: %w", err)
	}

	return nil
}

// applyManifests brings Talos' own manifests in the cluster to what the machines of
// the new version render, and records that. Talos itself never changes one that is
// there.
func (r *Reconciler) applyManifests(ctx context.Context, s *scope) error {
	workload, err := r.ClusterCache.GetUncachedClient(ctx, s.clusterKey())
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		return nil // It is tried again with the next pass.
	}
	if err != nil {
		return fmt.Errorf("connecting to the API server of the cluster: %w", err)
	}
	manifests, err := r.readManifests(ctx, s)
	if err != nil {
		return fmt.Errorf("reading the built-in manifests: %w", err)
	}
	var errs []error
	for _, manifest := range manifests {
		errs = append(errs, applyManifest(ctx, workload, manifest))
	}
	version := s.controlPlane.Spec.Version
	if err := errors.Join(errs...); err != nil {
		r.event(s, warning, "ManifestsNotApplied", "ApplyManifests", "The built-in manifests of Talos could not be brought to version %s", version)
		return fmt.Errorf("bringing the built-in manifests to version %s: %w", version, err)
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.ManifestsAnnotation: version}); err != nil {
		return fmt.Errorf("recording the version of the built-in manifests: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Brought the built-in manifests of Talos to another version", "version", version)
	r.event(s, normal, "ManifestsApplied", "ApplyManifests", "The built-in manifests of Talos are those of version %s", version)

	return nil
}

// readManifests are Talos' own manifests as one of the nodes renders them: all of them
// are as wanted by now.
func (r *Reconciler) readManifests(ctx context.Context, s *scope) ([]*unstructured.Unstructured, error) {
	credentials, err := r.credentials.reader(s.clusterKey(), s.bundle)
	if err != nil {
		return nil, err
	}
	errs := []error{errNoManifests}
	for _, machine := range s.machines {
		node, err := health.Connect(ctx, r.Dialer, credentials, target(machine))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		objects, err := node.Manifests(ctx)
		_ = node.Close()
		if err != nil {
			errs = append(errs, err)
			continue
		}

		return toUnstructured(objects)
	}

	return nil, errors.Join(errs...)
}

// toUnstructured turns objects into those that can be sent. They come with types of
// numbers that JSON does not know.
func toUnstructured(objects []map[string]any) ([]*unstructured.Unstructured, error) {
	var list []*unstructured.Unstructured
	for _, object := range objects {
		raw, err := json.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("encoding a manifest: %w", err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("decoding a manifest: %w", err)
		}
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		list = append(list, u)
	}

	return list, nil
}

// applyManifest changes an object of Talos if it is there. It acts as Talos, so that
// what a new version leaves out goes, and as "talosctl upgrade-k8s" does it wins over
// others. What is missing Talos makes itself, unless a person has deleted it.
func applyManifest(ctx context.Context, workload client.Client, manifest *unstructured.Unstructured) error {
	describe := func(err error) error {
		return fmt.Errorf("applying %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	}
	namespaced, err := workload.IsObjectNamespaced(manifest)
	switch {
	case meta.IsNoMatchError(err):
		return nil
	case err != nil:
		return describe(err)
	case !namespaced:
		manifest.SetNamespace("")
	case manifest.GetNamespace() == "":
		manifest.SetNamespace(metav1.NamespaceDefault)
	}
	current := &unstructured.Unstructured{}
	current.SetGroupVersionKind(manifest.GroupVersionKind())
	err = workload.Get(ctx, client.ObjectKeyFromObject(manifest), current)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return describe(err)
	}
	if inventory, found := current.GetAnnotations()[inventoryAnnotation]; found {
		annotations := manifest.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[inventoryAnnotation] = inventory
		manifest.SetAnnotations(annotations)
	}
	manifest.SetUID(current.GetUID()) // It may be deleted meanwhile, and is not to come back.
	err = workload.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest),
		client.FieldOwner(constants.KubernetesFieldManagerName), client.ForceOwnership)
	if err != nil {
		return describe(err)
	}

	return nil
}

func setManifestsCondition(s *scope) {
	const conditionType = controlplanev1.ManifestsUpToDateCondition
	wanted := s.controlPlane.Spec.Version
	version, recorded := s.controlPlane.Annotations[controlplanev1.ManifestsAnnotation]
	switch {
	case keepsManifests(s):
		set(s, conditionType, metav1.ConditionUnknown, controlplanev1.ManifestsSkippedReason, "The annotation "+controlplanev1.SkipManifestsAnnotation+" is set")
	case !recorded:
		set(s, conditionType, metav1.ConditionUnknown, controlplanev1.ManifestsUnknownReason, "The API server has never answered")
	case version == wanted:
		set(s, conditionType, metav1.ConditionTrue, controlplanev1.ManifestsUpToDateReason, "")
	case s.decision.Action == rollout.ApplyManifests && s.effectErr != nil:
		set(s, conditionType, metav1.ConditionFalse, controlplanev1.ManifestsNotAppliedReason, "kube-proxy, CoreDNS and the like could not be brought from "+version+" to "+wanted+": "+explain(s.effectErr))
	default:
		set(s, conditionType, metav1.ConditionFalse, controlplanev1.ManifestsWaitingReason, "kube-proxy, CoreDNS and the like of "+version+" follow once all control plane Machines run "+wanted)
	}
}
