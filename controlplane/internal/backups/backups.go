// Package backups has etcd backed up before what may cost its data (design D14). The kinds of
// backups need not be installed.
package backups

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// BestEffortTime is for how long a backup that is not required is tried, and waited for, at
// most.
const BestEffortTime = 10 * time.Minute

const bestEffortSeconds = int32(BestEffortTime / time.Second)

// Backups are the backups that control planes ask for. All fields are required.
type Backups struct {
	// Client creates them.
	Client client.Client
	// Live reads from the API server: without the kinds, a cache would wait for them.
	Live client.Reader
	// Clock tells for how long a backup has been waited for.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackups,verbs=get;create
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackupschedules,verbs=get

// State says how far the backup before the present change is. Where there can be none, it
// is not waited for with BestEffort, and the message says why with Required.
func (b Backups) State(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (plan.BackupFacts, error) {
	spec, name := controlPlane.Spec.Backup, controlPlane.Annotations[controlplanev1.BackupBeforeAnnotation]
	if spec.ScheduleName == "" {
		return plan.BackupFacts{Begun: name != ""}, nil
	}
	if name != "" {
		backup := &backupv1.TalosEtcdBackup{}
		err := b.Live.Get(ctx, client.ObjectKey{Namespace: controlPlane.Namespace, Name: name}, backup)
		if err == nil {
			return b.stateOf(backup, spec.Policy), nil
		}
		if !isAbsent(err) {
			return plan.BackupFacts{}, fmt.Errorf("reading TalosEtcdBackup %s: %w", name, err)
		}
	}
	err := b.Live.Get(ctx, client.ObjectKey{Namespace: controlPlane.Namespace, Name: spec.ScheduleName}, &backupv1.TalosEtcdBackupSchedule{})
	switch {
	case isAbsent(err):
		return without(spec.Policy, name != "", "TalosEtcdBackupSchedule "+spec.ScheduleName+" does not exist; create it, or set spec.backup.policy to BestEffort"), nil
	case err != nil:
		return plan.BackupFacts{}, fmt.Errorf("reading TalosEtcdBackupSchedule %s: %w", spec.ScheduleName, err)
	}

	return plan.BackupFacts{State: plan.BackupDue, Begun: name != ""}, nil
}

// isAbsent reports whether an object is not there, or its kind is not.
func isAbsent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// without is the state where there can be no backup.
func without(policy controlplanev1.BackupPolicy, begun bool, why string) plan.BackupFacts {
	if policy == controlplanev1.BackupBestEffort {
		return plan.BackupFacts{State: plan.BackupMade, Begun: begun}
	}

	return plan.BackupFacts{State: plan.BackupUnderWay, Begun: begun, Message: why}
}

func (b Backups) stateOf(backup *backupv1.TalosEtcdBackup, policy controlplanev1.BackupPolicy) plan.BackupFacts {
	completed := conditions.Get(backup, backupv1.CompletedCondition)
	late := b.Clock.Since(backup.CreationTimestamp.Time) >= BestEffortTime
	switch {
	case late && policy == controlplanev1.BackupBestEffort:
		return plan.BackupFacts{State: plan.BackupMade, Begun: true}
	case completed != nil && completed.Status == metav1.ConditionTrue:
		return soundness(backup, policy)
	case completed == nil:
		return plan.BackupFacts{State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup " + backup.Name + " is not begun yet; the backup provider makes it"}
	case completed.Status == metav1.ConditionFalse && backup.Annotations[backupv1.OutcomeAnnotation] != "":
		return without(policy, true, "TalosEtcdBackup "+backup.Name+" has failed: "+completed.Message+"; delete it to have another one made")
	}

	return plan.BackupFacts{State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup " + backup.Name + " is not complete: " + completed.Message}
}

// soundness is the state by what is known of a backup that is in its store. Each one is read back
// there. Later verifications may not be possible, and damage that was found stays known.
func soundness(backup *backupv1.TalosEtcdBackup, policy controlplanev1.BackupPolicy) plan.BackupFacts {
	verified := conditions.Get(backup, backupv1.VerifiedCondition)
	switch {
	case verified != nil && verified.Status == metav1.ConditionFalse:
		return without(policy, true, "TalosEtcdBackup "+backup.Name+" is damaged: "+verified.Message+"; delete it to have another one made")
	case verified != nil && (verified.Status == metav1.ConditionTrue || backup.Status.Verification.Level != ""):
		return plan.BackupFacts{State: plan.BackupMade, Begun: true}
	}
	why := ""
	if verified != nil {
		why = ": " + verified.Message
	}

	return plan.BackupFacts{State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup " + backup.Name + " is not read back yet" + why}
}

// Create creates a backup of a name, as the schedule says. It is no error if there is one of
// that name already.
func (b Backups) Create(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane, cluster *clusterv1.Cluster, name string) error {
	spec, schedule := controlPlane.Spec.Backup, &backupv1.TalosEtcdBackupSchedule{}
	if err := b.Live.Get(ctx, client.ObjectKey{Namespace: controlPlane.Namespace, Name: spec.ScheduleName}, schedule); err != nil {
		return fmt.Errorf("reading TalosEtcdBackupSchedule %s: %w", spec.ScheduleName, err)
	}
	how := schedule.Spec.Backup
	timeout := how.TimeoutSeconds
	if spec.Policy == controlplanev1.BackupBestEffort {
		timeout = ptr.To(min(ptr.Deref(timeout, bestEffortSeconds), bestEffortSeconds))
	}
	backup := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: controlPlane.Namespace, Name: name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name, backupv1.ScheduleNameLabel: schedule.Name},
		},
		Spec: backupv1.TalosEtcdBackupSpec{
			ClusterName: cluster.Name, StoreName: schedule.Spec.StoreName, Secrets: how.Secrets, DeletionPolicy: how.DeletionPolicy, TimeoutSeconds: timeout,
		},
	}
	objects.WatchAs(controlPlane, backup)
	if err := b.Client.Create(ctx, backup); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating TalosEtcdBackup %s: %w", name, err)
	}

	return nil
}
