package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// restoreView is what one reconcile knows about the machines of a restore that has begun.
type restoreView struct {
	bundle   *secrets.Bundle
	machines []machine
	hold     controlplanev1.RestoreRecord
	facts    restore.Facts
}

func (v *restoreView) machine(name string) *machine {
	for i := range v.machines {
		if v.machines[i].Name == name {
			return &v.machines[i]
		}
	}

	return nil
}

// carryOn does the next step of a restore that has begun.
func (r *RestoreReconciler) carryOn(ctx context.Context, s *restoreScope) error {
	s.is(backupv1.CheckedCondition, condition.True(backupv1.CheckedReason, ""))
	view, err := r.gatherView(ctx, s)
	if err != nil || view == nil {
		return err
	}
	if taken, err := r.takeSent(ctx, s, view); err != nil || taken {
		return err
	}
	if err := r.takeBootstrapped(ctx, s, view); err != nil {
		return err
	}
	decision := restore.Next(view.facts)
	s.tell(view, decision)
	ctrl.LoggerFrom(ctx).V(3).Info("Decided", "step", decision.Step, "Machines", decision.Machines)

	switch decision.Step {
	case restore.WipeMachines:
		return r.reconcileWipe(ctx, s, view, decision)
	case restore.Send:
		return r.send(ctx, s, view, decision)
	case restore.Again:
		return r.tryAgain(ctx, s, decision)
	case restore.GiveUp:
		return r.giveUp(ctx, s, decision)
	case restore.RestartNode:
		return r.restart(ctx, s, view, decision)
	case restore.Finish:
		return r.finish(ctx, s, view)
	case restore.AwaitMachine, restore.AwaitDeletion, restore.AwaitWipe, restore.AwaitEtcd, restore.AwaitMembers, restore.AwaitRestart:
	}

	return nil
}

// gatherView looks at the machines of a restore that has begun. A control plane that it does
// not hold is another one than that which it has begun with, or was taken from it: that may be
// one that another restore, or a person, has brought back since.
func (r *RestoreReconciler) gatherView(ctx context.Context, s *restoreScope) (*restoreView, error) {
	view := &restoreView{}
	var err error
	if view.bundle, err = r.gatherBundle(ctx, s); err != nil || view.bundle == nil {
		return nil, err
	}
	hold := holdOf(s.controlPlane)
	if hold == nil {
		return nil, r.abandon(ctx, s)
	}
	view.hold = *hold
	if view.machines, err = r.gatherMachines(ctx, s); err != nil {
		return nil, err
	}
	nodes, err := r.look(ctx, s, view.bundle, view.machines)
	if err != nil {
		return nil, err
	}
	view.facts = r.factsOf(s, view, nodes)

	return view, nil
}

// factsOf are the facts that are decided on.
func (r *RestoreReconciler) factsOf(s *restoreScope, view *restoreView, nodes restore.Nodes) restore.Facts {
	found := restore.Facts{Now: r.Clock.Now(), Attempt: s.progress.Attempt, EtcdVersion: s.progress.EtcdVersion, SentAt: s.progress.SentAt.Time, CanWipe: true}
	if view.hold.ID == s.attemptID() {
		found.Target = view.hold.Machine
		intent := intentOf(s.controlPlane)
		found.Bootstrapped = s.progress.Bootstrapped || intent != nil && intent.Restore == view.hold.ID && intent.Bootstrapped
	}
	for _, one := range view.machines {
		facts := restore.Machine{Name: one.Name, Deleting: !one.DeletionTimestamp.IsZero(), Node: nodes.ByMachine[one.Name], Wipe: one.wipe(s.attemptID())}
		found.CanWipe = found.CanWipe && one.infrastructure != nil
		if s.isNewCluster() && s.progress.Attempt == 1 {
			facts.Wipe = restore.WipeDone // It has never run.
		}
		if asked, found := s.progress.Restarts[one.Name]; found {
			facts.Restart = &asked
		}
		found.Machines = append(found.Machines, facts)
	}

	return found
}

// takeSent takes in that a node has the database, and reports whether that was all that can
// be done now. It is written on the control plane, whose controller bootstraps etcd then;
// from that moment on nobody is sent anything in this attempt.
func (r *RestoreReconciler) takeSent(ctx context.Context, s *restoreScope, view *restoreView) (bool, error) {
	if view.facts.Target != "" && s.progress.SentAt.IsZero() {
		progress := *s.progress
		progress.Machine, progress.SentAt = view.facts.Target, metav1.NewTime(r.Clock.Now().Truncate(time.Second))
		if err := r.record(ctx, s, &progress); err != nil {
			return true, err
		}
		view.facts.SentAt = progress.SentAt.Time
	}
	result := s.ended
	if result == nil || view.facts.Target != "" || result.AttemptID != s.attemptID() {
		return false, nil
	}
	if result.Err != nil {
		s.fail(r.Clock.Now(), result.Err)
		s.sendingFailed(result.Machine)
		r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, backupv1.SendingFailedReason, "Send", "%s", condition.Cut(result.Err.Error(), maxMessage))
		return true, nil
	}
	if err := r.holdControlPlane(ctx, s, controlplanev1.RestoreRecord{Restore: s.restore.Name, ID: result.AttemptID, Machine: result.Machine}); err != nil {
		return true, err
	}
	s.restore.Status.Failure = backupv1.BackupFailure{}
	s.is(backupv1.MachinesWipedCondition, condition.True(backupv1.MachinesWipedReason, ""))
	s.is(backupv1.EtcdRestoredCondition, condition.False(backupv1.WaitingForEtcdReason, "etcd is to come up on Machine "+result.Machine))
	s.restore.Status.MachineName = result.Machine
	s.again(time.Second)
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, "SnapshotSent", "Send", "Machine %s has the snapshot, and restores etcd from it", result.Machine)

	return true, nil
}

// takeBootstrapped records that the control plane has seen etcd running: from that moment on
// nothing is wiped, whatever becomes of the records of the control plane.
func (r *RestoreReconciler) takeBootstrapped(ctx context.Context, s *restoreScope, view *restoreView) error {
	if !view.facts.Bootstrapped || s.progress.Bootstrapped {
		return nil
	}
	progress := *s.progress
	progress.Bootstrapped = true

	return r.record(ctx, s, &progress)
}

// reconcileWipe asks for machines to be wiped. Before the first of all, what speaks against the
// restore is looked for once more: it may have begun long ago.
func (r *RestoreReconciler) reconcileWipe(ctx context.Context, s *restoreScope, view *restoreView, decision restore.Decision) error {
	isFirst := s.progress.Attempt == 1 && !slices.ContainsFunc(view.machines, func(one machine) bool { return one.wipe(s.attemptID()) != restore.WipeNotAsked })
	if isFirst && !s.isNewCluster() {
		reason, message, err := r.against(ctx, s, view.bundle, s.progress.EtcdVersion)
		if err != nil {
			return err
		}
		if reason == backupv1.QuorumUnknownReason {
			s.is(backupv1.MachinesWipedCondition, condition.Unknown(reason, message))
			return nil
		}
		if reason != "" {
			return r.refuse(ctx, s, reason, message)
		}
	}

	return r.wipe(ctx, s, view, decision)
}

// wipe asks for machines to be wiped, each once in an attempt: what says so is written with
// the wish.
func (r *RestoreReconciler) wipe(ctx context.Context, s *restoreScope, view *restoreView, decision restore.Decision) error {
	for _, name := range decision.Machines {
		its := view.machine(name).infrastructure
		if its == nil {
			s.is(backupv1.MachinesWipedCondition, condition.False(backupv1.InfrastructureUnsupportedReason, "Machine "+name+" has no TalosMachine, and cannot be wiped; delete the Cluster, and begin anew"))
			return nil
		}
		// It may have changed while the nodes were asked.
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(its), its); err != nil {
			return fmt.Errorf("reading TalosMachine %s: %w", its.Name, err)
		}
		if its.Annotations[backupv1.WipedForAnnotation] == s.attemptID() {
			continue
		}
		err := annotate(ctx, r.Client, its, map[string]string{
			infrav1.ReprovisionAnnotation: infrav1.ReprovisionDespiteOthers, backupv1.WipedForAnnotation: s.attemptID(),
		})
		if err != nil {
			return err
		}
		ctrl.LoggerFrom(ctx).Info("Asked for a machine to be wiped", "TalosMachine", its.Name, "attempt", s.progress.Attempt)
		r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, backupv1.WipingReason, "Wipe", "The machine of Machine %s is wiped, and gets its configuration again", name)
	}

	return nil
}

// send starts the job that sends a node the database.
func (r *RestoreReconciler) send(ctx context.Context, s *restoreScope, view *restoreView, decision restore.Decision) error {
	if ready, err := r.gatherBackup(ctx, s); err != nil || !ready {
		return err
	}
	to := view.machine(decision.Machines[0]).Machine
	if r.isTooSoon(s) {
		s.sendingFailed(to.Name)
		return nil
	}
	work, err := r.workOf(ctx, s)
	if err != nil || work == nil {
		return err
	}
	admin, err := r.certificates.For(client.ObjectKeyFromObject(s.cluster), view.bundle, secrets.RoleAdmin)
	if err != nil {
		return fmt.Errorf("making a client certificate: %w", err)
	}
	work.send = func(ctx context.Context, database io.Reader) error { return r.sendTo(ctx, to, admin, database) }
	work.attemptID, work.machine, work.seen = s.attemptID(), to.Name, s.progress.Revision-restore.Bump
	r.start(s, work)

	return nil
}

// sendTo sends the node of a Machine the database, unless its etcd has data.
func (r *RestoreReconciler) sendTo(ctx context.Context, to *clusterv1.Machine, admin talosclient.Credentials, database io.Reader) error {
	node, err := restore.Reach(ctx, r.Dialer, admin, to)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	hasData, err := node.EtcdDataExists(ctx)
	if err != nil {
		return err
	}
	if hasData {
		return fmt.Errorf("sending the snapshot: %w", talosclient.ErrAlreadyBootstrapped)
	}

	return node.EtcdRecover(ctx, database)
}

// tryAgain begins another attempt. The control plane is told first that no node has a
// snapshot.
func (r *RestoreReconciler) tryAgain(ctx context.Context, s *restoreScope, decision restore.Decision) error {
	if err := r.holdControlPlane(ctx, s, controlplanev1.RestoreRecord{Restore: s.restore.Name}); err != nil {
		return err
	}
	next := &backupv1.RestoreProgress{Attempt: s.progress.Attempt + 1, Revision: s.progress.Revision, EtcdVersion: s.progress.EtcdVersion}
	if err := r.record(ctx, s, next); err != nil {
		return err
	}
	s.fail(r.Clock.Now(), errors.New(decision.Failure))
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, "AttemptFailed", "Restore", "%s; all machines are wiped once more", decision.Failure)

	return nil
}

// giveUp ends the restore, and lets the control plane go, which waits for a person then.
func (r *RestoreReconciler) giveUp(ctx context.Context, s *restoreScope, decision restore.Decision) error {
	message := decision.Failure + "; make another TalosEtcdRestore"
	s.is(backupv1.EtcdRestoredCondition, condition.False(backupv1.FailedReason, message))
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, backupv1.FailedReason, "Restore", "%s", message)

	return r.end(ctx, s, outcomeFailed)
}

// abandon ends a restore whose control plane it does not hold any more.
func (r *RestoreReconciler) abandon(ctx context.Context, s *restoreScope) error {
	message := "the TalosControlPlane is not held by this restore any more: it is another one by now, or somebody has taken its annotation " +
		controlplanev1.RestoreInProgressAnnotation + " away; make another TalosEtcdRestore"
	s.fails(backupv1.FailedReason, message)
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, backupv1.FailedReason, "Restore", "%s", message)

	return r.end(ctx, s, outcomeFailed)
}

// restart restarts the node of a Machine. What its etcd was before is recorded first. A node
// that refuses is asked again; one that may have restarted nevertheless restarts once more.
func (r *RestoreReconciler) restart(ctx context.Context, s *restoreScope, view *restoreView, decision restore.Decision) error {
	one := view.machine(decision.Machines[0])
	admin, err := r.certificates.For(client.ObjectKeyFromObject(s.cluster), view.bundle, secrets.RoleAdmin)
	if err != nil {
		return fmt.Errorf("making a client certificate: %w", err)
	}
	node, err := restore.Reach(ctx, r.Dialer, admin, one.Machine)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	former, progress := s.progress, *s.progress
	progress.Restarts = maps.Clone(progress.Restarts)
	if progress.Restarts == nil {
		progress.Restarts = map[string]backupv1.RestoreRestart{}
	}
	var before time.Time
	for _, facts := range view.facts.Machines {
		if facts.Name == one.Name && facts.Node != nil {
			before = facts.Node.EtcdStarted
		}
	}
	if asked, found := progress.Restarts[one.Name]; found {
		before = asked.EtcdStarted.Time
	}
	if before.IsZero() {
		return nil // Its node does not tell yet, and a restart could not be told from none.
	}
	progress.Restarts[one.Name] = backupv1.RestoreRestart{EtcdStarted: metav1.NewMicroTime(before), At: metav1.NewTime(r.Clock.Now().Truncate(time.Second))}
	if err := r.record(ctx, s, &progress); err != nil {
		return err
	}
	if err := node.Restart(ctx); err != nil {
		return errors.Join(fmt.Errorf("restarting the node of Machine %s: %w", one.Name, err), r.record(ctx, s, former))
	}
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, backupv1.RestartingReason, "Restart", "The node of Machine %s restarts, to see that its etcd comes back", one.Name)

	return nil
}

// finish sees that the API server serves what was restored, deletes the Nodes that are no
// more, and lets the control plane go.
func (r *RestoreReconciler) finish(ctx context.Context, s *restoreScope, view *restoreView) error {
	waits := func(reason, message string) { s.is(backupv1.NodesRestartedCondition, condition.False(reason, message)) }
	revision, err := r.Workload.Revision(ctx, client.ObjectKeyFromObject(s.cluster))
	switch {
	case err != nil:
		waits(backupv1.WaitingForAPIServerReason, "the API server of the cluster does not answer: "+objects.Words(err))
		return nil
	case revision < s.progress.Revision:
		waits(backupv1.WaitingForAPIServerReason, "the API server of the cluster tells a revision before that of the backup")
		return nil
	}
	missing, waiting, err := r.reconcileNodes(ctx, s)
	if err != nil {
		return err
	}
	if waiting != "" {
		waits(backupv1.WaitingForNodesReason, waiting)
		return nil
	}
	s.complete()
	if len(missing) > 0 {
		message := "The backup does not know the Nodes of Machines that are younger, and their kubelets register none until they are restarted: " +
			condition.Cut(strings.Join(missing, ", "), maxMessage/2) + ". Restart these (talosctl service kubelet restart), or delete the Machines"
		s.is(backupv1.NodesRestartedCondition, condition.True(backupv1.NodesRestartedReason, message))
		r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, "NodesMissing", "Restore", "%s", message)
	}
	s.restore.Status.CompletedAt = metav1.NewTime(r.Clock.Now().Truncate(time.Second))
	ctrl.LoggerFrom(ctx).Info("Restored etcd", "revision", revision, "attempts", s.progress.Attempt)
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, "Restored", "Restore", "The etcd of Cluster %s is restored: %d members have it, also after a restart", s.cluster.Name, len(view.machines))

	return r.end(ctx, s, outcomeCompleted)
}

// reconcileNodes deletes the Nodes that are no more, and returns the workers that have none. It
// says what it waits for, if it does: what keeps Nodes of the cluster is mended there.
func (r *RestoreReconciler) reconcileNodes(ctx context.Context, s *restoreScope) (missing []string, waiting string, err error) {
	found, err := collections.GetFilteredMachinesForCluster(ctx, r.APIReader, s.cluster)
	if err != nil {
		return nil, "", fmt.Errorf("listing the Machines: %w", err)
	}
	cluster, machines := client.ObjectKeyFromObject(s.cluster), found.UnsortedList()
	left, err := r.Workload.DeleteNodesWithout(ctx, cluster, machines, s.progress.SentAt.Time)
	if err == nil && len(left) > 0 {
		return nil, "Nodes without a Machine seem to be ready still: " + condition.Cut(fmt.Sprint(left), maxMessage/2), nil
	}
	if err == nil {
		missing, err = r.Workload.WorkersWithout(ctx, cluster, machines)
	}
	if err != nil {
		return nil, s.cannotClearUp(ctx, err), nil
	}

	return missing, "", nil
}

// cannotClearUp says why the Nodes of the cluster cannot be cleared up. Where somebody may have to
// mend that first, it is tried again after a while, and what its condition says already is not
// logged each time, in whatever words.
func (s *restoreScope) cannotClearUp(ctx context.Context, err error) string {
	message := "the Nodes of the cluster cannot be cleared up; it is tried again"
	isNotTaken := objects.IsNotTaken(err)
	if isNotTaken {
		s.next = nodesRetry
		message += ", until that is mended in the cluster"
	}
	message = objects.Explain(message, err)
	told := conditions.GetMessage(s.before, backupv1.NodesRestartedCondition)
	if !isNotTaken || objects.WithoutWords(message) != objects.WithoutWords(told) {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to clear up the Nodes of the cluster")
	}

	return message
}

// holdOf is the record of the restore that holds a control plane; nil when none does.
func holdOf(controlPlane *metav1.PartialObjectMetadata) *controlplanev1.RestoreRecord {
	return objects.Record[controlplanev1.RestoreRecord](controlPlane, controlplanev1.RestoreInProgressAnnotation)
}

// intentOf is where the etcd of a control plane was bootstrapped; nil when that is not known.
func intentOf(controlPlane *metav1.PartialObjectMetadata) *controlplanev1.BootstrapIntent {
	return objects.Record[controlplanev1.BootstrapIntent](controlPlane, controlplanev1.BootstrapIntentAnnotation)
}

// errHeldMeanwhile says that somebody has changed the record while the nodes were asked.
var errHeldMeanwhile = errors.New("the record of the restore on the TalosControlPlane has changed meanwhile")

// holdControlPlane writes the record by which the control plane is held.
func (r *RestoreReconciler) holdControlPlane(ctx context.Context, s *restoreScope, record controlplanev1.RestoreRecord) error {
	value, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encoding the record of the restore: %w", err)
	}

	return r.mark(ctx, s, controlplanev1.RestoreInProgressAnnotation, string(value))
}

// mark writes an annotation of the control plane, unless the record by which that is held has
// changed since it was read. All else of the control plane may have.
func (r *RestoreReconciler) mark(ctx context.Context, s *restoreScope, annotation, value string) error {
	before := holdOf(s.controlPlane)
	if err := r.gatherControlPlane(ctx, s); err != nil {
		return err
	}
	if !reflect.DeepEqual(before, holdOf(s.controlPlane)) {
		return errHeldMeanwhile
	}

	return annotate(ctx, r.Client, s.controlPlane, map[string]string{annotation: value})
}

// letControlPlaneGo takes the record away, if it is of this restore. Once it is complete, the
// manifests of Talos are applied once more: those in the backup are of the version and the
// endpoint that the cluster had then.
func (r *RestoreReconciler) letControlPlaneGo(ctx context.Context, s *restoreScope) error {
	if err := r.gatherControlPlane(ctx, s); err != nil {
		return err
	}
	if s.controlPlane == nil {
		return nil
	}
	if record := holdOf(s.controlPlane); record == nil || record.Restore != s.restore.Name {
		return nil
	}
	err := objects.Change(ctx, r.Client, s.controlPlane, func(controlPlane *metav1.PartialObjectMetadata) {
		annotations := maps.Clone(controlPlane.Annotations)
		delete(annotations, controlplanev1.RestoreInProgressAnnotation)
		if s.outcome() == outcomeCompleted {
			annotations[controlplanev1.ManifestsAnnotation] = "restored"
		}
		controlPlane.Annotations = annotations
	})
	if err != nil {
		return fmt.Errorf("letting the TalosControlPlane go: %w", err)
	}

	return nil
}
