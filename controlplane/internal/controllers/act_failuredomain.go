package controllers

import (
	"context"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/failuredomains"
)

// pickFailureDomain is the failure domain of the next Machine: of those that are
// for control planes and have something left to claim, the one with the fewest
// Machines; empty when the Cluster has none. Up-to-date Machines count first, so
// that a rollout ends balanced.
func (r *Reconciler) pickFailureDomain(ctx context.Context, s *scope) string {
	var usable, free []clusterv1.FailureDomain
	for _, domain := range s.cluster.Status.FailureDomains {
		if !ptr.Deref(domain.ControlPlane, false) {
			continue
		}
		usable = append(usable, domain)
		if r.infrastructure.HasCapacity(domain) {
			free = append(free, domain)
		}
	}
	if len(free) > 0 {
		usable = free
	}
	all, upToDate := collections.New(), collections.New()
	for _, machine := range s.machines {
		all.Insert(machine)
		if len(s.outdated[machine.Name]) == 0 {
			upToDate.Insert(machine)
		}
	}

	return failuredomains.PickFewest(ctx, usable, all, upToDate)
}
