package controllers

import (
	"context"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/backups"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// refusedBackup is a backup that the API server has not taken.
type refusedBackup struct {
	name string
	// since is when it was tried first.
	since time.Time
	// isFinal reports whether it was refused the last time, rather than not decided on.
	isFinal bool
}

// backUp begins the backup before a change. Its name is recorded first: of one that is there
// the control plane always knows. One that was deleted is not made again under its name,
// which the store may still have; one that the API server has not taken is, so that what it
// says stays the same.
func (r *Reconciler) backUp(ctx context.Context, s *scope) error {
	refused, isRefused := r.refusedBackup(s)
	if !isRefused {
		refused = refusedBackup{name: naming.BackupName(s.cluster.Name, r.Random), since: r.Clock.Now()}
		if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: refused.name}); err != nil {
			return fmt.Errorf("recording the name of the backup: %w", err)
		}
	}
	key := client.ObjectKeyFromObject(s.controlPlane)
	if err := r.backups.Create(ctx, s.controlPlane, s.cluster, refused.name); err != nil {
		if !objects.IsNotTaken(err) {
			return err
		}
		if !isRefused {
			r.event(s, warning, "BackupRefused", "BackUp", "%s", objects.Explain("TalosEtcdBackup "+refused.name+" cannot be created; it is tried again", err))
		}
		refused.isFinal = objects.IsRefused(err)
		r.refusedBackups.Store(key, refused)
		return err
	}
	r.refusedBackups.Delete(key)
	ctrl.LoggerFrom(ctx).Info("Having etcd backed up", "TalosEtcdBackup", refused.name)
	r.event(s, normal, "BackupBegun", "BackUp", "TalosEtcdBackup %s is made first: %s", refused.name, s.decision.Message)

	return nil
}

// refusedBackup is the backup that is recorded, where the API server has not taken it.
func (r *Reconciler) refusedBackup(s *scope) (refusedBackup, bool) {
	found, _ := r.refusedBackups.Load(client.ObjectKeyFromObject(s.controlPlane))
	refused, isRefused := found.(refusedBackup)

	return refused, isRefused && refused.name == s.controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation]
}

// backupFacts are how far the backup before the present change is. One that is not required,
// and that the API server refuses, is not waited for; nor is one for long on which it cannot
// decide.
func (r *Reconciler) backupFacts(ctx context.Context, s *scope) (plan.BackupFacts, error) {
	found, err := r.backups.State(ctx, s.controlPlane)
	if err != nil || found.State != plan.BackupDue {
		return found, err
	}
	refused, isRefused := r.refusedBackup(s)
	found.Refused = isRefused
	isLate := refused.isFinal || r.Clock.Since(refused.since) >= backups.BestEffortTime
	if isRefused && isLate && s.controlPlane.Spec.Backup.Policy == controlplanev1.BackupBestEffort {
		found.State = plan.BackupMade
	}

	return found, nil
}

// forgetBackup forgets the backup before changes that have ended.
func (r *Reconciler) forgetBackup(ctx context.Context, s *scope) error {
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting the backup: %w", err)
	}

	return nil
}
