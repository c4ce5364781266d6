package controllers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// +kubebuilder:rbac:groups="",resources=secrets,verbs=create

// check makes sure that the backup can be restored to the Cluster, and begins then. Nothing
// is wiped before.
func (r *RestoreReconciler) check(ctx context.Context, s *restoreScope) error {
	if ready, err := r.gatherBackup(ctx, s); err != nil || !ready {
		return err
	}
	bundle, ready, err := r.gatherTarget(ctx, s)
	if err != nil || !ready {
		return err
	}
	if s.ended != nil && s.ended.Machine == "" {
		return r.takeCheck(ctx, s, bundle)
	}
	if r.isTooSoon(s) {
		return nil // The condition says why it has failed.
	}
	work, err := r.workOf(ctx, s)
	if err != nil || work == nil {
		return err
	}
	if objected, err := r.object(ctx, s, bundle, ""); err != nil || objected {
		return err
	}
	work.bundle, work.seen = bundle, r.revisionSeen(ctx, s)
	s.is(backupv1.CheckedCondition, condition.Unknown(backupv1.CheckingReason, "the backup is being unpacked, and looked at"))
	r.start(s, work)

	return nil
}

// gatherTarget reads the secrets of the cluster that the backup is restored to; a new one has
// none. It reports whether it can be that cluster.
func (r *RestoreReconciler) gatherTarget(ctx context.Context, s *restoreScope) (*secrets.Bundle, bool, error) {
	switch {
	case s.isNewCluster() && s.controlPlane.Annotations[controlplanev1.RestoreAnnotation] != s.restore.Name:
		s.waits(backupv1.WaitingForControlPlaneReason, "the TalosControlPlane was not created with the annotation "+controlplanev1.RestoreAnnotation+": "+s.restore.Name+
			", without which it makes secrets and an etcd of its own")
		return nil, false, nil
	case s.isNewCluster() && ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		return nil, false, r.refuse(ctx, s, backupv1.OtherClusterReason, "the control plane of the Cluster is initialized: mode NewCluster is for one that has no etcd yet")
	case s.isNewCluster():
		return nil, true, nil
	}
	bundle, err := r.gatherBundle(ctx, s)
	if err != nil || bundle == nil {
		return nil, false, err
	}
	if identityOf(bundle) != s.backup.Annotations[backupv1.ClusterIdentityAnnotation] {
		return nil, false, r.refuse(ctx, s, backupv1.OtherClusterReason, "the backup is of another cluster: the CA of its Talos API is another one; mode NewCluster makes a new cluster of it")
	}

	return bundle, true, nil
}

// takeCheck takes in what was found of the backup.
func (r *RestoreReconciler) takeCheck(ctx context.Context, s *restoreScope, bundle *secrets.Bundle) error {
	err := s.ended.Err
	switch reason := checkReason(err); {
	case err == nil:
		err = r.begin(ctx, s, bundle)
		s.cannotBegin(err)
		return err
	case reason == backupv1.DamagedReason, reason == backupv1.OtherClusterReason:
		return r.refuse(ctx, s, reason, err.Error())
	default:
		s.fail(r.Clock.Now(), err)
		s.is(backupv1.CheckedCondition, condition.Unknown(reason, err.Error()+"; it is tried again"))
		r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, reason, "Check", "%s", condition.Cut(err.Error(), maxMessage))
	}

	return nil
}

// cannotBegin says why a restore has not begun, unless somebody was faster, which passes. Why
// it is refused stays, as it is never told again.
func (s *restoreScope) cannotBegin(err error) {
	if _, isTold := s.found[backupv1.CheckedCondition]; err == nil || isTold || objects.IsLostRace(err) {
		return
	}
	s.is(backupv1.CheckedCondition, condition.Unknown(backupv1.CheckFailedReason, objects.Explain("the restore cannot begin; it is tried again", err)))
}

// checkReason is why a backup could not be looked at, or what is wrong with it.
func checkReason(err error) string {
	switch {
	case err == nil:
		return backupv1.CheckedReason
	case errors.Is(err, errOtherCluster), errors.Is(err, archive.ErrManifest), store.ReasonOf(err) == store.Exists:
		return backupv1.OtherClusterReason
	case isDamage(err), store.ReasonOf(err) == store.NotFound:
		return backupv1.DamagedReason
	case errors.Is(err, pipeline.ErrIdentity):
		return backupv1.NoIdentityReason
	case errors.Is(err, scratch.ErrShort):
		return backupv1.ScratchSpaceShortReason
	case errors.Is(err, etcdtool.ErrRelease):
		return backupv1.EtcdReleaseUnknownReason
	case store.ReasonOf(err) != "":
		return string(store.ReasonOf(err))
	}

	return backupv1.CheckFailedReason
}

// begin begins the restore. The control plane is held first, so that two restores never
// begin, and what speaks against it is looked for then.
func (r *RestoreReconciler) begin(ctx context.Context, s *restoreScope, bundle *secrets.Bundle) error {
	if err := r.holdControlPlane(ctx, s, controlplanev1.RestoreRecord{Restore: s.restore.Name}); err != nil {
		return err
	}
	if objected, err := r.object(ctx, s, bundle, s.ended.EtcdVersion); err != nil || objected {
		return err
	}
	if s.isNewCluster() {
		reason, message, err := r.bringBundle(ctx, s)
		if err != nil {
			return err
		}
		if reason != "" {
			return r.refuse(ctx, s, reason, message)
		}
	}
	progress := &backupv1.RestoreProgress{Attempt: 1, Revision: s.ended.Database.Revision, EtcdVersion: s.ended.EtcdVersion}
	if err := r.mark(ctx, s, controlplanev1.RestoredRevisionAnnotation, strconv.FormatInt(progress.Revision, 10)); err != nil {
		return err
	}
	if err := r.record(ctx, s, progress); err != nil {
		return err
	}
	s.restore.Status.Failure = backupv1.BackupFailure{}
	s.is(backupv1.CheckedCondition, condition.True(backupv1.CheckedReason, ""))
	s.is(backupv1.MachinesWipedCondition, condition.False(backupv1.WipingReason, "it is about to begin"))
	s.again(time.Second)
	ctrl.LoggerFrom(ctx).Info("Restoring etcd", "TalosEtcdBackup", s.backup.Name, "mode", s.restore.Spec.Mode, "revision", s.progress.Revision)
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, "RestoreBegun", "Restore", "The etcd of Cluster %s is restored from TalosEtcdBackup %s", s.cluster.Name, s.backup.Name)

	return nil
}

// object reports whether something speaks against a restore that has wiped nothing yet. It is
// refused then, or waits where that is not known.
func (r *RestoreReconciler) object(ctx context.Context, s *restoreScope, bundle *secrets.Bundle, etcdVersion string) (bool, error) {
	if s.isNewCluster() {
		return false, nil
	}
	reason, message, err := r.against(ctx, s, bundle, etcdVersion)
	switch {
	case err != nil || reason == "":
		return false, err
	case reason == backupv1.QuorumUnknownReason:
		s.is(backupv1.CheckedCondition, condition.Unknown(reason, message))
		return true, r.letControlPlaneGo(ctx, s)
	}

	return true, r.refuse(ctx, s, reason, message)
}

// against is what speaks against a restore, with its reason: an etcd that has its quorum, or
// may have it, one that is too old, or machines that cannot be wiped.
func (r *RestoreReconciler) against(ctx context.Context, s *restoreScope, bundle *secrets.Bundle, etcdVersion string) (reason, message string, err error) {
	machines, err := r.gatherMachines(ctx, s)
	if err != nil {
		return "", "", err
	}
	i := slices.IndexFunc(machines, func(one machine) bool { return one.infrastructure == nil })
	if i >= 0 {
		return backupv1.InfrastructureUnsupportedReason, "Machine " + machines[i].Name + " has no TalosMachine, and cannot be wiped: mode NewCluster makes a new cluster of the backup", nil
	}
	nodes, err := r.look(ctx, s, bundle, machines)
	if err != nil {
		return "", "", err
	}
	for name, node := range nodes.ByMachine {
		if restore.IsOlder(node.EtcdVersion, etcdVersion) {
			return backupv1.EtcdTooOldReason, fmt.Sprintf("Machine %s runs etcd %s, and the backup is of etcd %s", name, node.EtcdVersion, etcdVersion), nil
		}
	}
	if s.restore.Spec.QuorumPolicy == backupv1.QuorumDiscard {
		return "", "", nil
	}
	_, err = r.Workload.Revision(ctx, client.ObjectKeyFromObject(s.cluster))
	switch {
	case nodes.HasLeader || err == nil:
		return backupv1.QuorumPresentReason, "etcd has its quorum: what the cluster has would be lost. To give it up, make another TalosEtcdRestore with quorumPolicy: Discard", nil
	case nodes.MayHaveQuorum():
		return backupv1.QuorumUnknownReason, "etcd may have its quorum: it does not answer here on Machine " + condition.Cut(strings.Join(nodes.Unseen, ", "), maxMessage/2) +
			". If these are lost for good, and off, make another TalosEtcdRestore with quorumPolicy: Discard", nil
	}

	return "", "", nil
}

// revisionSeen is the latest revision that clients of the cluster are known to have seen: that
// of the last restore, and what the API server tells, if it does. 0 means that none is known.
func (r *RestoreReconciler) revisionSeen(ctx context.Context, s *restoreScope) int64 {
	seen, err := strconv.ParseInt(s.controlPlane.Annotations[controlplanev1.RestoredRevisionAnnotation], 10, 64)
	if err != nil || seen > math.MaxInt64/2 {
		seen = 0 // It is none of ours.
	}
	if now, err := r.Workload.Revision(ctx, client.ObjectKeyFromObject(s.cluster)); err == nil {
		seen = max(seen, now)
	}

	return seen
}

// bringBundle gives the cluster the secrets of the backup. One that has other ones already
// has begun without it.
func (r *RestoreReconciler) bringBundle(ctx context.Context, s *restoreScope) (reason, message string, err error) {
	bundle := s.ended.Bundle
	made := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.cluster.Namespace, Name: secrets.BundleName(s.cluster.Name), Labels: map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: s.cluster.Name, UID: s.cluster.UID}},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{secrets.BundleKey: bundle.YAML()},
	}
	err = r.Client.Create(ctx, made)
	if err == nil {
		r.Recorder.Eventf(s.restore, nil, corev1.EventTypeNormal, "BundleCreated", "Create", "Made the secrets of the cluster from the backup: Secret %s", made.Name)
		return "", "", nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return "", "", fmt.Errorf("creating Secret %s: %w", made.Name, err)
	}
	there, err := secrets.GetBundle(ctx, r.APIReader, client.ObjectKeyFromObject(s.cluster))
	if err != nil || there.Digest() != bundle.Digest() {
		return backupv1.OtherClusterReason, "Secret " + made.Name + " is there already, and has other secrets than the backup; delete the Cluster, and begin anew", nil //nolint:nilerr // It is another Secret.
	}

	return "", "", nil
}

// isTooSoon reports whether another attempt is to wait, because the last one has just failed.
func (r *RestoreReconciler) isTooSoon(s *restoreScope) bool {
	failure := s.restore.Status.Failure
	hold := failure.At.Add(retryAfter(failure.Count)).Sub(r.Clock.Now())
	if failure.Count == 0 || hold <= 0 {
		return false
	}
	s.again(hold)

	return true
}

// workOf gathers what the backup is read with; nil while that cannot be.
func (r *RestoreReconciler) workOf(ctx context.Context, s *restoreScope) (*restoreWork, error) {
	if _, running := r.Jobs.Running(s.key()); running {
		return nil, nil //nolint:nilnil // The condition says what it is doing.
	}
	if ready := conditions.Get(s.store, backupv1.StoreReadyCondition); ready == nil || ready.Status != metav1.ConditionTrue {
		s.waits(backupv1.WaitingForStoreReason, "TalosBackupStore "+s.store.Name+" is not ready")
		return nil, nil //nolint:nilnil // The condition says so.
	}
	opened, err := r.Stores.Open(ctx, s.store)
	var identities []age.Identity
	if err == nil {
		identities, err = r.Stores.Identities(ctx, s.store, s.restore.Spec.IdentitySecretName)
	}
	if invalid := (*stores.InvalidError)(nil); errors.As(err, &invalid) {
		s.waits(backupv1.WaitingForStoreReason, invalid.Message)
		return nil, nil //nolint:nilnil // The condition says so.
	}
	if err != nil {
		return nil, err
	}
	work := &restoreWork{
		maker: r.Maker, name: s.backup.Name, id: s.backup.Annotations[backupv1.IDAnnotation], sha256: s.backup.Status.Snapshot.SHA256, identities: identities,
	}
	work.archive, err = archiveOf(s.backup, opened)

	return work, err
}

// workTimeout is how long a database may take to be made and sent: as long as that of the
// largest that etcd recommends, 8 GiB, at 1 MiB/s. Only one is made at a time, for all Clusters.
const workTimeout = 3 * time.Hour

// start starts a job, or waits for its turn. What it has done is told to the next reconcile.
func (r *RestoreReconciler) start(s *restoreScope, work *restoreWork) {
	started := r.Jobs.Start(keyOf(s.restore), func(ctx context.Context, progress func(metrics.Step)) RestoreResult {
		ctx, cancel := context.WithTimeout(ctx, workTimeout)
		defer cancel()
		began := r.Clock.Now()
		progress(work.step())
		result := work.run(ctx)
		r.Metrics.Ended(work.step(), r.Clock.Since(began), result.Err)

		return result
	})
	if !started {
		s.waits(backupv1.WaitingForTurnReason, "other restores have their turn first")
	}
}

// fail counts a step that has failed.
func (s *restoreScope) fail(now time.Time, err error) {
	s.restore.Status.Failure = failed(s.restore.Status.Failure, now, err)
}

// refuse ends the restore before it has begun.
func (r *RestoreReconciler) refuse(ctx context.Context, s *restoreScope, reason, message string) error {
	s.is(backupv1.CheckedCondition, condition.False(reason, message))
	r.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, reason, "Check", "%s", condition.Cut(message, maxMessage))

	return r.end(ctx, s, outcomeFailed)
}
