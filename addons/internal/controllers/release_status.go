package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// reconcileStatus derives the conditions from what was found, and writes the status.
func (r *ReleaseReconciler) reconcileStatus(ctx context.Context, s *releaseScope, before *addonv1.TalosClusterAddonRelease) error {
	if s.released.Status == "" {
		s.released = s.releasedFound()
	}
	condition.Set(s.release, addonv1.ClusterReachableCondition, s.reachable)
	condition.Set(s.release, addonv1.ReleasedCondition, s.released)
	if s.looksForDrift() {
		condition.Set(s.release, addonv1.DriftedCondition, s.driftedFound())
	} else {
		conditions.Delete(s.release, addonv1.DriftedCondition)
		s.release.Status.Drift, s.release.Status.DriftCheckedAt = nil, metav1.Time{}
	}
	condition.Set(s.release, addonv1.ReleaseDeletingCondition, s.deleting)
	condition.Set(s.release, addonv1.ReleaseReadyCondition, releaseReady(s.release))
	s.release.Status.ObservedGeneration = s.release.Generation
	if err := objects.PatchStatus(ctx, r.Client, before, s.release); err != nil {
		return fmt.Errorf("writing the TalosClusterAddonRelease: %w", err)
	}

	return nil
}

// releasedFound is what condition Released says when nothing is waited for before an
// action.
func (s *releaseScope) releasedFound() condition.Finding {
	status := &s.release.Status
	if s.digest == "" {
		return condition.Finding{}
	}
	switch {
	case s.isDeployed():
		return s.deployedFound()
	case status.Failure.Digest == s.digest && status.Failure.Count > s.retries():
		return condition.Falsef(stalledReason(status.Failure.Reason), "%s has failed %d times, and is not tried again before something changes, or the annotation %s does: %s",
			status.Failure.Action, status.Failure.Count, addonv1.ForceAnnotation, status.Failure.Message)
	case status.Failure.Digest == s.digest:
		return condition.Falsef(status.Failure.Reason, "%s has failed, and is tried again (%d of %d): %s",
			status.Failure.Action, status.Failure.Count, s.retries(), status.Failure.Message)
	}

	// What the last job has said stays.
	return s.decided
}

// isDeployed reports whether the cluster has what is asked for.
func (s *releaseScope) isDeployed() bool {
	status := &s.release.Status

	return status.Deployed.Digest == s.digest && (status.State == addonv1.StateInSync || status.State == addonv1.StateDrifted)
}

// stalledReason is the reason of a release that was given up: why, where that is known.
func stalledReason(reason string) string {
	if reason == "" || reason == addonv1.ActionFailedReason {
		return addonv1.StalledReason
	}

	return reason
}

func (s *releaseScope) retries() int32 {
	return ptr.Deref(s.addon.Spec.Failure.Retries, addonv1.DefaultRetries)
}

// deployedFound says whether a release that is deployed works. Of an add-on of phase
// Network that is looked for after it is deployed.
func (s *releaseScope) deployedFound() condition.Finding {
	before := conditions.Get(s.release, addonv1.ReleasedCondition)
	switch {
	case s.readiness != nil && *s.readiness != "":
		return condition.False(addonv1.WaitingForResourcesReason, *s.readiness)
	case s.readiness == nil && before != nil && before.Reason == addonv1.WaitingForResourcesReason:
		return condition.Finding{}
	}

	return condition.True(addonv1.ReleasedReason, fmt.Sprintf("revision %d: %s %s", s.release.Status.Deployed.Revision, s.release.Status.Deployed.Chart, s.release.Status.Deployed.Version))
}

// looksForDrift reports whether drift is looked for.
func (s *releaseScope) looksForDrift() bool {
	return s.addon != nil && s.addon.Spec.Drift.Mode != "" && s.addon.Spec.Drift.Mode != addonv1.DriftIgnore
}

// driftedFound is what condition Drifted says where drift is looked for. What the last look
// has found stays until the next one.
func (s *releaseScope) driftedFound() condition.Finding {
	status, ended := &s.release.Status, ptr.Deref(s.ended, release.Result{})
	switch {
	case ended.DriftMissed && s.isDeployed():
		return driftMissed(ended.Err)
	case !ended.DriftLookedFor && conditions.Has(s.release, addonv1.DriftedCondition):
		return condition.Finding{}
	case status.DriftCheckedAt.IsZero():
		return condition.Unknown(addonv1.NotYetKnownReason, "it was not looked for yet")
	case len(status.Drift) == 0:
		return condition.False(addonv1.NotDriftedReason, "")
	}
	text := fmt.Sprintf("%d objects were changed: %s (%s)", len(status.Drift), status.Drift[0].Object, status.Drift[0].Change)
	isFailure := func(done release.Done) bool { return done.Action == addonv1.ActionCorrectDrift && done.Err != nil }
	if i := slices.IndexFunc(ended.Done, isFailure); i >= 0 {
		text += "; changing them back has failed, and is tried again: " + told(ended.Done[i].Err)
	}

	return condition.True(addonv1.DriftedReason, text)
}

// driftMissed is what condition Drifted says when drift could not be looked for.
func driftMissed(err error) condition.Finding {
	reason := addonv1.ActionFailedReason
	if errors.Is(err, release.ErrUnreachable) {
		reason = addonv1.ClusterUnreachableReason
	}

	return condition.Unknown(reason, "drift cannot be looked for, and it is tried again: "+told(err))
}

// releaseReady is the summary of a release: the first condition that is not True.
func releaseReady(release *addonv1.TalosClusterAddonRelease) condition.Finding {
	if !release.DeletionTimestamp.IsZero() {
		return condition.False(clusterv1.DeletingReason, "the release is being removed")
	}
	for _, part := range []string{addonv1.ClusterReachableCondition, addonv1.ReleasedCondition} {
		found := conditions.Get(release, part)
		if found == nil {
			return condition.Unknown(addonv1.NotYetKnownReason, part+" is not known yet")
		}
		if found.Status != metav1.ConditionTrue {
			return condition.Finding{Status: found.Status, Reason: found.Reason, Message: found.Message}
		}
	}

	return condition.True(addonv1.ReadyReason, "")
}
