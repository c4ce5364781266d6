package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

const (
	// lostAfter is for how long a store says that it lacks a backup before that is believed.
	lostAfter = time.Hour
	// lostRetry is how soon one that is lost is looked for again: people bring it back, and
	// nothing tells.
	lostRetry = time.Hour
)

// isLost reports whether a backup was complete, and is not in the store any more.
func isLost(backup *backupv1.TalosEtcdBackup) bool {
	return conditions.GetReason(backup, backupv1.CompletedCondition) == backupv1.LostReason
}

// isMissed reports whether the store lacks a backup, as its last answer was.
func isMissed(backup *backupv1.TalosEtcdBackup) bool {
	return isLost(backup) || conditions.GetReason(backup, backupv1.CompletedCondition) == backupv1.MissingReason
}

// madeOf are the names of the backups of a cluster that are to be in a store.
func (r *BackupReconciler) madeOf(ctx context.Context, cluster archive.Cluster) (map[string]bool, error) {
	list := &backupv1.TalosEtcdBackupList{}
	if err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("listing the TalosEtcdBackups: %w", err)
	}
	made := map[string]bool{}
	for i := range list.Items {
		if backup := &list.Items[i]; isOf(backup, cluster) && isMade(backup) {
			made[backup.Name] = true
		}
	}

	return made, nil
}

// miss takes in that the store says that it lacks a backup which is to be there. One answer
// proves nothing: a server that is being repaired, or a proxy, may give it. All in a row for
// long enough do. Those of a lost status are counted anew.
func (r *BackupReconciler) miss(s *backupScope, answer error) {
	wasLost := isLost(s.backup)
	if !isMissed(s.backup) {
		s.backup.Status.Failure = backupv1.BackupFailure{}
	}
	s.fail(r.Clock.Now(), answer)
	count := s.backup.Status.Failure.Count
	if !wasLost && triedFor(count) < lostAfter {
		s.completed = condition.Unknownf(backupv1.MissingReason, "the store says that it does not have the backup, %d times in a row; it is looked for again, and is lost when that stays so for an hour", count)
		return
	}
	s.completed = condition.Falsef(backupv1.LostReason, "the backup is not in the store any more: looked for %d times; it is looked for again each hour", count)
	if !wasLost {
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, backupv1.LostReason, "BackUp", "%s", s.completed.Message)
	}
}

// triedFor is how much time lies at least between the first and the last of so many attempts.
func triedFor(count int32) (all time.Duration) {
	for ; count > 1; count-- {
		all += retryAfter(count - 1)
	}

	return all
}

// wait is how soon the backup is tried again after its last attempt has failed.
func (s *backupScope) wait() time.Duration {
	if isLost(s.backup) {
		return lostRetry
	}

	return retryAfter(s.backup.Status.Failure.Count)
}
