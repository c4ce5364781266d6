// Package order says which Clusters get an add-on, and when: what of others is waited for,
// and how many clusters are changed at a time.
package order

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// Selects reports whether an add-on selects a Cluster.
func Selects(addon *addonv1.TalosClusterAddon, cluster metav1.Object) (bool, error) {
	selected, err := objects.Selects(addon.Spec.ClusterSelector, addon.Spec.MatchAll, cluster)
	if err != nil {
		return false, fmt.Errorf("reading clusterSelector of TalosClusterAddon %s: %w", addon.Name, err)
	}

	return selected, nil
}

// WaitsFor says which other add-ons an add-on waits for in a cluster; nothing when it waits
// for none.
func WaitsFor(
	addon *addonv1.TalosClusterAddon, cluster *clusterv1.Cluster, addons []addonv1.TalosClusterAddon, releases []addonv1.TalosClusterAddonRelease,
) condition.Finding {
	if circle := Circle(addon.Name, addons); circle != nil {
		return condition.Falsef(addonv1.DependencyCycleReason, "dependsOn goes round in a circle: %s", strings.Join(circle, " -> "))
	}
	ready := readyAddons(addons, releases)
	var missing []string
	for _, other := range addon.Spec.DependsOn {
		if !ready[other.Name] {
			missing = append(missing, other.Name)
		}
	}
	if len(missing) > 0 {
		return condition.Unknownf(addonv1.WaitingForDependenciesReason, "waiting for TalosClusterAddons that are not ready in the Cluster: %s", strings.Join(missing, ", "))
	}
	if addon.Spec.Phase == addonv1.PhaseNetwork {
		return condition.Finding{}
	}
	for i := range addons {
		if isNetworkOf(&addons[i], cluster) && !ready[addons[i].Name] {
			missing = append(missing, addons[i].Name)
		}
	}
	if len(missing) > 0 {
		return condition.Unknownf(addonv1.WaitingForNetworkReason, "waiting for TalosClusterAddons of phase Network: %s", strings.Join(missing, ", "))
	}

	return condition.Finding{}
}

// MayWaitFor reports whether an add-on may have to wait for another one in a cluster,
// however that one is now: it depends on it, be it through others, or that one brings the
// network.
func MayWaitFor(addon, other *addonv1.TalosClusterAddon, addons []addonv1.TalosClusterAddon) bool {
	return (other.Spec.Phase == addonv1.PhaseNetwork && addon.Spec.Phase != addonv1.PhaseNetwork) || way(addon.Name, other.Name, addons) != nil
}

// readyAddons are those that are ready in a cluster as they are asked for now, by their
// names. The releases are those of the cluster.
func readyAddons(addons []addonv1.TalosClusterAddon, releases []addonv1.TalosClusterAddonRelease) map[string]bool {
	ready := map[string]bool{}
	for i := range addons {
		ready[addons[i].Name] = slices.ContainsFunc(releases, func(release addonv1.TalosClusterAddonRelease) bool {
			return release.Spec.AddonName == addons[i].Name && IsCurrent(&release) && release.Status.AddonGeneration == addons[i].Generation
		})
	}

	return ready
}

// isNetworkOf reports whether an add-on brings a cluster its network.
func isNetworkOf(addon *addonv1.TalosClusterAddon, cluster *clusterv1.Cluster) bool {
	selected, err := Selects(addon, cluster)

	return err == nil && selected && addon.Spec.Phase == addonv1.PhaseNetwork && addon.DeletionTimestamp.IsZero()
}

// Circle is the way from an add-on by dependsOn back to itself; nil when there is none.
func Circle(name string, addons []addonv1.TalosClusterAddon) []string { return way(name, name, addons) }

// way is how dependsOn leads from an add-on to another one; nil when it does not.
func way(from, to string, addons []addonv1.TalosClusterAddon) []string {
	dependsOn := map[string][]addonv1.AddonReference{}
	for i := range addons {
		dependsOn[addons[i].Name] = addons[i].Spec.DependsOn
	}
	seen := map[string]bool{}
	var walk func(at string, way []string) []string
	walk = func(at string, way []string) []string {
		way = append(way, at)
		for _, next := range dependsOn[at] {
			if next.Name == to {
				return append(way, to)
			}
			if !seen[next.Name] {
				seen[next.Name] = true
				if found := walk(next.Name, way); found != nil {
					return found
				}
			}
		}
		return nil
	}

	return walk(from, nil)
}

// Next picks the releases whose change may begin, by their place in the list. It
// also reports whether so many have failed that none may.
func Next(bounds addonv1.RolloutSpec, releases []addonv1.TalosClusterAddonRelease) (next []int, stopped bool) {
	changing, failed := 0, 0
	var waiting []int
	for i := range releases {
		status, admitted := &releases[i].Status, releases[i].Spec.AdmittedDigest
		switch {
		case status.DesiredDigest == "" || !releases[i].DeletionTimestamp.IsZero():
			// It does not know yet what is asked for, or is no longer asked for it.
		case HasFailed(&releases[i]):
			failed++
		case IsCurrent(&releases[i]):
		case admitted == status.DesiredDigest && IsUnreachable(&releases[i]):
			// Nothing changes there, and nobody waits for it. When it answers again, there may
			// be one more at a time than the bound.
		case admitted == status.DesiredDigest:
			changing++
		default:
			waiting = append(waiting, i)
		}
	}
	if bounds.MaxFailures != nil && failed > int(*bounds.MaxFailures) {
		return nil, len(waiting) > 0
	}
	free := len(waiting)
	if bounds.MaxConcurrent != nil {
		free = min(free, max(int(*bounds.MaxConcurrent)-changing, 0))
	}

	return waiting[:free], false
}

// IsUnreachable reports whether the API server of a release's cluster does not answer, or is not
// there yet. A release that was not looked at yet is not.
func IsUnreachable(release *addonv1.TalosClusterAddonRelease) bool {
	return conditions.Has(release, addonv1.ClusterReachableCondition) && !conditions.IsTrue(release, addonv1.ClusterReachableCondition)
}

// IsCurrent reports whether a release is what is asked for, and ready.
func IsCurrent(release *addonv1.TalosClusterAddonRelease) bool {
	status := &release.Status

	return status.DesiredDigest != "" && status.Deployed.Digest == status.DesiredDigest && conditions.IsTrue(release, addonv1.ReleaseReadyCondition)
}

// HasFailed reports whether the last action for what is asked for has failed.
func HasFailed(release *addonv1.TalosClusterAddonRelease) bool {
	failure := release.Status.Failure

	return failure.Count > 0 && failure.Digest == release.Status.DesiredDigest
}
