package controllers

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/backups"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// backUp begins the backup before a change. Its name is recorded first: of one that is there
// the control plane always knows. One that was deleted is not made again under its name,
// which the store may still have; one that the API server has not taken is, so that what it
// says stays the same.
func (r *Reconciler) backUp(ctx context.Context, s *scope) error {
	name := s.controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation]
	if refusedBackup(s.controlPlane) == nil {
		name = naming.BackupName(s.cluster.Name, r.Random)
		if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: name}); err != nil {
			return fmt.Errorf("recording the name of the backup: %w", err)
		}
	}
	if err := r.backups.Create(ctx, s.controlPlane, s.cluster, name); err != nil {
		if !objects.IsNotTaken(err) {
			return err
		}
		return errors.Join(err, r.recordRefusal(ctx, s, name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Having etcd backed up", "TalosEtcdBackup", name)
	r.event(s, normal, "BackupBegun", "BackUp", "TalosEtcdBackup %s is made first: %s", name, s.decision.Message)

	return nil
}

// refusedBackup is the record of the backup before the present change, where the API server
// has not taken it; nil otherwise.
func refusedBackup(controlPlane *controlplanev1.TalosControlPlane) *controlplanev1.RefusedBackupRecord {
	record := objects.Record[controlplanev1.RefusedBackupRecord](controlPlane, controlplanev1.BackupRefusedAnnotation)
	if record == nil || record.Backup != controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation] {
		return nil
	}

	return record
}

// recordRefusal records that the API server has not taken a backup, and since when.
func (r *Reconciler) recordRefusal(ctx context.Context, s *scope, name string, refusal error) error {
	record := controlplanev1.RefusedBackupRecord{Backup: name, Since: metav1.NewTime(r.Clock.Now().UTC()), IsFinal: objects.IsRefused(refusal)}
	switch before := refusedBackup(s.controlPlane); {
	case before == nil:
		r.event(s, warning, "BackupRefused", "BackUp", "%s", objects.Explain("TalosEtcdBackup "+name+" cannot be created; it is tried again", refusal))
	case before.IsFinal == record.IsFinal:
		return nil
	default:
		record.Since = before.Since
	}
	value, err := writeRecord(record)
	if err != nil {
		return err
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupRefusedAnnotation: value}); err != nil {
		return fmt.Errorf("recording that the backup was refused: %w", err)
	}

	return nil
}

// backupFacts are how far the backup before the present change is. One that is not required,
// and that the API server refuses, is not waited for; nor is one for long on which it cannot
// decide.
func (r *Reconciler) backupFacts(ctx context.Context, s *scope) (plan.BackupFacts, error) {
	found, err := r.backups.State(ctx, s.controlPlane)
	refused := refusedBackup(s.controlPlane)
	if err != nil || found.State != plan.BackupDue || refused == nil {
		return found, err
	}
	found.Refused = true
	isLate := refused.IsFinal || r.Clock.Since(refused.Since.Time) >= backups.BestEffortTime
	if isLate && s.controlPlane.Spec.Backup.Policy == controlplanev1.BackupBestEffort {
		found.State = plan.BackupMade
	}

	return found, nil
}

// forgetRefusal removes the record of a backup that the API server has taken after all, or
// that is not wanted any more. While one is begun, it says what has come of that.
func (r *Reconciler) forgetRefusal(ctx context.Context, s *scope) error {
	if !s.decided() || s.decision.Action == plan.BackUp || s.facts.Backup.Refused || s.controlPlane.Annotations[controlplanev1.BackupRefusedAnnotation] == "" {
		return nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupRefusedAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting that the backup was refused: %w", err)
	}

	return nil
}

// forgetBackup forgets the backup before changes that have ended.
func (r *Reconciler) forgetBackup(ctx context.Context, s *scope) error {
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting the backup: %w", err)
	}

	return nil
}
