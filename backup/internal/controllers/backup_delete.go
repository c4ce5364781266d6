package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
)

const (
	// deletionTimeout is how long the deletion of the data of a backup may take.
	deletionTimeout = 10 * time.Minute
	// deletionRetry and lockedRetry are how soon it is tried again.
	deletionRetry = time.Minute
	lockedRetry   = time.Hour
)

// reconcileDelete deletes the data of the backup where it is to, and lets the object go.
func (r *BackupReconciler) reconcileDelete(ctx context.Context, s *backupScope) error {
	if step, running := r.Jobs.Running(s.key()); running {
		if step != metrics.StepDelete {
			r.Jobs.Cancel(s.key())
		}
		s.deleting = condition.True(backupv1.DeletingDataReason, stepText(step))
		return nil
	}
	if keeps, why := s.keepsData(); keeps {
		if why != "" {
			r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, "DataLeftBehind", "Delete", "The data of the backup stays in the store: %s", why)
		}
		return r.letGo(ctx, s)
	}
	if s.ended != nil && s.ended.Found != "" {
		// A job that finds nothing there later knows by it that it is not at the wrong place.
		if err := r.annotate(ctx, s, map[string]string{backupv1.DeletionBegunAnnotation: s.ended.Found}); err != nil {
			return err
		}
	} else if s.ended != nil && s.ended.Removal {
		return r.takeRemoval(ctx, s)
	}
	restores, err := restoresOf(ctx, r.Client, s.backup.Namespace)
	if err != nil {
		return err
	}
	if restore := restores[s.backup.Name]; restore != "" {
		s.deleting = condition.True(backupv1.BackupInUseReason, "TalosEtcdRestore "+restore+" reads it; its data is deleted when that has ended")
		s.again(deletionRetry)
		return nil
	}
	if hold := s.deletionHold().Sub(r.Clock.Now()); hold > 0 {
		s.again(hold)
		return nil
	}

	return r.remove(ctx, s)
}

// takeRemoval takes in how a job that deletes the data has ended.
func (r *BackupReconciler) takeRemoval(ctx context.Context, s *backupScope) error {
	if !s.ended.Deleted {
		r.deletionFailed(s, s.ended.Err)
		return nil
	}
	if err := r.letGo(ctx, s); err != nil {
		return err
	}
	r.tellDeleted(s)

	return nil
}

// tellDeleted says what was deleted, or that the store had nothing of a backup that was complete.
func (r *BackupReconciler) tellDeleted(s *backupScope) {
	switch {
	case s.ended.Removed:
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeNormal, "DataDeleted", "Delete", "The data of the backup is deleted from the store")
	case s.ended.Again:
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeNormal, "DataDeleted", "Delete", "Nothing of the backup is left in the store, from which it was to be deleted before")
	case s.isMade():
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, "DataLeftBehind", "Delete",
			"Nothing of the backup was found in the store: it was deleted before, or is at another endpoint, bucket or prefix, where it stays")
	}
}

// keepsData reports whether the data stays in the store, and why, where it was to be deleted.
func (s *backupScope) keepsData() (keeps bool, why string) {
	_, isMoved := s.backup.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	_, isForced := s.backup.Annotations[backupv1.ForceDeleteAnnotation]
	switch {
	case isMoved, s.backup.Spec.DeletionPolicy != backupv1.DeletionDelete, s.backup.Annotations[backupv1.IDAnnotation] == "":
		return true, ""
	case isForced:
		return true, "the backup has the annotation " + backupv1.ForceDeleteAnnotation
	case s.store == nil:
		return true, "its TalosBackupStore is gone"
	case s.store.Spec.AccessMode == backupv1.AccessReadOnly:
		return true, "accessMode of its TalosBackupStore is ReadOnly"
	}

	return false, ""
}

// deletionFailed says why the data is still there, and has it tried again later.
func (r *BackupReconciler) deletionFailed(s *backupScope, err error) {
	reason, wait := backupv1.DeletionFailedReason, deletionRetry
	if store.ReasonOf(err) == store.Locked {
		reason, wait = backupv1.ObjectLockedReason, lockedRetry
	}
	s.deleting = condition.True(reason, err.Error()+"; it is tried again, and the annotation "+backupv1.ForceDeleteAnnotation+" leaves the data")
	s.fail(r.Clock.Now(), err)
	s.again(wait)
}

// deletionHold is until when the deletion is not tried again.
func (s *backupScope) deletionHold() time.Time {
	last := conditions.Get(s.backup, backupv1.BackupDeletingCondition)
	switch {
	case last != nil && last.Reason == backupv1.ObjectLockedReason:
		return s.backup.Status.Failure.At.Add(lockedRetry)
	case last != nil && last.Reason == backupv1.DeletionFailedReason:
		return s.backup.Status.Failure.At.Add(deletionRetry)
	}

	return time.Time{}
}

// remove starts the job that deletes the data, or that only looks for it where nothing of it is
// known to be.
func (r *BackupReconciler) remove(ctx context.Context, s *backupScope) error {
	var err error
	s.opened, err = r.Stores.Open(ctx, s.store)
	if invalid := (*stores.InvalidError)(nil); errors.As(err, &invalid) {
		r.deletionFailed(s, err)
		return nil
	}
	if err != nil {
		return err
	}
	work := &attempt{clock: r.Clock, metrics: r.Metrics, draft: archive.Manifest{Name: s.backup.Name}}
	if err := work.in(s); err != nil {
		r.deletionFailed(s, err)
		return nil
	}
	s.deleting = condition.True(backupv1.DeletingDataReason, stepText(metrics.StepDelete))
	work.deletions.onlyLooks = s.backup.Annotations[backupv1.DeletionBegunAnnotation] != work.place
	key := jobs.Key{Namespace: s.backup.Namespace, Name: s.backup.Name, Cluster: s.backup.Spec.ClusterName}
	r.Jobs.Start(key, func(ctx context.Context, progress func(metrics.Step)) Result {
		ctx, cancel := context.WithTimeout(ctx, deletionTimeout)
		defer cancel()

		return work.remove(ctx, progress)
	})

	return nil
}

// placeOf says where the backups of a store are.
func placeOf(of *backupv1.TalosBackupStore) string {
	s3 := &of.Spec.S3

	return strings.Join([]string{strings.TrimSuffix(s3.Endpoint, "/"), s3.Bucket, s3.Prefix}, "/")
}

// letGo takes the finalizer away. Where that fails, how the job has ended stays known.
func (r *BackupReconciler) letGo(ctx context.Context, s *backupScope) error {
	free := s.backup.DeepCopy()
	controllerutil.RemoveFinalizer(free, backupv1.BackupFinalizer)
	if err := client.IgnoreNotFound(r.Client.Patch(ctx, free, client.MergeFrom(s.backup))); err != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	s.gone = true

	return nil
}
