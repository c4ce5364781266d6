package controllers

import (
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// neverPromoted is what is wrong with a member that will not vote, and the way out.
const neverPromoted = "The etcd member is a learner, and has been for so long that Talos does not have it promoted any more; " +
	"delete the Machine, and another one joins"

// etcdUpFor is for how long a node's etcd has been up, or coming up; 0 when nobody
// knows. It is measured from what the node tells, so that a restart of the manager does
// not begin it anew.
func (r *Reconciler) etcdUpFor(service talosclient.Service) time.Duration {
	if service.Started.IsZero() || service.HasEnded() {
		return 0
	}

	return r.Clock.Since(service.Started)
}

// learnersForEver names the Machines whose members will not vote.
func learnersForEver(s *scope) []string {
	var found []string
	for _, machine := range s.machines {
		if s.facts.IsNeverPromoted(machine.Name) {
			found = append(found, "Machine "+machine.Name+": "+neverPromoted)
		}
	}

	return found
}
