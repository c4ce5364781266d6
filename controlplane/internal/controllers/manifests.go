package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
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
	version := s.controlPlane.Spec.Version
	var errs []error
	for _, manifest := range manifests {
		errs = append(errs, r.bring(ctx, s, workload, manifest))
	}
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
	credentials, err := r.certificates.For(s.clusterKey(), s.bundle, secrets.RoleReader)
	if err != nil {
		return nil, err
	}
	errs := []error{errNoManifests}
	for _, machine := range s.machines {
		node, err := talosclient.Reach(ctx, r.Dialer, credentials, r.target(machine))
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

// bring brings one manifest into the cluster, and tells of what stays as it was.
func (r *Reconciler) bring(ctx context.Context, s *scope, workload client.Client, manifest *unstructured.Unstructured) error {
	left, err := applyManifest(ctx, workload, manifest)
	switch {
	case meta.IsNoMatchError(err):
		return nil // The cluster does not know the kind, and has none of it.
	case err != nil:
		return fmt.Errorf("applying %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	case len(left) == 0:
		return nil
	}
	fields := strings.Join(left, ", ")
	ctrl.LoggerFrom(ctx).Info("Left what others have set in a built-in manifest of Talos", "kind", manifest.GetKind(), "name", manifest.GetName(), "fields", fields)
	r.event(s, normal, "ManifestsKept", "ApplyManifests", "%s %s differs from what Talos makes, in fields that others have set: %s", manifest.GetKind(), manifest.GetName(), fields)

	return nil
}

// applyManifest changes an object of Talos if it is there, and names the fields that
// stay as others have set them. It acts as Talos, so that what a new version leaves out
// goes. What is missing Talos makes itself, unless a person has deleted it.
func applyManifest(ctx context.Context, workload client.Client, manifest *unstructured.Unstructured) ([]string, error) {
	if err := setScope(workload, manifest); err != nil {
		return nil, err
	}
	present := &unstructured.Unstructured{}
	present.SetGroupVersionKind(manifest.GroupVersionKind())
	if err := workload.Get(ctx, client.ObjectKeyFromObject(manifest), present); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if err := ownAsApplied(ctx, workload, present); err != nil {
		return nil, err
	}
	left, err := leaveToOthers(manifest, present)
	if err != nil {
		return nil, err
	}
	if inventory, found := present.GetAnnotations()[inventoryAnnotation]; found {
		annotations := manifest.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[inventoryAnnotation] = inventory
		manifest.SetAnnotations(annotations)
	}
	manifest.SetUID(present.GetUID()) // It may be deleted meanwhile, and is not to come back.

	return left, workload.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest),
		client.FieldOwner(constants.KubernetesFieldManagerName), client.ForceOwnership)
}

// setScope puts a manifest into the namespace that Talos would put it into, or into
// none.
func setScope(workload client.Client, manifest *unstructured.Unstructured) error {
	namespaced, err := workload.IsObjectNamespaced(manifest)
	switch {
	case err != nil:
		return err
	case !namespaced:
		manifest.SetNamespace("")
	case manifest.GetNamespace() == "":
		manifest.SetNamespace(metav1.NamespaceDefault)
	}

	return nil
}

func setManifestsCondition(s *scope) {
	const conditionType = controlplanev1.ManifestsUpToDateCondition
	wanted := s.controlPlane.Spec.Version
	version, recorded := s.controlPlane.Annotations[controlplanev1.ManifestsAnnotation]
	switch {
	case keepsManifests(s):
		condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.ManifestsSkippedReason, "The annotation "+controlplanev1.SkipManifestsAnnotation+" is set"))
	case !recorded:
		condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.ManifestsUnknownReason, "The API server has never answered"))
	case version == wanted:
		condition.Set(s.controlPlane, conditionType, condition.True(controlplanev1.ManifestsUpToDateReason, ""))
	case s.decision.Action == plan.ApplyManifests && s.effectErr != nil:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.ManifestsNotAppliedReason, "kube-proxy, CoreDNS and the like could not be brought from "+version+" to "+wanted+": "+explain(s.effectErr)))
	default:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.ManifestsWaitingReason, "kube-proxy, CoreDNS and the like of "+version+" follow once all control plane Machines run "+wanted))
	}
}
