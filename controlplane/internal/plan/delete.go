package plan

import (
	"strings"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// DeleteFacts are what is known about a control plane that is being deleted.
type DeleteFacts struct {
	// Workers are the worker Machines and MachinePools of the Cluster, as
	// "Kind name", sorted.
	Workers []string
	// Machines is the number of control plane Machines.
	Machines int
	// ClusterGone is the name of the Cluster when there is none any more.
	ClusterGone string
	// Leftovers is the number of infrastructure machines and TalosConfigs that
	// were created for a Machine that does not exist.
	Leftovers int
}

// DecideDelete says what to do next about a control plane that is being
// deleted: workers go first, then all Machines at once, without care for etcd.
func DecideDelete(facts DeleteFacts) Decision {
	decision := decideDelete(facts)
	if facts.ClusterGone != "" && len(facts.Workers)+facts.Machines > 0 {
		decision.Message += ". Cluster " + facts.ClusterGone + " does not exist, and Cluster API deletes no Machine without its Cluster: create one of that name again, and delete it"
	}
	decision.Recheck = rechecks()[decision.Action]

	return decision
}

func decideDelete(facts DeleteFacts) Decision {
	switch {
	case len(facts.Workers) > 0:
		return Decision{Action: DeleteWorkersFirst, Reason: controlplanev1.DeletingWaitingForWorkersDeletionReason,
			Message: "Waiting for the workers of the Cluster to be deleted: " + shortList(facts.Workers)}
	case facts.Machines+facts.Leftovers > 0:
		return Decision{Action: DeleteMachines, Reason: controlplanev1.DeletingWaitingForMachineDeletionReason,
			Message: "Waiting for the control plane Machines to be deleted"}
	default:
		return Decision{Action: RemoveFinalizer, Reason: controlplanev1.DeletingDeletionCompletedReason,
			Message: "Deletion completed"}
	}
}

// maxListed is how many names a message lists.
const maxListed = 5

func shortList(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}

	return strings.Join(names[:maxListed], ", ") + " and others"
}
