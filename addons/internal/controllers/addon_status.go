package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// reconcileStatus derives the status from what was found, and writes it. reconcileErr is
// how the reconcile ended.
func (r *AddonReconciler) reconcileStatus(ctx context.Context, s *addonScope, before *addonv1.TalosClusterAddon, reconcileErr error) error {
	status := &s.addon.Status
	switch {
	case s.addon.DeletionTimestamp.IsZero():
		status.Chart = s.chart
		condition.Set(s.addon, addonv1.ChartAvailableCondition, s.chartFound)
		if s.isGathered {
			s.count(status)
		}
		condition.Set(s.addon, addonv1.ReleasesReadyCondition, s.releasesFound())
		condition.Set(s.addon, addonv1.AddonReadyCondition, readyOf(s.addon))
		if reconcileErr == nil {
			status.ObservedGeneration = s.addon.Generation
		}
	case s.waitsFor != "":
		condition.Set(s.addon, addonv1.AddonDeletingCondition, condition.True(addonv1.WaitingForReleasesReason, s.waitsFor))
	default:
		return nil
	}
	if err := objects.PatchStatus(ctx, r.Client, before, s.addon); err != nil {
		return fmt.Errorf("writing the TalosClusterAddon: %w", err)
	}

	return nil
}

// count counts the clusters in which the add-on is ready, has failed, or was changed.
func (s *addonScope) count(status *addonv1.TalosClusterAddonStatus) {
	var ready, failed, drifted int32
	for i := range s.releases {
		release := &s.releases[i]
		if order.IsCurrent(release) && release.Status.AddonGeneration == s.addon.Generation {
			ready++
		}
		if order.HasFailed(release) {
			failed++
		}
		if conditions.IsTrue(release, addonv1.DriftedCondition) {
			drifted++
		}
	}
	status.SelectedClusters = ptr.To(int32(len(s.clusters))) //nolint:gosec // G115: no namespace has 2^31 Clusters.
	status.ReadyReleases, status.FailedReleases, status.DriftedReleases = &ready, &failed, &drifted
}

// releasesFound says whether the add-on is ready in all clusters.
func (s *addonScope) releasesFound() condition.Finding {
	waiting := s.waiting()
	switch {
	case !s.isGathered:
		return condition.Unknown(addonv1.NotYetKnownReason, "the Clusters and their releases cannot be read; the log of the manager says why")
	case len(s.conflicts) > 0:
		return condition.Falsef(addonv1.ReleaseConflictReason, "TalosClusterAddonRelease %s belongs to somebody else; delete it", s.conflicts[0])
	case len(s.refused) > 0:
		return condition.False(addonv1.ReleasesNotReadyReason, "TalosClusterAddonReleases are refused: change what forbids that, it is tried again each minute. "+objects.Says+s.refusals())
	case s.stopped:
		return condition.Falsef(addonv1.RolloutStoppedReason, "%d clusters have failed; mend them, or change the add-on", ptr.Deref(s.addon.Status.FailedReleases, 0))
	case len(waiting) > 0:
		return condition.False(addonv1.ReleasesNotReadyReason, listed(waiting, "; "))
	case len(s.clusters) == 0:
		return condition.True(addonv1.NoClusterSelectedReason, "no Cluster of the namespace has the labels that clusterSelector asks for")
	}

	return condition.True(addonv1.ReleasesReadyReason, "")
}

// refusals are the words of the API server, with the Clusters.
func (s *addonScope) refusals() string {
	var refusals []string
	for _, cluster := range slices.Sorted(maps.Keys(s.refused)) {
		refusals = append(refusals, fmt.Sprintf("Cluster %s: %s", cluster, s.refused[cluster]))
	}

	return listed(refusals, "; ")
}

// waiting are the clusters in which the add-on is not ready, with the reasons: first those
// that have no release.
func (s *addonScope) waiting() []string {
	var missing, waiting []string
	has := map[string]bool{}
	for i := range s.releases {
		release := &s.releases[i]
		has[release.Spec.ClusterName] = true
		if order.IsCurrent(release) && release.Status.AddonGeneration == s.addon.Generation {
			continue
		}
		reason := "not looked at yet"
		if found := conditions.Get(release, addonv1.ReleaseReadyCondition); found != nil {
			reason = found.Reason
		}
		waiting = append(waiting, fmt.Sprintf("Cluster %s: %s", release.Spec.ClusterName, reason))
	}
	for i := range s.clusters {
		if name := s.clusters[i].Name; !has[name] {
			missing = append(missing, fmt.Sprintf("Cluster %s: it has no TalosClusterAddonRelease yet; if that stays, the log of the manager says why", name))
		}
	}

	return append(missing, waiting...)
}

// readyOf is the summary of an add-on: the first condition that is not True.
func readyOf(addon *addonv1.TalosClusterAddon) condition.Finding {
	for _, part := range []string{addonv1.ChartAvailableCondition, addonv1.ReleasesReadyCondition} {
		found := conditions.Get(addon, part)
		if found == nil {
			return condition.Unknown(addonv1.NotYetKnownReason, part+" is not known yet")
		}
		if found.Status != metav1.ConditionTrue {
			return condition.Finding{Status: found.Status, Reason: found.Reason, Message: found.Message}
		}
	}

	return condition.True(clusterv1.ReadyReason, "")
}
