package controllers

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// isTold reports whether the conditions of a backup say how it has ended, and whether it is
// sound.
func isTold(backup *backupv1.TalosEtcdBackup) bool {
	completed, verified := conditions.Get(backup, backupv1.CompletedCondition), conditions.Get(backup, backupv1.VerifiedCondition)
	if completed == nil {
		return false
	}
	switch completed.Reason {
	case backupv1.CompletedReason:
		return verified != nil && verified.Status != metav1.ConditionUnknown
	case backupv1.FailedReason, backupv1.NameTakenReason:
		return true
	}

	return false
}

// takeResult takes in how the last job has ended.
func (r *BackupReconciler) takeResult(ctx context.Context, s *backupScope) error {
	result := r.Jobs.Result(s.key())
	if result == nil {
		return nil
	}
	s.ended = result
	defer s.tell()
	switch {
	case result.Removal || !s.backup.DeletionTimestamp.IsZero():
		return nil
	case result.Manifest != nil:
		return r.complete(ctx, s, result)
	case result.Lost:
		r.miss(s, result.Err)
		return nil
	case store.ReasonOf(result.Err) == store.Exists:
		s.completed = condition.False(backupv1.NameTakenReason, result.Err.Error())
		return r.end(ctx, s, outcomeFailed)
	}
	s.fail(r.Clock.Now(), result.Err)
	if s.underWay(s.attemptFailed()); isMissed(s.backup) && !isLost(s.backup) {
		s.completed = s.attemptFailed() // A store that fails has not said that it lacks the backup.
	}
	ctrl.LoggerFrom(ctx).Info("An attempt to make a backup has failed", "attempts", s.backup.Status.Failure.Count, "error", result.Err.Error())
	r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, backupv1.AttemptFailedReason, "BackUp", "%s", s.backup.Status.Failure.Message)

	return nil
}

// fail counts an attempt that has failed.
func (s *backupScope) fail(now time.Time, err error) {
	s.backup.Status.Failure = failed(s.backup.Status.Failure, now, err)
}

// failed counts one more failure.
func failed(before backupv1.BackupFailure, now time.Time, err error) backupv1.BackupFailure {
	return backupv1.BackupFailure{
		Count: min(before.Count, math.MaxInt32-1) + 1, At: metav1.NewTime(now.Truncate(time.Second)), Message: condition.Cut(err.Error(), maxMessage),
	}
}

// tell has the conditions say what was found.
func (s *backupScope) tell() {
	condition.Set(s.backup, backupv1.CompletedCondition, s.completed)
	condition.Set(s.backup, backupv1.VerifiedCondition, s.verified)
}

// complete takes in a backup that is in the store, sound or not.
func (r *BackupReconciler) complete(ctx context.Context, s *backupScope, result *Result) error {
	first := s.outcome() == ""
	if err := r.end(ctx, s, outcomeCompleted); err != nil {
		return err
	}
	manifest := result.Manifest
	s.backup.Status.Snapshot = snapshotOf(manifest)
	s.completed = condition.True(backupv1.CompletedReason, "")
	r.takeVerification(s, result)
	if first {
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeNormal, backupv1.CompletedReason, "BackUp", "The etcd of Cluster %s is backed up: %d bytes, of Machine %s",
			s.backup.Spec.ClusterName, manifest.Data.StoredBytes, manifest.Machine)
	}

	return nil
}

// end records how the backup has ended where a lost status does not lose it. One that was
// complete is never recorded as failed: nobody keeps those.
func (r *BackupReconciler) end(ctx context.Context, s *backupScope, outcome string) error {
	if s.outcome() == outcome {
		return nil
	}
	if outcome == outcomeFailed {
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, s.completed.Reason, "BackUp", "%s", s.completed.Message)
		if s.isMade() {
			return nil
		}
	}

	return r.annotate(ctx, s, map[string]string{backupv1.OutcomeAnnotation: outcome})
}

func snapshotOf(manifest *archive.Manifest) backupv1.SnapshotStatus {
	encryption := backupv1.EncryptionNone
	if manifest.Codec == archive.CodecZstdAge {
		encryption = backupv1.EncryptionRecipients
	}

	return backupv1.SnapshotStatus{
		TakenAt: metav1.NewTime(manifest.Ended.Truncate(time.Second)), StoredBytes: ptr.To(manifest.Data.StoredBytes), PlainBytes: ptr.To(manifest.Data.PlainBytes),
		SHA256: manifest.Data.PlainSHA256, MachineName: manifest.Machine, RaftIndex: ptr.To(int64(min(manifest.RaftIndex, math.MaxInt64))),
		TalosVersion: manifest.TalosVersion, KubernetesVersion: manifest.KubernetesVersion, EtcdVersion: manifest.EtcdVersion,
		Encryption: encryption, Secrets: secretsOf(manifest),
	}
}

// reconcileStatus derives the conditions from what was found, and writes the status.
func (r *BackupReconciler) reconcileStatus(ctx context.Context, s *backupScope) error {
	s.tell()
	condition.Set(s.backup, backupv1.BackupDeletingCondition, s.deleting)
	condition.Set(s.backup, backupv1.BackupReadyCondition, backupReady(s.backup))
	s.backup.Status.ObservedGeneration = s.backup.Generation
	if err := objects.PatchStatus(ctx, r.Client, s.before, s.backup); err != nil {
		return fmt.Errorf("writing the TalosEtcdBackup: %w", err)
	}

	return nil
}

// backupReady is the summary of a backup: the first condition that is not True.
func backupReady(backup *backupv1.TalosEtcdBackup) condition.Finding {
	for _, part := range []string{backupv1.CompletedCondition, backupv1.VerifiedCondition} {
		found := conditions.Get(backup, part)
		if found == nil {
			return condition.Unknown(backupv1.NotYetKnownReason, part+" is not known yet")
		}
		if found.Status != metav1.ConditionTrue {
			return condition.Finding{Status: found.Status, Reason: found.Reason, Message: found.Message}
		}
	}

	return condition.True(backupv1.ReadyReason, "")
}
