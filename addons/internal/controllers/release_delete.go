package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/metrics"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// uninstallDigest stands for what is asked for of a release that is being removed.
const uninstallDigest = "uninstalled"

// reconcileDelete uninstalls the release, or leaves it in place, and lets the object go.
func (r *ReleaseReconciler) reconcileDelete(ctx context.Context, s *releaseScope) error {
	if action, running := r.Jobs.Running(s.key()); running {
		// Two actions at a time would hinder each other.
		s.deleting = condition.True(addonv1.UninstallingReason, actionText(action)+" is under way")
		return nil
	}
	if s.release.Status.RemovalStartedAt.IsZero() {
		s.release.Status.RemovalStartedAt = metav1.NewTime(r.Clock.Now())
	}
	if s.removed {
		return r.finish(ctx, s)
	}
	if reason, message := leftBehind(s); message != "" {
		return r.leave(ctx, s, reason, message)
	}
	s.again(r.untilLeftBehind(s))

	return r.uninstall(ctx, s)
}

// finish lets a release go that is not in the cluster any more. Where nothing was found to uninstall
// after a try that has failed, that try has deleted the history: Helm does so though objects do not
// go, or a hook after them fails.
func (r *ReleaseReconciler) finish(ctx context.Context, s *releaseScope) error {
	if failure := s.release.Status.Failure; failure.Digest == uninstallDigest && len(s.ended.Done) == 0 {
		return r.leave(ctx, s, metrics.LeftIncomplete, "its history was deleted, but objects of it may be left: "+failure.Message)
	}
	r.Recorder.Eventf(s.release, nil, corev1.EventTypeNormal, string(addonv1.ActionUninstall), "Delete", "Release %s/%s is uninstalled from Cluster %s",
		s.release.Spec.ReleaseNamespace, s.release.Spec.ReleaseName, s.release.Spec.ClusterName)

	return r.letGo(ctx, s)
}

// leave lets a release go without uninstalling it.
func (r *ReleaseReconciler) leave(ctx context.Context, s *releaseScope, reason metrics.LeftBehind, message string) error {
	if reason == "" {
		return r.letGo(ctx, s)
	}
	r.Recorder.Eventf(s.release, nil, corev1.EventTypeWarning, "ReleaseLeftBehind", "Delete", "Release %s/%s stays in Cluster %s: %s",
		s.release.Spec.ReleaseNamespace, s.release.Spec.ReleaseName, s.release.Spec.ClusterName, message)
	if err := r.letGo(ctx, s); err != nil {
		return err
	}
	r.Metrics.LeftBehind(reason)

	return nil
}

// leftBehind says why a release is let go without being uninstalled, with an empty reason
// where nothing stays. Both are empty when it is not.
func leftBehind(s *releaseScope) (metrics.LeftBehind, string) {
	_, isForced := s.release.Annotations[addonv1.ForceDeleteAnnotation]
	_, isMoved := s.release.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	switch {
	case s.cluster == nil:
		return metrics.LeftClusterGone, "the Cluster is gone"
	case !s.cluster.DeletionTimestamp.IsZero():
		return metrics.LeftClusterDeleting, "the Cluster is being deleted"
	case isMoved:
		return metrics.LeftMoved, "clusterctl has moved it"
	case !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		return "", "nothing was installed"
	case s.release.Spec.DeletionPolicy == addonv1.DeletionOrphan:
		return metrics.LeftOrphaned, "its deletionPolicy is Orphan"
	case isForced:
		return metrics.LeftForced, "it has the annotation " + addonv1.ForceDeleteAnnotation
	}

	return "", ""
}

// deadline is until when it is tried to uninstall it.
func (s *releaseScope) deadline() time.Time {
	allowed := max(addonv1.DefaultRemovalTimeoutSeconds, ptr.Deref(s.release.Spec.TimeoutSeconds, 0))

	return s.release.Status.RemovalStartedAt.Add(time.Duration(allowed) * time.Second)
}

func (r *ReleaseReconciler) untilLeftBehind(s *releaseScope) time.Duration {
	return s.deadline().Sub(r.Clock.Now())
}

func (s *releaseScope) lastProblem() string {
	if message := s.release.Status.Failure.Message; message != "" {
		return message
	}

	return "the API server of the Cluster does not answer"
}

// uninstall starts the job that uninstalls the release, if it is this add-on's. A release whose
// time is over is left behind when that has just failed, and is given another try else: nobody may
// have tried it since, because the manager was away, or the Cluster was paused.
func (r *ReleaseReconciler) uninstall(ctx context.Context, s *releaseScope) error {
	isOver := r.untilLeftBehind(s) <= 0
	until := s.deadline().UTC().Format(time.RFC3339)
	s.deleting = condition.True(addonv1.UninstallingReason, "until "+until)
	if s.release.Status.Failure.Digest == uninstallDigest {
		s.deleting = condition.True(addonv1.UninstallFailedReason, fmt.Sprintf("it is tried again until %s: %s", until, s.release.Status.Failure.Message))
	}
	if hold := r.holds.left(s.key(), uninstallDigest); hold > 0 {
		if isOver {
			return r.leaveLate(ctx, s)
		}
		s.again(hold)
		return nil
	}
	connection, err := r.Connect(ctx, types.NamespacedName{Namespace: s.cluster.Namespace, Name: s.cluster.Name}, nil)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		if isOver && r.hasTriedToConnect(ctx, s) {
			return r.leaveLate(ctx, s)
		}
		if isOver {
			s.again(unreachableInterval)
		}
		s.reachable = condition.Unknown(addonv1.ClusterUnreachableReason, "there is no connection to the API server of the Cluster")
		s.deleting = condition.True(addonv1.UninstallFailedReason, fmt.Sprintf("the API server of the Cluster does not answer; it is waited for until %s, or for the annotation %s", until, addonv1.ForceDeleteAnnotation))
		return nil
	}
	if err != nil {
		return fmt.Errorf("connecting to the Cluster: %w", err)
	}
	removal := r.removalOf(s)
	runner := release.Runner{Helm: connection.Helm, Objects: connection.Objects, Clock: r.Clock}
	r.start(s, func(ctx context.Context, progress func(addonv1.ReleaseAction)) release.Result {
		return runner.Remove(ctx, removal, progress)
	})

	return nil
}

// leaveLate lets a release go whose time is over.
func (r *ReleaseReconciler) leaveLate(ctx context.Context, s *releaseScope) error {
	return r.leave(ctx, s, metrics.LeftTimedOut, "it could not be uninstalled in time: "+s.lastProblem())
}

// removalOf is the job that uninstalls a release.
func (r *ReleaseReconciler) removalOf(s *releaseScope) release.Removal {
	return release.Removal{
		Target: targetOf(s.release), Owner: naming.Owner(s.release.Namespace, s.release.Spec.ClusterName, s.release.Spec.AddonName),
		Options: release.Options{Timeout: time.Duration(ptr.Deref(s.release.Spec.TimeoutSeconds, addonv1.DefaultTimeoutSeconds)) * time.Second, Wait: addonv1.WaitResources},
		Digest:  uninstallDigest,
	}
}

func (r *ReleaseReconciler) letGo(ctx context.Context, s *releaseScope) error {
	before := s.release.DeepCopy()
	controllerutil.RemoveFinalizer(s.release, addonv1.ReleaseFinalizer)
	s.gone = true

	return client.IgnoreNotFound(r.Client.Patch(ctx, s.release, client.MergeFrom(before)))
}
