package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// talosMachineKind is the kind of the machines that can be re-provisioned.
const talosMachineKind = "TalosMachine"

// gatherCluster reads the Cluster.
func (r *RestoreReconciler) gatherCluster(ctx context.Context, s *restoreScope) error {
	var err error
	s.cluster, err = find(ctx, r.Client, s.restore.Namespace, s.restore.Spec.ClusterName, &clusterv1.Cluster{})

	return err
}

// gatherOthers reads how far a restore is, and the control plane that it is about. It reports
// whether that is there, and no other restore holds it.
func (r *RestoreReconciler) gatherOthers(ctx context.Context, s *restoreScope) (bool, error) {
	var err error
	if s.progress, err = readProgress(s.restore); err != nil {
		return false, err
	}
	if s.cluster == nil || !s.cluster.DeletionTimestamp.IsZero() {
		s.waits(backupv1.WaitingForClusterReason, "Cluster "+s.restore.Spec.ClusterName+" is not there")
		return false, nil
	}
	if err := r.gatherControlPlane(ctx, s); err != nil {
		return false, err
	}
	if s.controlPlane == nil || !s.controlPlane.DeletionTimestamp.IsZero() {
		s.waits(backupv1.WaitingForControlPlaneReason, "the Cluster has no TalosControlPlane")
		return false, nil
	}
	if record := holdOf(s.controlPlane); record != nil && record.Restore != s.restore.Name {
		s.waits(backupv1.WaitingForControlPlaneReason, "TalosEtcdRestore "+record.Restore+" holds the TalosControlPlane; where there is none of that name, take its annotation "+
			controlplanev1.RestoreInProgressAnnotation+" away")
		return false, nil
	}

	return true, nil
}

// gatherBackup reads the backup and its store. It reports whether both are there.
func (r *RestoreReconciler) gatherBackup(ctx context.Context, s *restoreScope) (bool, error) {
	backup, err := find(ctx, r.Client, s.restore.Namespace, s.restore.Spec.BackupName, &backupv1.TalosEtcdBackup{})
	if err != nil {
		return false, err
	}
	if backup == nil || !isBackupMade(backup) {
		s.waits(backupv1.WaitingForBackupReason, "TalosEtcdBackup "+s.restore.Spec.BackupName+" is not there, or not complete")
		return false, nil
	}
	store, err := find(ctx, r.Client, s.restore.Namespace, backup.Spec.StoreName, &backupv1.TalosBackupStore{})
	if err != nil {
		return false, err
	}
	if store == nil {
		s.waits(backupv1.WaitingForStoreReason, "TalosBackupStore "+backup.Spec.StoreName+" is not there")
		return false, nil
	}
	s.backup, s.store = backup, store

	return true, nil
}

// isBackupMade reports whether a backup is in the store, and is known from others of its name.
func isBackupMade(backup *backupv1.TalosEtcdBackup) bool {
	_, isImported := backup.Annotations[backupv1.ImportedAnnotation]

	return (isImported || backup.Annotations[backupv1.OutcomeAnnotation] == outcomeCompleted) &&
		backup.Annotations[backupv1.IDAnnotation] != "" && backup.Annotations[backupv1.ClusterIdentityAnnotation] != ""
}

// gatherControlPlane reads the metadata of the TalosControlPlane live: what is decided by its
// annotations wipes machines.
func (r *RestoreReconciler) gatherControlPlane(ctx context.Context, s *restoreScope) error {
	if s.cluster == nil {
		return nil
	}
	ref := s.cluster.Spec.ControlPlaneRef
	if ref.Kind != "TalosControlPlane" || ref.APIGroup != controlplanev1.GroupVersion.Group {
		return nil
	}
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind(ref.Kind))
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: ref.Name}, found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the TalosControlPlane: %w", err)
	}
	s.controlPlane = found

	return nil
}

// machine is a control plane Machine, and what is known about it.
type machine struct {
	*clusterv1.Machine

	// infrastructure is the metadata of its TalosMachine; nil when it has none.
	infrastructure *metav1.PartialObjectMetadata
}

// gatherMachines reads the control plane Machines live, and those of them that have, or may
// have, a configuration with their TalosMachines.
func (r *RestoreReconciler) gatherMachines(ctx context.Context, s *restoreScope) ([]machine, error) {
	listed, err := collections.GetFilteredMachinesForCluster(ctx, r.APIReader, s.cluster, collections.ControlPlaneMachines(s.cluster.Name))
	if err != nil {
		return nil, fmt.Errorf("listing the control plane Machines: %w", err)
	}
	var machines []machine
	for _, one := range listed.SortedByCreationTimestamp() {
		if one.Spec.Bootstrap.DataSecretName == nil {
			continue // It is held back.
		}
		found := machine{Machine: one}
		if ref := one.Spec.InfrastructureRef; ref.Kind == talosMachineKind && ref.APIGroup == infrav1.GroupVersion.Group {
			its := &metav1.PartialObjectMetadata{}
			its.SetGroupVersionKind(infrav1.GroupVersion.WithKind(talosMachineKind))
			err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: one.Namespace, Name: ref.Name}, its)
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("reading TalosMachine %s: %w", ref.Name, err)
			}
			if err == nil {
				found.infrastructure = its
			}
		}
		machines = append(machines, found)
	}

	return machines, nil
}

// wipe is how far the wipe of the machine for an attempt is.
func (m *machine) wipe(attemptID string) restore.Wipe {
	switch {
	case m.infrastructure == nil || m.infrastructure.Annotations[backupv1.WipedForAnnotation] != attemptID:
		return restore.WipeNotAsked
	case metav1.HasAnnotation(m.infrastructure.ObjectMeta, infrav1.ReprovisionAnnotation) || !capimachine.IsProvisioned(m.Machine):
		return restore.WipeUnderWay
	}

	return restore.WipeDone
}

// gatherBundle reads the secrets bundle of the Cluster. It reports whether it is there.
func (r *RestoreReconciler) gatherBundle(ctx context.Context, s *restoreScope) (*secrets.Bundle, error) {
	bundle, err := secrets.GetBundle(ctx, r.SecretCachingClient, client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, secrets.ErrBundleMissing) || errors.Is(err, secrets.ErrBundleInvalid) {
		s.waits(backupv1.WaitingForClusterReason, err.Error()+"; restore Secret "+secrets.BundleName(s.cluster.Name)+", or make a new cluster of the backup")
		return nil, nil //nolint:nilnil // The condition says that it is waited for.
	}

	return bundle, err
}

// look asks the nodes of Machines.
func (r *RestoreReconciler) look(ctx context.Context, s *restoreScope, bundle *secrets.Bundle, machines []machine) (restore.Nodes, error) {
	reader, err := r.certificates.For(client.ObjectKeyFromObject(s.cluster), bundle, secrets.RoleReader)
	if err != nil {
		return restore.Nodes{}, fmt.Errorf("making a client certificate: %w", err)
	}
	listed := make([]*clusterv1.Machine, 0, len(machines))
	for _, one := range machines {
		listed = append(listed, one.Machine)
	}

	return restore.Look(ctx, r.Dialer, reader, listed), nil
}

// waits says what a restore waits for: the first condition that is not True does.
func (s *restoreScope) waits(reason, message string) {
	s.is(s.stage(), condition.Unknown(reason, message))
}

// fails says why a restore has failed, as waits does.
func (s *restoreScope) fails(reason, message string) {
	s.is(s.stage(), condition.False(reason, message))
}

// stage is the first condition that is not known to be True.
func (s *restoreScope) stage() string {
	all := stages()
	i := slices.IndexFunc(all, func(stage stage) bool { return s.found[stage.conditionType].Status != metav1.ConditionTrue })

	return all[max(i, 0)].conditionType
}

// restoresOf are the restores of a namespace that are under way, by the backups that they
// read.
func restoresOf(ctx context.Context, c client.Reader, namespace string) (map[string]string, error) {
	list := &backupv1.TalosEtcdRestoreList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing the TalosEtcdRestores: %w", err)
	}
	found := map[string]string{}
	for _, one := range list.Items {
		if one.Annotations[backupv1.OutcomeAnnotation] == "" && one.DeletionTimestamp.IsZero() {
			found[one.Spec.BackupName] = one.Name
		}
	}

	return found, nil
}
