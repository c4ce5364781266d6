package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/manifests"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

const (
	// manifestsTimeout is how long manifests are applied in one reconcile. Cluster API gives
	// that a minute, in which the status has to be written, too: admission webhooks of a
	// cluster may be slow, or hang.
	manifestsTimeout = 30 * time.Second
	// manifestsAtOnce is how many are applied at the same time, so that all of them are within
	// that time also where each takes some seconds.
	manifestsAtOnce = 8
)

// errNoManifests says that no node could be asked for its manifests.
var errNoManifests = errors.New("no control plane node could be asked")

// manifestsPending reports whether Talos' own manifests in the cluster are those of another
// version than wanted, and that nobody keeps them so.
func manifestsPending(s *scope) bool {
	version, recorded := s.controlPlane.Annotations[controlplanev1.ManifestsAnnotation]

	return recorded && version != s.controlPlane.Spec.Version && !keepsManifests(s)
}

// keepsManifests reports whether a person wants Talos' own manifests left alone.
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
		return nil // It is tried again with the next reconcile.
	}
	if err != nil {
		return fmt.Errorf("connecting to the API server of the cluster: %w", err)
	}
	version := s.controlPlane.Spec.Version
	if err := r.applyAllManifests(ctx, s, workload); err != nil {
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

// applyAllManifests brings all manifests into the cluster, and goes on after one that cannot be
// brought.
func (r *Reconciler) applyAllManifests(ctx context.Context, s *scope, workload client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, manifestsTimeout)
	defer cancel()
	wanted, err := r.readManifests(ctx, s)
	if err != nil {
		return fmt.Errorf("reading them: %w", err)
	}
	errs := make([]error, len(wanted))
	var group errgroup.Group
	group.SetLimit(manifestsAtOnce)
	for i, manifest := range wanted {
		group.Go(func() error {
			errs[i] = r.applyManifest(ctx, s, workload, manifest)
			return nil
		})
	}
	_ = group.Wait() // None returns an error.

	return errors.Join(errs...)
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
		node, err := talosclient.Reach(ctx, r.Dialer, credentials, r.observer().Target(machine))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		found, err := manifests.Read(ctx, node)
		_ = node.Close()
		if err == nil {
			return found, nil
		}
		errs = append(errs, err)
	}

	return nil, errors.Join(errs...)
}

// applyManifest brings one manifest into the cluster, and tells of what stays as it was.
func (r *Reconciler) applyManifest(ctx context.Context, s *scope, workload client.Client, manifest *unstructured.Unstructured) error {
	left, err := manifests.Apply(ctx, workload, manifest)
	if err != nil || len(left) == 0 {
		return err
	}
	fields := strings.Join(left, ", ")
	ctrl.LoggerFrom(ctx).Info("Left what others have set in a built-in manifest of Talos", "kind", manifest.GetKind(), "name", manifest.GetName(), "fields", fields)
	r.event(s, normal, "ManifestsKept", "ApplyManifests", "%s %s differs from what Talos makes, in fields that others have set: %s", manifest.GetKind(), manifest.GetName(), fields)

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
