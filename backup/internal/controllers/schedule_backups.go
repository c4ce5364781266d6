package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/retention"
	"github.com/capi-talos/capi-talos/backup/internal/schedule"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// reconcileCluster begins the backups of a Cluster that are due, and deletes those that are
// not to be kept, also where none can be begun: that may be for want of room. run, where it is
// not empty, asks for one now.
func (r *ScheduleReconciler) reconcileCluster(ctx context.Context, s *scheduleScope, cluster *scheduledCluster, run string) error {
	var errs []error
	if run != "" {
		errs = append(errs, r.begin(ctx, s, cluster, nameOf(s.schedule.Name, cluster.Name, "run", run), time.Time{}))
	}
	errs = append(errs, r.reconcileDue(ctx, s, cluster))
	if cluster.identity == "" {
		return kerrors.NewAggregate(errs) // Nobody knows which backups are its own, and not those of a former one.
	}
	errs = append(errs, r.reconcileVerification(ctx, s, cluster))
	cluster.status.CompletedAt, cluster.status.VerifiedAt = newest(cluster.complete(r.Clock.Now()))

	return kerrors.NewAggregate(append(errs, r.prune(ctx, s, cluster)))
}

// newest says when the snapshot of the newest backup that is complete was taken, and not
// known to be damaged, and when the newest one that is sound was verified; zero where there is
// none. They are sorted, the newest first.
func newest(complete []*backupv1.TalosEtcdBackup) (completed, verified metav1.Time) {
	for _, backup := range complete {
		if completed.IsZero() && !conditions.IsFalse(backup, backupv1.VerifiedCondition) {
			completed = backup.Status.Snapshot.TakenAt
		}
		if conditions.IsTrue(backup, backupv1.VerifiedCondition) {
			return completed, backup.Status.Verification.At
		}
	}

	return completed, verified
}

// complete are the backups of which is known what the store has, that of the newest snapshot
// first. One that is being deleted is none of them, nor one whose time is still to come: a
// clock was ahead then, and it would be the newest until it is caught up with.
func (c *scheduledCluster) complete(now time.Time) []*backupv1.TalosEtcdBackup {
	found := slices.DeleteFunc(slices.Clone(c.backups), func(backup *backupv1.TalosEtcdBackup) bool {
		return !isComplete(backup) || !backup.DeletionTimestamp.IsZero() || schedule.IsAhead(backup.Status.Snapshot.TakenAt.Time, now)
	})
	slices.SortStableFunc(found, func(a, b *backupv1.TalosEtcdBackup) int {
		return b.Status.Snapshot.TakenAt.Compare(a.Status.Snapshot.TakenAt.Time)
	})

	return found
}

// reconcileDue begins the backup that is due now, if one is.
func (r *ScheduleReconciler) reconcileDue(ctx context.Context, s *scheduleScope, cluster *scheduledCluster) error {
	if s.parsed == nil || s.isSuspended() || !canBeBackedUp(cluster.Cluster) {
		return nil
	}
	spec := &s.schedule.Spec
	jitter := schedule.Jitter(cluster.Namespace+"/"+cluster.Name, time.Duration(ptr.Deref(spec.JitterSeconds, backupv1.DefaultJitterSeconds))*time.Second)
	deadline := time.Duration(ptr.Deref(spec.StartingDeadlineSeconds, 0)) * time.Second
	due := s.parsed.Due(s.since(cluster, r.Clock.Now()), r.Clock.Now(), jitter, deadline)
	s.again(due.Next)
	cluster.status.Missed = nil
	if due.Missed > 0 {
		cluster.status.Missed = ptr.To(int32(due.Missed)) //nolint:gosec // G115: it is 100 at most.
	}
	if due.At.IsZero() {
		return nil
	}
	if proceed, err := r.reconcileFormer(ctx, s, cluster); err != nil || !proceed {
		return cluster.refused(err)
	}
	if err := r.begin(ctx, s, cluster, nameOf(s.schedule.Name, cluster.Name, due.At.UTC().Format("20060102t1504z"), ""), due.At); err != nil {
		return err
	}
	cluster.status.ScheduledAt, cluster.status.Missed = metav1.NewTime(due.At), nil

	return nil
}

// canBeBackedUp reports whether a Cluster has an etcd that may be looked at.
func canBeBackedUp(cluster *clusterv1.Cluster) bool {
	return ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) && !annotations.IsPaused(cluster, cluster)
}

// since is the time of the schedule for which the last backup of a Cluster was begun, or
// when there was none to begin before. Where the status was lost, the newest one is begun
// once more, under the name that it has already; so it is where a clock was ahead.
func (s *scheduleScope) since(cluster *scheduledCluster, now time.Time) time.Time {
	since := slices.MaxFunc([]time.Time{s.schedule.CreationTimestamp.Time, cluster.CreationTimestamp.Time}, time.Time.Compare)
	if last := cluster.status.ScheduledAt.Time; last.After(since) && !schedule.IsAhead(last, now) {
		since = last
	}

	return since
}

// reconcileFormer does what concurrencyPolicy says about backups that are not complete, and
// reports whether the next one may begin. One that is imported is in the store already,
// though it has not ended before all of it is read back.
func (r *ScheduleReconciler) reconcileFormer(ctx context.Context, s *scheduleScope, cluster *scheduledCluster) (bool, error) {
	for _, backup := range cluster.backups {
		if backup.Annotations[backupv1.OutcomeAnnotation] != "" || isImported(backup) || s.schedule.Spec.ConcurrencyPolicy == backupv1.ConcurrencyAllow {
			continue
		}
		if s.schedule.Spec.ConcurrencyPolicy != backupv1.ConcurrencyReplace {
			return false, nil
		}
		if !backup.DeletionTimestamp.IsZero() {
			continue
		}
		r.Recorder.Eventf(s.schedule, backup, corev1.EventTypeNormal, "BackupReplaced", "BackUp", "TalosEtcdBackup %s is given up for the next one", backup.Name)
		if err := r.discard(ctx, backup, backupv1.DeletionDelete); err != nil {
			return false, err
		}
	}

	return true, nil
}

// begin makes a backup. It is no error if it was made already.
func (r *ScheduleReconciler) begin(ctx context.Context, s *scheduleScope, cluster *scheduledCluster, name string, at time.Time) error {
	spec := s.schedule.Spec.Backup
	made := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.schedule.Namespace, Name: name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name, backupv1.ScheduleNameLabel: s.schedule.Name},
		},
		Spec: backupv1.TalosEtcdBackupSpec{
			ClusterName: cluster.Name, StoreName: s.schedule.Spec.StoreName, Secrets: spec.Secrets, DeletionPolicy: spec.DeletionPolicy, TimeoutSeconds: spec.TimeoutSeconds,
		},
	}
	if !at.IsZero() {
		made.Annotations = map[string]string{backupv1.ScheduledAtAnnotation: at.UTC().Format(time.RFC3339)}
	}
	objects.WatchAs(s.schedule, made)
	if err := r.Client.Create(ctx, made); err != nil && !apierrors.IsAlreadyExists(err) {
		return cluster.refused(fmt.Errorf("creating TalosEtcdBackup %s: %w", name, err))
	}

	return nil
}

// refused notes an error, if it is one, that keeps a backup from being begun, and returns it.
// A lost race is not told: the next reconcile, which is soon, begins the backup.
func (c *scheduledCluster) refused(err error) error {
	if err != nil && !objects.IsLostRace(err) {
		c.refusal = err
	}

	return err
}

// nameLength is how many digits tell backups apart whose names would be the same.
const nameLength = 8

// nameOf is the name of a backup of a schedule and a Cluster: always the same, so that none
// is made twice.
func nameOf(schedule, cluster, when, run string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{schedule, cluster, when, run}, "\x00")))

	return strings.Join([]string{schedule, cluster, when, hex.EncodeToString(sum[:])[:nameLength]}, "-")
}

// isComplete reports whether a backup is in the store, and what it holds is known.
func isComplete(backup *backupv1.TalosEtcdBackup) bool {
	return conditions.IsTrue(backup, backupv1.CompletedCondition) && !backup.Status.Snapshot.TakenAt.IsZero()
}

// prune deletes the backups of a Cluster that are not to be kept: the data of those that
// are complete, and the objects of those that have failed long ago.
func (r *ScheduleReconciler) prune(ctx context.Context, s *scheduleScope, cluster *scheduledCluster) error {
	restores, err := restoresOf(ctx, r.Client, s.schedule.Namespace)
	if err != nil {
		return err
	}
	for _, verdict := range retention.Judge(s.judged(cluster.complete(r.Clock.Now()), restores), s.policy(), r.Clock.Now()) {
		if verdict.Keep {
			continue
		}
		i := slices.IndexFunc(cluster.backups, func(backup *backupv1.TalosEtcdBackup) bool { return backup.Name == verdict.Name })
		backup := cluster.backups[i]
		r.Recorder.Eventf(s.schedule, backup, corev1.EventTypeNormal, "BackupPruned", "Prune", "TalosEtcdBackup %s is deleted: %s", backup.Name, strings.Join(verdict.Reasons, ", "))
		if err := r.discard(ctx, backup, backupv1.DeletionDelete); err != nil {
			return err
		}
		r.Metrics.Pruned()
	}
	kept := int(ptr.Deref(s.schedule.Spec.FailedLimit, backupv1.DefaultFailedLimit))
	for _, backup := range cluster.backups {
		if backup.Annotations[backupv1.OutcomeAnnotation] != outcomeFailed || !backup.DeletionTimestamp.IsZero() {
			continue
		}
		if kept--; kept >= 0 {
			continue
		}
		// What attempts have left in the store is collected. There may be more that nobody
		// knows of, as versions that somebody has hidden.
		if err := r.discard(ctx, backup, backupv1.DeletionRetain); err != nil {
			return err
		}
	}

	return nil
}

// judged are the backups of a Cluster that retention is about, with the restores that read
// them. One whose status was lost is not among them until it was found again, and is kept.
func (s *scheduleScope) judged(complete []*backupv1.TalosEtcdBackup, restores map[string]string) []retention.Backup {
	var found []retention.Backup
	for _, backup := range complete {
		judged := retention.Backup{Name: backup.Name, Time: backup.Status.Snapshot.TakenAt.Time, Level: levelOf(backup)}
		if restore := restores[backup.Name]; restore != "" {
			judged.Used = "TalosEtcdRestore " + restore + " reads it"
		}
		if s.store != nil && s.store.Spec.S3.ObjectLock.Mode != "" {
			judged.LockedUntil = judged.Time.AddDate(0, 0, int(ptr.Deref(s.store.Spec.S3.ObjectLock.Days, 0)))
		}
		found = append(found, judged)
	}

	return found
}

// levelOf is how thoroughly a backup was found to be sound; 0 means that it was not.
func levelOf(backup *backupv1.TalosEtcdBackup) int {
	if !conditions.IsTrue(backup, backupv1.VerifiedCondition) {
		return 0
	}
	levels := []backupv1.VerificationLevel{backupv1.VerificationDigest, backupv1.VerificationSnapshot, backupv1.VerificationRestore}

	return slices.Index(levels, backup.Status.Verification.Level) + 1
}

// policy is what retention says. Nothing goes where it says nothing.
func (s *scheduleScope) policy() retention.Policy {
	spec := &s.schedule.Spec.Retention
	policy := retention.Policy{
		Last: int(ptr.Deref(spec.Last, 0)), Hourly: int(ptr.Deref(spec.Hourly, 0)), Daily: int(ptr.Deref(spec.Daily, 0)), Weekly: int(ptr.Deref(spec.Weekly, 0)),
		Monthly: int(ptr.Deref(spec.Monthly, 0)), MaxAge: time.Duration(ptr.Deref(spec.MaxAgeDays, 0)) * 24 * time.Hour,
	}
	if s.parsed != nil {
		policy.Zone = s.parsed.Zone()
	}

	return policy
}

// discard deletes a backup, with its data or without, as it was seen.
func (r *ScheduleReconciler) discard(ctx context.Context, backup *backupv1.TalosEtcdBackup, policy backupv1.DeletionPolicy) error {
	if err := objects.Change(ctx, r.Client, backup, func(backup *backupv1.TalosEtcdBackup) { backup.Spec.DeletionPolicy = policy }); err != nil {
		return fmt.Errorf("writing TalosEtcdBackup %s: %w", backup.Name, err)
	}
	seen := client.Preconditions{UID: ptr.To(backup.UID), ResourceVersion: ptr.To(backup.ResourceVersion)}
	if err := r.Client.Delete(ctx, backup, seen); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting TalosEtcdBackup %s: %w", backup.Name, err)
	}

	return nil
}
