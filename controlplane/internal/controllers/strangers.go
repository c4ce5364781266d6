package controllers

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/rollout"
)

// neverPromoted is what is wrong with a member that will not vote, and the way out.
const neverPromoted = "The etcd member is a learner, and has been for so long that Talos does not have it promoted any more; " +
	"delete the Machine, and another one joins"

// rememberStrangers finds out for how long members have been known to belong to no
// Machine. After a restart of the manager that begins
// anew: a voter is removed later then.
func (r *Reconciler) rememberStrangers(s *scope, facts *rollout.Facts) {
	var ids []string
	strangers := facts.Strangers()
	for _, member := range strangers {
		ids = append(ids, etcd.FormatID(member.ID))
	}
	known := r.strangers.observe(client.ObjectKeyFromObject(s.controlPlane), ids)
	facts.StrangerFor = map[uint64]time.Duration{}
	for _, member := range strangers {
		facts.StrangerFor[member.ID] = known[etcd.FormatID(member.ID)]
	}
}

// etcdUpFor is for how long a node's etcd has been up, or coming up; 0 when nobody
// knows. It is measured from what the node tells, so that a restart of the manager does
// not begin it anew.
func (r *Reconciler) etcdUpFor(service talosclient.Service) time.Duration {
	if service.Started.IsZero() || health.HasEnded(service) {
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
