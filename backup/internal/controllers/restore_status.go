package controllers

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// stage is a condition of a restore, and its reason once it is True.
type stage struct{ conditionType, reason string }

// stages are the conditions of a restore in the order in which they become True, and their
// reasons then.
func stages() []stage {
	return []stage{
		{backupv1.CheckedCondition, backupv1.CheckedReason},
		{backupv1.MachinesWipedCondition, backupv1.MachinesWipedReason},
		{backupv1.EtcdRestoredCondition, backupv1.EtcdRestoredReason},
		{backupv1.NodesRestartedCondition, backupv1.NodesRestartedReason},
	}
}

// upTo has all conditions before one be True, and that one say what was found.
func (s *restoreScope) upTo(conditionType string, found condition.Finding) {
	for _, stage := range stages() {
		if stage.conditionType == conditionType {
			s.is(conditionType, found)
			return
		}
		s.is(stage.conditionType, condition.True(stage.reason, ""))
	}
}

// complete has all conditions be True.
func (s *restoreScope) complete() { s.upTo("", condition.Finding{}) }

// tell has the conditions say what is next.
func (s *restoreScope) tell(view *restoreView, decision restore.Decision) {
	status := &s.restore.Status
	status.Attempt, status.Revision = ptr.To(s.progress.Attempt), ptr.To(s.progress.Revision)
	if target := view.facts.Target; target != "" {
		status.MachineName = target
	}
	wiped, etcd, restarted := backupv1.MachinesWipedCondition, backupv1.EtcdRestoredCondition, backupv1.NodesRestartedCondition
	waits := func(conditionType, reason, message string) { s.upTo(conditionType, condition.False(reason, message)) }
	switch decision.Step {
	case restore.AwaitMachine:
		waits(wiped, backupv1.WaitingForControlPlaneReason, "the control plane has no Machine with a configuration yet")
	case restore.AwaitDeletion:
		waits(wiped, backupv1.WaitingForDeletionReason, "Machines that are being deleted must be gone first, because their nodes may have the data still: "+decision.Names()+
			"; where one of them is lost for good, its annotation controlplane.cluster.x-k8s.io/talos-etcd-hook-override lets it go")
	case restore.WipeMachines, restore.AwaitWipe, restore.Again:
		waits(wiped, backupv1.WipingReason, "Machines that are being wiped, or whose nodes do not answer yet: "+decision.Names()+decision.Failure)
	case restore.Send:
		waits(etcd, backupv1.SendingReason, "the snapshot is sent to Machine "+decision.Names())
	case restore.AwaitEtcd, restore.GiveUp:
		waits(etcd, backupv1.WaitingForEtcdReason, "etcd is to come up on Machine "+view.facts.Target)
	case restore.AwaitMembers:
		waits(etcd, backupv1.WaitingForMembersReason, "Machines whose etcd does not vote yet: "+decision.Names())
	case restore.RestartNode, restore.AwaitRestart:
		waits(restarted, backupv1.RestartingReason, "the node restarts, or its etcd has not come back, of Machine "+decision.Names())
	case restore.Finish:
		waits(restarted, backupv1.WaitingForAPIServerReason, "the API server of the cluster is asked")
	}
}

// sendingFailed says why a Machine is to be sent the snapshot once more.
func (s *restoreScope) sendingFailed(machine string) {
	s.upTo(backupv1.EtcdRestoredCondition, condition.False(backupv1.SendingFailedReason, "Machine "+machine+" is sent the snapshot once more, because the last attempt has failed: "+s.restore.Status.Failure.Message))
}

// reconcileStatus derives the conditions from what was found, and writes the status.
func (r *RestoreReconciler) reconcileStatus(ctx context.Context, s *restoreScope) error {
	s.recall()
	for _, stage := range stages() {
		if found, ok := s.found[stage.conditionType]; ok {
			condition.Set(s.restore, stage.conditionType, found)
		} else if !conditions.Has(s.restore, stage.conditionType) {
			condition.Set(s.restore, stage.conditionType, condition.Unknown(backupv1.NotYetKnownReason, "it has not come so far"))
		}
	}
	condition.Set(s.restore, backupv1.RestoreReadyCondition, restoreReady(s.restore))
	s.restore.Status.ObservedGeneration = s.restore.Generation
	if err := objects.PatchStatus(ctx, r.Client, s.before, s.restore); err != nil {
		return fmt.Errorf("writing the TalosEtcdRestore: %w", err)
	}

	return nil
}

// recall says how a restore has ended whose status was lost.
func (s *restoreScope) recall() {
	isTold := conditions.Has(s.restore, backupv1.RestoreReadyCondition)
	switch {
	case isTold || len(s.found) > 0:
	case s.outcome() == outcomeCompleted:
		s.complete()
	case s.outcome() == outcomeFailed:
		s.is(backupv1.CheckedCondition, condition.False(backupv1.FailedReason, "it has failed before; why is not known any more"))
	}
}

// restoreReady is the summary of a restore: the first condition that is not True.
func restoreReady(of *backupv1.TalosEtcdRestore) condition.Finding {
	for _, stage := range stages() {
		if found := conditions.Get(of, stage.conditionType); found.Status != metav1.ConditionTrue {
			return condition.Finding{Status: metav1.ConditionFalse, Reason: found.Reason, Message: found.Message}
		}
	}

	return condition.True(backupv1.ReadyReason, "")
}
