package plan

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// Verdict is what becomes of a Machine that is to be remediated.
type Verdict struct {
	// Remediate reports whether the Machine can be deleted now.
	Remediate bool
	// Reason is the reason of the Machine's condition OwnerRemediated otherwise.
	Reason string
	// Message says in a sentence what is waited for.
	Message string
	// Record is the remediation to record before the Machine is deleted.
	Record controlplanev1.RemediationRecord
}

// Verdicts are the verdicts about all Machines that are to be remediated, by
// name. The rules are those of the KubeadmControlPlane: one at a time, never the
// last Machine, never against the quorum, with its counters.
func Verdicts(facts Facts) map[string]Verdict {
	verdicts := map[string]Verdict{}
	for _, machine := range facts.staying() {
		if machine.Unhealthy {
			verdicts[machine.Name] = judgeRemediation(facts, machine)
		}
	}

	return verdicts
}

// decideRemediation deletes the Machine that is the most broken of those that
// may be remediated now.
func decideRemediation(facts Facts) *Decision {
	verdicts := Verdicts(facts)
	candidates := slices.DeleteFunc(facts.staying(), func(machine MachineFacts) bool { return !verdicts[machine.Name].Remediate })
	if len(candidates) == 0 {
		return nil
	}
	slices.SortStableFunc(candidates, func(a, b MachineFacts) int {
		return cmp.Or(cmp.Compare(severity(facts, b), severity(facts, a)), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})

	return &Decision{Action: RemediateMachine, Machine: candidates[0].Name, Replaces: candidates[0].joined(facts), Reason: controlplanev1.WaitingForMachineReason,
		Message: "Replacing Machine " + candidates[0].Name + ", which is unhealthy"}
}

// severity orders Machines by how much is wrong with them.
func severity(facts Facts, machine MachineFacts) int {
	switch {
	case !machine.joined(facts):
		return 2
	case !machine.healthy():
		return 1
	default:
		return 0
	}
}

func judgeRemediation(facts Facts, machine MachineFacts) Verdict {
	record, refusal := countRetry(facts.Remediation, machine)
	if refusal != nil {
		return *refusal
	}
	later := func(message string) Verdict {
		return Verdict{Reason: controlplanev1.MachineRemediationDeferredReason, Message: message}
	}
	never := func(message string) Verdict {
		return Verdict{Reason: controlplanev1.MachineCannotBeRemediatedReason, Message: message}
	}
	switch {
	case !facts.Initialized && facts.othersBegan(machine):
		return later("The control plane is not initialized, and other Machines have, or may have, their configuration")
	case !facts.Initialized:
		return Verdict{Remediate: true, Record: record}
	case len(facts.Machines) == 1:
		return never("It is the only control plane Machine, and holds the data of the cluster")
	case slices.ContainsFunc(facts.leaving(), func(other MachineFacts) bool { return !facts.memberGone(other) && !stuck(facts, other) }):
		return later("Another control plane Machine is being deleted")
	// A dead member may be what keeps others from joining, so it waits for none.
	case machine.joined(facts) && facts.awaitsOther(machine) != "":
		return later(facts.awaitsOther(machine))
	case !facts.Etcd.HasQuorum():
		return never("The etcd members that answer are no majority: without the nodes that are silent the cluster cannot be saved by a replacement")
	case facts.hasNoMember(machine):
		return Verdict{Remediate: true, Record: record}
	}
	member, known := facts.member(machine)
	if !known {
		return later("Nobody knows which etcd member is its")
	}
	if problems := facts.Etcd.RemovalProblems(member.ID); len(problems) > 0 {
		return never("Without it etcd would lose its majority: " + problems[0])
	}

	return Verdict{Remediate: true, Record: record}
}

// othersBegan reports whether another Machine has, or may have, a configuration, and so may
// hold data. One that is held back does not count: it waits for this very Machine.
func (f Facts) othersBegan(machine MachineFacts) bool {
	return slices.ContainsFunc(f.Machines, func(other MachineFacts) bool { return other.Name != machine.Name && !other.Held })
}

// awaitsOther says what is waited for, mostly another Machine, before a Machine whose
// member is well is remediated; empty when there is nothing.
func (f Facts) awaitsOther(machine MachineFacts) string {
	if problems := noReplacement(f); len(problems) > 0 {
		return "No replacement can be made: " + problems[0]
	}
	if f.VersionPending {
		return "The topology of the Cluster is about to bring another version, and no replacement is made before"
	}
	if f.awaitsReplacement(machine) {
		return "The replacement of Machine " + f.Remediation.InProgress.Machine + " is not there yet"
	}
	for _, other := range f.staying() {
		if other.Name != machine.Name && !other.Unhealthy && !other.Held && !other.joined(f) {
			return "Machine " + other.Name + " is about to join, or does not answer"
		}
	}

	return ""
}

// RemediationEnded reports whether the Machine of the remediation in progress is gone,
// and is replaced or not wanted back. One that has recovered before it was deleted is not
// remediated any more.
func (f Facts) RemediationEnded() bool {
	record := f.Remediation.InProgress
	if i := slices.IndexFunc(f.Machines, func(machine MachineFacts) bool { return machine.Name == record.Machine }); i >= 0 {
		return !f.Machines[i].Deleting && !f.Machines[i].Unhealthy
	}

	return len(f.staying()) >= int(f.Replicas) || slices.ContainsFunc(f.Machines, func(other MachineFacts) bool {
		return other.Retries != nil && other.Retries.Machine == record.Machine && other.Retries.Timestamp.Equal(&record.Timestamp)
	})
}

// awaitsReplacement reports whether the Machine that an earlier remediation has deleted
// was another one, and is not replaced yet.
func (f Facts) awaitsReplacement(machine MachineFacts) bool {
	record := f.Remediation.InProgress

	return record != nil && record.Machine != machine.Name && !f.RemediationEnded()
}

// stuck reports whether a Machine that goes waits for the quorum, which the removal
// of a broken member may mend.
func stuck(facts Facts, machine MachineFacts) bool {
	member, known := facts.member(machine)

	return machine.Hook == HookDue && known && len(facts.Etcd.RemovalProblems(member.ID)) > 0
}

// isPending reports whether a Machine has not come so far that its node could have
// been seen: it has no host yet, or is being installed.
func isPending(machine MachineFacts) bool {
	return !machine.Provisioned || machine.ProviderID == ""
}

// countRetry counts a remediation. A Machine that replaced another one and fails
// within the minimum healthy period is a retry of that; refusal says that there
// can be none now.
func countRetry(rules RemediationFacts, machine MachineFacts) (controlplanev1.RemediationRecord, *Verdict) {
	record := controlplanev1.RemediationRecord{Machine: machine.Name, Timestamp: metav1.NewTime(rules.Now.UTC().Truncate(time.Second))}
	before := machine.Retries
	if before == nil || rules.Now.Sub(before.Timestamp.Time) > rules.MinHealthyPeriod {
		return record, nil
	}
	if rules.MaxRetry != nil && before.RetryCount >= *rules.MaxRetry {
		return record, &Verdict{Reason: controlplanev1.MachineCannotBeRemediatedReason,
			Message: "It replaced a Machine that was remediated, and spec.remediation.maxRetry is reached"}
	}
	if rules.Now.Sub(before.Timestamp.Time) < rules.RetryPeriod {
		return record, &Verdict{Reason: controlplanev1.MachineRemediationDeferredReason,
			Message: "It replaced a Machine that was remediated, and spec.remediation.retryPeriodSeconds is not over"}
	}
	record.RetryCount = before.RetryCount + 1

	return record, nil
}
