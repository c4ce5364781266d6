package rollout

import (
	"slices"
	"strings"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// decideScale is about control planes that have fewer Machines than wanted, or
// a Machine that waits for its turn to join. Members join etcd one at a time,
// each after all before it vote and are healthy.
func decideScale(facts Facts) *Decision {
	held := slices.IndexFunc(facts.Machines, func(machine MachineFacts) bool { return machine.Held })
	if held < 0 && len(facts.Machines) >= int(facts.Replicas) {
		return nil
	}
	problems := preflight(facts)
	if held < 0 {
		if len(problems) > 0 {
			return blocked("", problems)
		}

		return &Decision{Action: CreateMachine, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Creating one more control plane Machine"}
	}

	machine := facts.Machines[held]
	switch {
	case machine.NameInUse:
		return blocked(machine.Name, []string{"etcd has a member of the name " + machine.Name +
			", which Talos would remove when this Machine joins; delete the Machine, another gets another name"})
	case len(problems) > 0:
		return blocked(machine.Name, problems)
	default:
		return &Decision{Action: HandOver, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Handing Machine " + machine.Name + " its configuration, with which it joins"}
	}
}

// blocked waits for problems to go.
func blocked(machine string, problems []string) *Decision {
	return &Decision{Action: WaitForPreflight, Machine: machine, Reason: controlplanev1.WaitingForEtcdReason,
		Message: "Scaling up waits for:\n* " + strings.Join(problems, "\n* ")}
}

// preflight says what speaks against one more etcd member now; nothing when the
// control plane is healthy.
func preflight(facts Facts) []string {
	var problems []string
	if facts.VersionPending {
		problems = append(problems, "the version that the topology of the Cluster is about to bring")
	}
	for _, machine := range facts.Machines {
		if machine.Held {
			continue
		}
		for _, problem := range machineProblems(machine) {
			problems = append(problems, "Machine "+machine.Name+": "+problem)
		}
	}
	for _, problem := range facts.EtcdProblems {
		problems = append(problems, "etcd: "+problem)
	}

	return problems
}

func machineProblems(machine MachineFacts) []string {
	switch {
	case !machine.Provisioned || machine.ProviderID == "":
		return []string{"it is not provisioned yet"}
	case !machine.Answers:
		return []string{"its node does not answer through the Talos API"}
	case machine.MemberProblem != "":
		return []string{machine.MemberProblem}
	default:
		return machine.ComponentProblems
	}
}
