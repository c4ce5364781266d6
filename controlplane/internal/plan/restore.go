package plan

import (
	"slices"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// decideRestore is about a control plane whose etcd is restored: it bootstraps etcd from the
// snapshot, once all is wiped, and does nothing else.
func decideRestore(facts Facts) *Decision {
	target := facts.Restore
	switch {
	case target.Restore == "":
		return nil
	case target.Machine == "":
		return waitForRestore(facts, "send a node the snapshot")
	case facts.Intent != nil && facts.Intent.Restore == target.ID && facts.Intent.Bootstrapped:
		return waitForRestore(facts, "see that etcd is whole")
	}
	machines := slices.DeleteFunc(slices.Clone(facts.Machines), func(machine MachineFacts) bool { return machine.Held || machine.hookReleased() })
	withData := slices.DeleteFunc(slices.Clone(machines), func(machine MachineFacts) bool { return machine.EtcdData != health.EtcdDataPresent })
	if len(withData) > 0 {
		return decideRestored(facts, withData)
	}

	return decideRecovery(facts, machines)
}

// decideRecovery is about etcd when no node is known to have data: all must say that they
// have none, as before each bootstrap, and nothing may answer at the endpoint. What was let go
// is wiped before anybody has it again.
func decideRecovery(facts Facts, machines []MachineFacts) *Decision {
	target := facts.Restore
	for _, machine := range machines {
		if waiting := waitForNode(machine); waiting != nil {
			return waiting
		}
	}
	if waiting := waitForSilence(facts); waiting != nil {
		return waiting
	}
	i := slices.IndexFunc(machines, func(machine MachineFacts) bool { return machine.Name == target.Machine && !machine.Deleting })
	if i < 0 {
		return waitForRestore(facts, "send another node the snapshot: Machine "+target.Machine+" is not there any more")
	}
	if intended := facts.intended(); intended == nil || intended.Name != target.Machine || facts.Intent.Restore != target.ID {
		return &Decision{Action: RecordBootstrapIntent, Machine: target.Machine, Reason: controlplanev1.WaitingForEtcdReason,
			Message: "Restoring etcd on Machine " + target.Machine}
	}
	decision := bootstrapOn(machines[i])
	if decision.Action == Bootstrap {
		decision.Action, decision.Message = RestoreEtcd, "Restoring etcd on Machine "+target.Machine+" from the snapshot that its node was sent"
	}

	return decision
}

// decideRestored is about etcd when nodes have data: that of the Machine in the record has it
// from the snapshot, and any other is to be wiped.
func decideRestored(facts Facts, withData []MachineFacts) *Decision {
	machine := facts.intended()
	switch {
	case machine == nil || facts.Intent.Restore != facts.Restore.ID || machine.EtcdData != health.EtcdDataPresent:
		return waitForRestore(facts, "have Machine "+withData[0].Name+" wiped, whose node has data of etcd")
	case machine.Answers && machine.MemberProblem == "":
		return &Decision{Action: RecordBootstrapped, Machine: machine.Name, Reason: controlplanev1.WaitingForAPIServerReason,
			Message: "etcd is restored on Machine " + machine.Name}
	case len(withData) == 1:
		if stopped := decideStopped(facts); stopped != nil {
			return stopped
		}
	}

	return &Decision{Action: WaitForEtcd, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
		Message: "Waiting for etcd on Machine " + machine.Name + ", which is restored: " + machine.MemberProblem}
}

func waitForRestore(facts Facts, what string) *Decision {
	return &Decision{Action: WaitForRestore, Reason: controlplanev1.WaitingForRestoreReason,
		Message: "Waiting for TalosEtcdRestore " + facts.Restore.Restore + " to " + what + "; where there is none of that name, take the annotation " +
			controlplanev1.RestoreInProgressAnnotation + ", or " + controlplanev1.RestoreAnnotation + ", away"}
}
