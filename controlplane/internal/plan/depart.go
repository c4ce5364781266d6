package plan

import (
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// decideDepartures is about Machines that are being deleted: one at a time, the
// first whose member can go, loses its member and then our hook. While none can,
// the reason is waited for, unless the control plane has to grow, or to lose a
// broken Machine, before, or etcd is restored.
func decideDepartures(facts Facts) *Decision {
	var waiting *Decision
	for _, machine := range facts.leaving() {
		if facts.memberGone(machine) {
			continue
		}
		decision := decideDeparture(facts, machine)
		switch {
		case decision.Action != WaitForMachineDeletion:
			return decision
		case waiting == nil:
			waiting = decision
		}
	}
	if waiting == nil || facts.Restore.Restore != "" || mustGrowFirst(facts) {
		return nil
	}
	if facts.Initialized {
		if broken := decideRemediation(facts); broken != nil {
			return broken
		}
	}

	return waiting
}

// DepartureMessage says what the deletion of a Machine waits for, and why the other one
// does not come that has to be there before.
func (f Facts) DepartureMessage(name string) string {
	for _, machine := range f.leaving() {
		if machine.Name != name {
			continue
		}
		message := decideDeparture(f, machine).Message
		if next := decideReplicas(f); mustGrowFirst(f) && next != nil && next.Action == WaitForPreflight {
			message += "\n" + next.Message
		}
		return message
	}

	return "Machine " + name + " is being deleted"
}

// decideDeparture is about one Machine that is being deleted.
func decideDeparture(facts Facts, machine MachineFacts) *Decision {
	decide := func(action Action, message string) *Decision {
		return &Decision{Action: action, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason, Message: message}
	}
	wait := func(problems ...string) *Decision {
		return decide(WaitForMachineDeletion, "Machine "+machine.Name+" is being deleted, which waits for:\n* "+strings.Join(problems, "\n* "))
	}
	switch {
	case machine.hookReleased():
		return decideRejoined(facts, machine, decide, wait)
	case machine.Hook == HookEarly:
		return wait(machine.HookWaitsFor)
	case facts.hasNoMember(machine):
		// Its node may still be stopping etcd and wiping its data. That is not waited
		// for: its API server has no etcd any more, and clients reach it until it ends.
		release := decide(ReleaseHook, "Machine "+machine.Name+" has no etcd member (any more)")
		release.Left = true
		return release
	case !facts.Initialized:
		return decideBeforeInitialized(facts, machine, decide, wait)
	}

	member, known := facts.member(machine)
	switch problems := facts.Etcd.RemovalProblems(member.ID); {
	case !facts.Etcd.HasQuorum():
		return wait("etcd: the voting members that answer are no majority, so no member can be removed")
	case !known:
		return wait("its node to answer: etcd has members of which nobody knows whether one is this Machine's")
	case len(problems) > 0:
		return wait(prefixed("etcd: ", problems)...)
	case facts.changing(machine.Name) != "":
		return wait(facts.changing(machine.Name))
	case machine.Leaving:
		return decide(WaitForLeave, "Waiting for the node of Machine "+machine.Name+" to leave etcd")
	case machine.LeaveStopped:
		return wait("etcd to be done with what its node was asked for, and was taken back")
	case member.Learner:
		return withMember(decide(RemoveMember, "Removing the etcd member of Machine "+machine.Name+", a learner, which Talos does not let leave by itself, through another one"), member)
	case machine.etcdAnswers(facts, member):
		return withMember(decide(LeaveEtcd, "Asking the node of Machine "+machine.Name+" to leave etcd"), member)
	case machine.EtcdSilentFor < facts.LeaveTimeout:
		return wait("its etcd to answer; when it stays silent, its member is removed through another one after spec.etcd.leaveTimeoutSeconds")
	default:
		return withMember(decide(RemoveMember, "Removing the etcd member of Machine "+machine.Name+", which does not answer, through another one"), member)
	}
}

// decideRejoined is about a Machine that was let go. A node that restarts before it
// is reset joins etcd again: its member is removed again, through another one.
func decideRejoined(facts Facts, machine MachineFacts, decide func(Action, string) *Decision, wait func(...string) *Decision) *Decision {
	member, known := facts.member(machine)
	if !facts.Initialized || !known {
		return wait("Cluster API and the infrastructure provider to let it go")
	}
	// Its host may be another Machine's by now, and so its address; an ID is its own.
	if other, doubt := facts.memberUnknown(machine.Name); doubt && member.ID != machine.MemberID {
		return wait("the node of Machine " + other.Name + " to tell which etcd member is its")
	}
	if other := facts.changing(""); other != "" {
		return wait(other)
	}
	if problems := facts.Etcd.RemovalProblems(member.ID); len(problems) > 0 {
		return wait(prefixed("etcd: ", problems)...)
	}

	return withMember(decide(RemoveMember, "Removing the etcd member of Machine "+machine.Name+", with which it has joined again after it was let go"), member)
}

// changing says which member of another Machine may go at any moment, because its node
// was asked to leave; empty when none may. Nothing else about members is decided then:
// each list of members may be out of date.
func (f Facts) changing(besides string) string {
	i := slices.IndexFunc(f.Machines, func(machine MachineFacts) bool {
		return machine.Name != besides && (machine.Leaving || machine.LeaveStopped) && !f.hasNoMember(machine)
	})
	if i < 0 {
		return ""
	}

	return "the etcd member of Machine " + f.Machines[i].Name + ", which leaves or has just been told not to; one member changes at a time"
}

// HasLeft reports whether etcd has no member of a Machine that is being deleted (any more):
// what its node still does about it can do no harm.
func (f Facts) HasLeft(name string) bool {
	return slices.ContainsFunc(f.leaving(), func(machine MachineFacts) bool { return machine.Name == name && f.hasNoMember(machine) })
}

// memberGone reports whether etcd has no member of a Machine that is being deleted: only its
// infrastructure is left, which may take its time. Nothing waits for that.
func (f Facts) memberGone(machine MachineFacts) bool {
	return machine.hookReleased() && f.hasNoMember(machine)
}

// decideBeforeInitialized is about a Machine that goes before the API server has ever
// answered: nobody has stored anything in its etcd. A node that is silent is
// given the time of a leave.
func decideBeforeInitialized(facts Facts, machine MachineFacts, decide func(Action, string) *Decision, wait func(...string) *Decision) *Decision {
	switch {
	case facts.APIServer != health.APIServerSilent && facts.APIServer != health.APIServerUnknown:
		return wait("what answers at the control plane endpoint to become ready, or silent")
	case machine.Answers || machine.EtcdSilentFor >= facts.LeaveTimeout:
		return decide(ReleaseHook, "Machine "+machine.Name+" goes before the cluster was ever used")
	default:
		return wait("its node to answer, for as long as spec.etcd.leaveTimeoutSeconds")
	}
}

// etcdAnswers reports whether the node can be asked to leave: its etcd votes, and follows
// the leader.
func (m MachineFacts) etcdAnswers(facts Facts, member etcd.Member) bool {
	return m.Answers && m.EtcdData == health.EtcdDataPresent && m.EtcdSilentFor == 0 && facts.Etcd.Answers(member.ID)
}

// mustGrowFirst reports whether a Machine that goes holds the last voting member: its
// data must be on another one first.
func mustGrowFirst(facts Facts) bool {
	return facts.Initialized && facts.Etcd.HasQuorum() && slices.ContainsFunc(facts.leaving(), func(machine MachineFacts) bool {
		member, known := facts.member(machine)
		return machine.Hook != HookEarly && known && facts.Etcd.IsLast(member.ID)
	})
}

// isSpared reports whether a member that belongs to no Machine is left alone for now: it
// votes, and its Machine may only be missing from the list for a while.
func (f Facts) isSpared(orphan etcd.Member) bool {
	return !orphan.Learner && f.OrphanFor[orphan.ID] < f.LeaveTimeout
}

// decideOrphansWait waits with a member that is spared, when nothing else is to be
// done.
func decideOrphansWait(facts Facts) *Decision {
	if !facts.Initialized {
		return nil
	}
	for _, member := range facts.Orphans() {
		if facts.isSpared(member) {
			return &Decision{Action: WaitForEtcd, MemberID: member.ID, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "etcd member " + etcd.Describe(member) + " belongs to no Machine; it is removed after spec.etcd.leaveTimeoutSeconds, unless its Machine comes back"}
		}
	}

	return nil
}

// decideOrphans removes members that belong to no Machine, one at a time.
func decideOrphans(facts Facts) *Decision {
	if !facts.Initialized || facts.changing("") != "" {
		return nil
	}
	for _, member := range facts.Orphans() {
		if !facts.isSpared(member) && len(facts.Etcd.RemovalProblems(member.ID)) == 0 {
			return withMember(&Decision{Action: RemoveMember, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Removing etcd member " + etcd.Describe(member) + ", which belongs to no Machine"}, member)
		}
	}

	return nil
}

func withMember(decision *Decision, member etcd.Member) *Decision {
	decision.MemberID = member.ID
	return decision
}

func prefixed(prefix string, sentences []string) []string {
	var list []string
	for _, sentence := range sentences {
		list = append(list, prefix+sentence)
	}

	return list
}
