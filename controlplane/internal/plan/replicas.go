package plan

import (
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// decideReplicas is about the number of Machines, and about those that are
// outdated. All that are missing are made while all is well; they wait, and join
// one at a time. One Machine goes at a time, and only while all others are well.
func decideReplicas(facts Facts) *Decision {
	staying := facts.staying()
	outdated := slices.ContainsFunc(staying, func(machine MachineFacts) bool { return machine.Outdated })
	rolling := outdated && facts.RollingUpdate && !facts.VersionPending
	limit := int(facts.Replicas)
	if rolling {
		limit += int(facts.MaxSurge)
	}
	if held := slices.IndexFunc(staying, func(machine MachineFacts) bool { return machine.Held }); held >= 0 {
		unwanted := len(staying) > limit || rolling && staying[held].Outdated && len(noReplacement(facts)) == 0
		if decision := decideHeld(facts, staying[held], unwanted); decision != nil {
			return decision
		}
	}
	switch {
	case len(staying) < limit:
		return decideCreation(facts, rolling && len(staying) >= int(facts.Replicas))
	case len(staying) > limit, rolling:
		return decideDeletion(facts, rolling)
	default:
		return nil
	}
}

// decideHeld is about a Machine that has not joined: it goes when it is unwanted, and
// waits while others can be made that are missing.
func decideHeld(facts Facts, machine MachineFacts, unwanted bool) *Decision {
	switch {
	case unwanted:
		return &Decision{Action: DeleteMachine, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Deleting Machine " + machine.Name + ", which has not joined and is not wanted any more"}
	case len(facts.staying()) >= int(facts.Replicas), len(noReplacement(facts)) > 0, len(preflight(facts, "")) > 0:
		return decideJoin(facts, machine)
	default:
		return nil
	}
}

// decideJoin is about a Machine that waits for its turn to join. Its join is a
// matter of etcd: it does not wait until the API server and its like run on the
// Machine that has joined before it.
func decideJoin(facts Facts, machine MachineFacts) *Decision {
	problems := problemsBefore(facts, "", memberProblems)
	switch {
	case machine.NameInUse:
		return blocked(machine.Name, "Scaling up", []string{"etcd has a member of the name " + machine.Name +
			", which Talos would remove when this Machine joins; delete the Machine, another gets another name"})
	case len(problems) > 0:
		return blocked(machine.Name, "Scaling up", problems)
	default:
		return &Decision{Action: HandOver, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Handing Machine " + machine.Name + " its configuration, with which it joins"}
	}
}

func decideCreation(facts Facts, surge bool) *Decision {
	doing := "Scaling up"
	if surge {
		doing = "The rollout"
	}
	if problems := append(preflight(facts, ""), noReplacement(facts)...); len(problems) > 0 {
		return blocked("", doing, problems)
	}

	return &Decision{Action: CreateMachine, Risky: surge, Reason: controlplanev1.WaitingForMachineReason,
		Message: "Creating one more control plane Machine"}
}

// decideDeletion deletes one Machine: an outdated one during a rollout, else one
// too many.
func decideDeletion(facts Facts, rolling bool) *Decision {
	doing := "Scaling down"
	if rolling {
		doing = "The rollout"
	}
	victim := selectMachineForDeletion(facts)
	problems := preflight(facts, victim.Name)
	if rolling { // Else its replacement could not be made.
		problems = append(problems, noReplacement(facts)...)
	}
	if member, has := facts.member(victim); has {
		problems = append(problems, prefixed("etcd: ", facts.Etcd.RemovalProblems(member.ID))...)
	} else if !facts.hasNoMember(victim) {
		problems = append(problems, "Machine "+victim.Name+": nobody knows which etcd member is its")
	}
	if len(problems) > 0 {
		return blocked(victim.Name, doing, unique(problems))
	}

	return &Decision{Action: DeleteMachine, Machine: victim.Name, Replaces: rolling, Risky: true, Reason: controlplanev1.WaitingForMachineReason,
		Message: doing + " deletes Machine " + victim.Name}
}

// blocked waits for problems to go.
func blocked(machine, doing string, problems []string) *Decision {
	return &Decision{Action: WaitForPreflight, Machine: machine, Reason: controlplanev1.WaitingForEtcdReason,
		Message: doing + " waits for:\n* " + strings.Join(problems, "\n* ")}
}

// preflight says what speaks against one more etcd member, or against the
// deletion of the victim; nothing when all others are well. The victim's own
// problems do not count, nor do those of Machines that are to be remediated and
// whose members are well: they are the reason for what is done.
func preflight(facts Facts, victim string) []string {
	return problemsBefore(facts, victim, machineProblems)
}

// problemsBefore is the preflight, with what counts as a problem of a Machine.
func problemsBefore(facts Facts, victim string, of func(MachineFacts) []string) []string {
	var problems []string
	if facts.VersionPending {
		problems = append(problems, "the version that the topology of the Cluster is about to bring")
	}
	for _, machine := range facts.Machines {
		if machine.Held || machine.Name == victim || isNoObstacle(facts, machine, victim) {
			continue
		}
		for _, problem := range of(machine) {
			problems = append(problems, "Machine "+machine.Name+": "+problem)
		}
	}
	its := facts.learnerProblem(victim)
	for _, problem := range facts.EtcdProblems() {
		if problem != its {
			problems = append(problems, "etcd: "+problem)
		}
	}

	return problems
}

// learnerProblem is what etcd says of the member of a Machine that is a learner; empty when
// it is none. It may be one for ever, as where nobody reaches its etcd.
func (f Facts) learnerProblem(name string) string {
	i := slices.IndexFunc(f.Machines, func(machine MachineFacts) bool { return machine.Name == name })
	if i < 0 {
		return ""
	}
	member, known := f.member(f.Machines[i])
	if !known || !member.Learner {
		return ""
	}

	return etcd.LearnerProblem(member)
}

// isNoObstacle reports whether what is wrong with a Machine does not stand in the way
// of a change: another Machine has to come before the last voter goes; a Machine
// whose member is well is about to be replaced; or a Machine waits for a host
// that only the deletion of another one can free.
func isNoObstacle(facts Facts, machine MachineFacts, victim string) bool {
	switch {
	case machine.Deleting:
		return mustGrowFirst(facts) || facts.memberGone(machine)
	case machine.Unhealthy:
		return victim == "" && machine.joined(facts)
	case victim != "" && facts.MaxSurge == 0 && isPending(machine) && !machine.Answers:
		joined := slices.DeleteFunc(facts.staying(), func(m MachineFacts) bool { return !m.joined(facts) })
		return len(joined) >= int(facts.Replicas)
	default:
		return false
	}
}

// noReplacement says why no Machine can be made now, whatever the control plane's state.
func noReplacement(facts Facts) []string {
	return slices.DeleteFunc([]string{facts.TemplateMismatch, facts.TemplateMissing}, func(problem string) bool { return problem == "" })
}

// machineProblems says what is wrong with a Machine.
func machineProblems(machine MachineFacts) []string {
	if problems := memberProblems(machine); len(problems) > 0 {
		return problems
	}

	return machine.ComponentProblems
}

// memberProblems says why a Machine is no etcd member that is well.
func memberProblems(machine MachineFacts) []string {
	switch {
	case machine.Deleting:
		return []string{"it is being deleted"}
	case isPending(machine):
		return []string{"it is not provisioned yet"}
	case !machine.Answers:
		return []string{"its node does not answer through the Talos API"}
	case machine.MemberProblem != "":
		return []string{machine.MemberProblem}
	default:
		return nil
	}
}

func unique(sentences []string) []string {
	var list []string
	for _, sentence := range sentences {
		if !slices.Contains(list, sentence) {
			list = append(list, sentence)
		}
	}

	return list
}
