package controllers

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// backUp begins the backup before a change. Its name is recorded first: of one that is there
// the control plane always knows. One that was deleted is not made again under its name,
// which the store may still have; one that the API server has not taken is, so that what it
// says stays the same.
func (r *Reconciler) backUp(ctx context.Context, s *scope) error {
	key, name := client.ObjectKeyFromObject(s.controlPlane), s.controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation]
	if refused, found := r.refusedBackups.LoadAndDelete(key); !found || refused != name {
		name = naming.BackupName(s.cluster.Name, r.Random)
		if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: name}); err != nil {
			return fmt.Errorf("recording the name of the backup: %w", err)
		}
	}
	if err := r.backups.Create(ctx, s.controlPlane, s.cluster, name); err != nil {
		if objects.IsNotTaken(err) {
			r.refusedBackups.Store(key, name)
		}
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Having etcd backed up", "TalosEtcdBackup", name)
	r.event(s, normal, "BackupBegun", "BackUp", "TalosEtcdBackup %s is made first: %s", name, s.decision.Message)

	return nil
}

// backupFacts are how far the backup before the present change is. One that the API server
// does not take, and that is not required, is not waited for.
func (r *Reconciler) backupFacts(ctx context.Context, s *scope) (plan.BackupFacts, error) {
	found, err := r.backups.State(ctx, s.controlPlane)
	if err != nil || found.State != plan.BackupDue {
		return found, err
	}
	refused, isRefused := r.refusedBackups.Load(client.ObjectKeyFromObject(s.controlPlane))
	found.Refused = isRefused && refused == s.controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation]
	if found.Refused && s.controlPlane.Spec.Backup.Policy == controlplanev1.BackupBestEffort {
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
