package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"filippo.io/age"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/snapshot"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

const (
	// firstRetry and lastRetry are how soon a backup is tried again after its first
	// attempt has failed, and after many have; in between it doubles.
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
	// bundleRetry is how soon the secrets of a cluster are looked for again: nobody tells
	// when they are there.
	bundleRetry = 30 * time.Second
	// maxMessage is how much of an error is kept.
	maxMessage = 4096
)

// reconcileNormal makes the backup, once.
func (r *BackupReconciler) reconcileNormal(ctx context.Context, s *backupScope) error {
	r.refuseRequest(s)
	if isSettled(s.backup) {
		return nil
	}
	if step, running := r.Jobs.Running(s.key()); running {
		s.underWay(condition.Unknown(backupv1.BackingUpReason, stepText(step)))
		return nil
	}
	if s.outcome() == outcomeFailed {
		s.completed = condition.False(backupv1.FailedReason, "it has failed before; why is not known any more")
		return nil
	}
	if s.backup.Status.StartedAt.IsZero() {
		s.backup.Status.StartedAt = metav1.NewTime(r.Clock.Now().Truncate(time.Second))
	}
	err := r.gatherStore(ctx, s)
	if err == nil && s.opened != nil {
		err = r.begin(ctx, s)
	}
	if err != nil {
		return err
	}

	return r.giveUp(ctx, s)
}

// giveUp ends a backup that has waited for too long, or asks for a look when it will have.
func (r *BackupReconciler) giveUp(ctx context.Context, s *backupScope) error {
	if _, running := r.Jobs.Running(s.key()); running || r.Jobs.Result(s.key()) != nil || s.isMade() || s.outcome() != "" {
		return nil
	}
	left := s.deadline().Sub(r.Clock.Now())
	if left > 0 {
		s.again(left)
		return nil
	}
	s.completed = condition.Falsef(backupv1.FailedReason, "it was not made in time, %s: %s", s.completed.Reason, s.completed.Message)

	return r.end(ctx, s, outcomeFailed)
}

// gatherStore opens the store, if it can be used now.
func (r *BackupReconciler) gatherStore(ctx context.Context, s *backupScope) error {
	if s.store == nil {
		s.underWay(condition.Unknownf(backupv1.WaitingForStoreReason, "TalosBackupStore %s is not there", s.backup.Spec.StoreName))
		return nil
	}
	if ready := conditions.Get(s.store, backupv1.StoreReadyCondition); ready == nil || ready.Status != metav1.ConditionTrue {
		reason := "it was not checked yet"
		if ready != nil {
			reason = ready.Reason + ": " + ready.Message
		}
		s.underWay(condition.Unknownf(backupv1.WaitingForStoreReason, "TalosBackupStore %s is not ready: %s", s.store.Name, reason))
		return nil
	}
	opened, err := r.Stores.Open(ctx, s.store)
	if invalid := (*stores.InvalidError)(nil); errors.As(err, &invalid) {
		s.underWay(condition.Unknown(backupv1.WaitingForStoreReason, invalid.Message))
		return nil
	}
	s.opened = opened

	return err
}

// begin starts the job that makes the backup, or finds it, when everything that it needs is
// there.
func (r *BackupReconciler) begin(ctx context.Context, s *backupScope) error {
	failure := s.backup.Status.Failure
	if hold := failure.At.Add(s.wait()).Sub(r.Clock.Now()); failure.Count > 0 && hold > 0 {
		s.underWay(s.attemptFailed())
		s.again(hold)
		return nil
	}
	if !s.isMade() {
		if err := r.gatherTake(ctx, s); err != nil || s.take == nil {
			return err
		}
	}
	work := &attempt{name: utilrand.String(attemptNameLength), clock: r.Clock, metrics: r.Metrics, verifier: r.Verifier, take: s.take, draft: archive.Manifest{
		Name: s.backup.Name, Schedule: s.backup.Labels[backupv1.ScheduleNameLabel], Tool: r.Tool,
	}}
	of := clusterOf(s.backup)
	work.made = func(ctx context.Context) (map[string]bool, error) { return r.madeOf(ctx, of) }
	if err := work.in(s); err != nil {
		s.completed = condition.False(backupv1.FailedReason, err.Error())
		return r.end(ctx, s, outcomeFailed)
	}
	if ready, err := r.gatherVerification(ctx, s, work); err != nil || !ready {
		return err
	}
	timeout := s.timeLeft(r.Clock.Now())
	key := jobs.Key{Namespace: s.backup.Namespace, Name: s.backup.Name, Cluster: s.backup.Spec.ClusterName}
	started := r.Jobs.Start(key, func(ctx context.Context, progress func(metrics.Step)) Result {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()

		return work.run(ctx, progress)
	})
	if !started {
		s.underWay(condition.Unknown(backupv1.WaitingForTurnReason, "other backups are made first"))
		return nil
	}
	s.underWay(condition.Unknown(backupv1.BackingUpReason, stepText("")))

	return nil
}

// attemptFailed says that attempts have failed to make the backup, or to read it back.
func (s *backupScope) attemptFailed() condition.Finding {
	failure := s.backup.Status.Failure

	return condition.Falsef(backupv1.AttemptFailedReason, "%d attempts have failed, the last one: %s", failure.Count, failure.Message)
}

// underWay says what is being done about a backup. One that is complete stays so, and one
// that is missing until it was looked for.
func (s *backupScope) underWay(found condition.Finding) {
	if !conditions.IsTrue(s.backup, backupv1.CompletedCondition) && !isMissed(s.backup) && s.completed.Status != metav1.ConditionTrue {
		s.completed = found
	}
}

// retryAfter is how soon a backup is tried again after so many attempts have failed.
func retryAfter(count int32) time.Duration {
	wait := firstRetry
	for ; count > 1 && wait < lastRetry; count-- {
		wait *= 2
	}

	return min(wait, lastRetry)
}

// gatherTake finds out how a snapshot is taken of the cluster, if one can be now.
func (r *BackupReconciler) gatherTake(ctx context.Context, s *backupScope) error {
	switch {
	case s.store.Spec.AccessMode == backupv1.AccessReadOnly:
		s.completed = condition.Falsef(backupv1.ReadOnlyReason, "accessMode of TalosBackupStore %s is ReadOnly", s.store.Name)
		return nil
	case s.cluster == nil || !s.cluster.DeletionTimestamp.IsZero():
		s.completed = condition.Unknownf(backupv1.WaitingForClusterReason, "Cluster %s is not there", s.backup.Spec.ClusterName)
		return nil
	case !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		s.completed = condition.Unknown(backupv1.WaitingForClusterReason, "the control plane of the Cluster is not initialized")
		return nil
	case s.includesSecrets() && len(s.opened.Recipients) == 0:
		s.completed = condition.Falsef(backupv1.NoRecipientReason, "the secrets of the Cluster are stored encrypted only: give TalosBackupStore %s recipients, or make a backup with secrets: Exclude", s.store.Name)
		return nil
	}
	bundle, err := secrets.GetBundle(ctx, r.SecretCachingClient, client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, secrets.ErrBundleMissing) || errors.Is(err, secrets.ErrBundleInvalid) {
		s.completed = condition.Unknown(backupv1.WaitingForClusterReason, err.Error())
		s.again(bundleRetry)
		return nil
	}
	if err != nil {
		return err
	}
	if isSame, err := r.identify(ctx, s, bundle); err != nil || !isSame {
		return err
	}

	return r.takeOf(ctx, s, bundle)
}

func (s *backupScope) includesSecrets() bool {
	return s.backup.Spec.Secrets != backupv1.SecretsExclude
}

// identify records which backup this is, and of which cluster, before anything is stored. It
// reports whether the Cluster is that one: another one may have taken its place.
func (r *BackupReconciler) identify(ctx context.Context, s *backupScope, bundle *secrets.Bundle) (bool, error) {
	identity := identityOf(bundle)
	switch recorded := s.backup.Annotations[backupv1.ClusterIdentityAnnotation]; {
	case recorded == "" || s.backup.Annotations[backupv1.IDAnnotation] == "":
		err := r.annotate(ctx, s, map[string]string{backupv1.IDAnnotation: string(s.backup.UID), backupv1.ClusterIdentityAnnotation: identity})

		return err == nil, err
	case recorded != identity:
		s.completed = condition.Falsef(backupv1.FailedReason, "Cluster %s is another one than that which the backup was begun of", s.cluster.Name)

		return false, r.end(ctx, s, outcomeFailed)
	}

	return true, nil
}

// takeOf gathers what a snapshot is taken with.
func (r *BackupReconciler) takeOf(ctx context.Context, s *backupScope, bundle *secrets.Bundle) error {
	cluster := client.ObjectKeyFromObject(s.cluster)
	found := &take{taker: r.Taker, failures: s.backup.Status.Failure.Count, recipients: s.opened.Recipients, keys: s.opened.Keys}
	if s.includesSecrets() {
		found.secrets = bundle.YAML()
	}
	var err error
	if found.credentials.Reader, err = r.certificates.For(cluster, bundle, secrets.RoleReader); err != nil {
		return fmt.Errorf("making a client certificate: %w", err)
	}
	if found.credentials.Backup, err = r.certificates.For(cluster, bundle, secrets.RoleEtcdBackup); err != nil {
		return fmt.Errorf("making a client certificate: %w", err)
	}
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client, s.cluster, collections.ControlPlaneMachines(s.cluster.Name))
	if err != nil {
		return fmt.Errorf("listing the control plane Machines: %w", err)
	}
	found.machines = machines.UnsortedList()
	s.take = found

	return nil
}

// take is how a snapshot is taken.
type take struct {
	taker       *snapshot.Taker
	machines    []*clusterv1.Machine
	credentials snapshot.Credentials
	// failures is how many attempts have failed.
	failures   int32
	recipients []age.Recipient
	keys       []string
	// secrets is the secrets bundle; empty means that it is not stored.
	secrets []byte
}
