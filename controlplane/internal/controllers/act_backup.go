package controllers

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
)

// backUp begins the backup before a change. Its name is recorded first: of one that is there
// the control plane always knows. One that was deleted is not made again under its name,
// which the store may still have.
func (r *Reconciler) backUp(ctx context.Context, s *scope) error {
	name := naming.BackupName(s.cluster.Name, r.Random)
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: name}); err != nil {
		return fmt.Errorf("recording the name of the backup: %w", err)
	}
	if err := r.backups.Create(ctx, s.controlPlane, s.cluster, name); err != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Having etcd backed up", "TalosEtcdBackup", name)
	r.event(s, normal, "BackupBegun", "BackUp", "TalosEtcdBackup %s is made first: %s", name, s.decision.Message)

	return nil
}

// forgetBackup forgets the backup before changes that have ended.
func (r *Reconciler) forgetBackup(ctx context.Context, s *scope) error {
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.BackupBeforeAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting the backup: %w", err)
	}

	return nil
}
