package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// backedUp is a control plane that asks for a backup before changes.
func backedUp(t *testing.T, replicas int32, policy controlplanev1.BackupPolicy) (*world, *Reconciler) {
	t.Helper()
	w, r := changing(t, replicas)
	NewWithT(t).Expect(w.client.Create(t.Context(), &backupv1.TalosEtcdBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "daily"}, Spec: backupv1.TalosEtcdBackupScheduleSpec{StoreName: "s3", Schedule: "0 2 * * *"},
	})).To(Succeed())
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Backup = controlplanev1.TalosControlPlaneBackupSpec{ScheduleName: "daily", Policy: policy}
	})
	w.settle(r)
	NewWithT(t).Expect(w.backups()).To(BeEmpty(), "nothing is at risk")

	return w, r
}

func (w *world) backups() []backupv1.TalosEtcdBackup {
	w.t.Helper()
	list := &backupv1.TalosEtcdBackupList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())

	return list.Items
}

// complete has the backup provider say how the newest backup has ended.
func (w *world) complete(status metav1.ConditionStatus) {
	w.t.Helper()
	backups := w.backups()
	backup := &backups[len(backups)-1]
	conditions.Set(backup, metav1.Condition{Type: backupv1.CompletedCondition, Status: status, Reason: "Some", Message: "the store is away"})
	if status == metav1.ConditionTrue {
		conditions.Set(backup, metav1.Condition{Type: backupv1.VerifiedCondition, Status: status, Reason: "Some"})
	}
	if status == metav1.ConditionFalse {
		backup.Annotations = map[string]string{backupv1.OutcomeAnnotation: "Failed"}
	}
	NewWithT(w.t).Expect(w.client.Update(w.t.Context(), backup)).To(Succeed())
}

// TestARolloutWaitsForItsBackup: one for all of it, and the next change has another.
func TestARolloutWaitsForItsBackup(t *testing.T) {
	g := NewWithT(t)
	w, r := backedUp(t, 3, "")
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) { controlPlane.Spec.Version = "v1.36.4" })
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(w.backups()).To(HaveLen(1))
	g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.BackupBeforeAnnotation, w.backups()[0].Name))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.RollingOutCondition)).To(ContainSubstring("after a backup of etcd: TalosEtcdBackup " + w.backups()[0].Name))

	w.complete(metav1.ConditionTrue)
	w.until(r, func() bool {
		for _, machine := range w.machines() {
			if machine.Spec.Version != "v1.36.4" {
				return false
			}
		}
		return w.has(3)()
	})
	w.settle(r)
	g.Expect(w.backups()).To(HaveLen(1))
	g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.BackupBeforeAnnotation))

	w.scale(1)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(w.backups()).To(HaveLen(2))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.ScalingDownCondition)).To(ContainSubstring("after a backup of etcd"))
	for _, backup := range w.backups() {
		if backup.Name == w.controlPlane().Annotations[controlplanev1.BackupBeforeAnnotation] {
			conditions.Set(&backup, metav1.Condition{Type: backupv1.CompletedCondition, Status: metav1.ConditionTrue, Reason: "Completed"})
			conditions.Set(&backup, metav1.Condition{Type: backupv1.VerifiedCondition, Status: metav1.ConditionTrue, Reason: "Verified"})
			g.Expect(w.client.Update(t.Context(), &backup)).To(Succeed())
		}
	}
	w.until(r, w.has(1))
}

// TestABackupThatFails holds a change up, or does not, as the policy says.
func TestABackupThatFails(t *testing.T) {
	for policy, waits := range map[controlplanev1.BackupPolicy]bool{controlplanev1.BackupRequired: true, controlplanev1.BackupBestEffort: false} {
		t.Run(string(policy), func(t *testing.T) {
			g := NewWithT(t)
			w, r := backedUp(t, 3, policy)
			w.scale(1)
			w.settle(r)
			g.Expect(w.machines()).To(HaveLen(3))
			w.complete(metav1.ConditionFalse)
			if !waits {
				w.until(r, w.has(1))
				return
			}
			w.settle(r)
			g.Expect(w.machines()).To(HaveLen(3))
			message := conditions.GetMessage(w.controlPlane(), controlplanev1.ScalingDownCondition)
			g.Expect(message).To(ContainSubstring("has failed: the store is away; delete it to have another one made"))
			failed := w.backups()[0]
			g.Expect(w.client.Delete(t.Context(), &failed)).To(Succeed())
			w.settle(r)
			g.Expect(w.backups()).To(HaveLen(1))
			g.Expect(w.backups()[0].Name).NotTo(Equal(failed.Name), "the store may still have that")
			w.complete(metav1.ConditionTrue)
			w.until(r, w.has(1))
		})
	}
}

// TestABackupThatNobodyMakes holds a change up for ten minutes where the best is enough.
func TestABackupThatNobodyMakes(t *testing.T) {
	g := NewWithT(t)
	w, r := backedUp(t, 3, controlplanev1.BackupBestEffort)
	w.scale(1)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	w.clock.SetTime(w.clock.Now().Add(10 * time.Minute))
	w.until(r, w.has(1))
}

// withoutBackups has the API server not take backups, for a cause.
func (w *world) withoutBackups(r *Reconciler, cause error) {
	r.backups.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return cause },
	})
}

// TestABackupOnWhichTheAPIServerCannotDecide holds a change up for ten minutes where the best
// is enough: a webhook may be back soon. A manager that restarts goes on waiting for the same
// one.
func TestABackupOnWhichTheAPIServerCannotDecide(t *testing.T) {
	g := NewWithT(t)
	w, r := backedUp(t, 3, controlplanev1.BackupBestEffort)
	undecided := apierrors.NewInternalError(errors.New("failed calling webhook"))
	w.scale(1)
	for range 5 {
		w.withoutBackups(r, undecided)
		g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("failed calling webhook")))
		g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("failed calling webhook")))
		w.clock.SetTime(w.clock.Now().Add(2*time.Minute - time.Second))
		r = w.manager()
	}
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(w.refusals()).To(ConsistOf(And(HavePrefix("Warning BackupRefused TalosEtcdBackup "), ContainSubstring("failed calling webhook"))), "once")
	w.withoutBackups(r, undecided)
	w.clock.SetTime(w.clock.Now().Add(5 * time.Second))
	w.until(r, w.has(1))
	w.settle(r)
	g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.BackupRefusedAnnotation))
}

// TestABackupThatTheAPIServerRefuses holds a change up as long as it is required, and no
// longer: it is tried under one name, whoever tries it.
func TestABackupThatTheAPIServerRefuses(t *testing.T) {
	for policy, waits := range map[controlplanev1.BackupPolicy]bool{controlplanev1.BackupRequired: true, controlplanev1.BackupBestEffort: false} {
		t.Run(string(policy), func(t *testing.T) {
			g := NewWithT(t)
			w, r := backedUp(t, 3, policy)
			refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "talosetcdbackups"}, "before", errors.New("a policy"))
			w.scale(1)
			w.withoutBackups(r, refusal)
			g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("a policy")))
			name := w.controlPlane().Annotations[controlplanev1.BackupBeforeAnnotation]
			r = w.manager()
			w.withoutBackups(r, refusal)
			if !waits {
				w.until(r, w.has(1))
				g.Expect(w.refusals()).To(HaveLen(1))
				return
			}
			g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("a policy")))
			w.clock.SetTime(w.clock.Now().Add(time.Hour))
			g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("a policy")))
			g.Expect(w.machines()).To(HaveLen(3))
			g.Expect(w.refusals()).To(HaveLen(1))
			r = w.manager()
			w.settle(r)
			g.Expect(w.backups()).To(ConsistOf(HaveField("Name", name)))
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.BackupRefusedAnnotation))
		})
	}
}

// TestAPolicyIsRelaxedWhileABackupIsRefused: what was waited before counts.
func TestAPolicyIsRelaxedWhileABackupIsRefused(t *testing.T) {
	g := NewWithT(t)
	w, r := backedUp(t, 3, controlplanev1.BackupRequired)
	w.scale(1)
	for _, cause := range []error{apierrors.NewBadRequest("no"), apierrors.NewInternalError(errors.New("failed calling webhook"))} {
		w.withoutBackups(r, cause)
		g.Expect(w.reconcile(r)).NotTo(Succeed())
		w.clock.SetTime(w.clock.Now().Add(5 * time.Minute))
	}
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Backup.Policy = controlplanev1.BackupBestEffort
	})
	w.until(r, w.has(1))
}

// refusals are the events about backups that were not taken.
func (w *world) refusals() []string {
	return slices.DeleteFunc(w.recorded(), func(event string) bool { return !strings.Contains(event, "BackupRefused") })
}

// TestABackupSurvivesADeathAtEachWrite: there is one, whenever the provider dies.
func TestABackupSurvivesADeathAtEachWrite(t *testing.T) {
	for at := 1; ; at++ {
		w, r := backedUp(t, 3, "")
		w.scale(1)
		died := false
		w.life.DieAt(at)
		for range 10 {
			w.step(r)
			if !w.life.IsOver() {
				w.others()
				continue
			}
			died = true
			w.life.Restart()
			r = w.manager()
		}
		w.life.DieAt(0)
		w.settle(r)
		NewWithT(t).Expect(w.backups()).To(HaveLen(1))
		NewWithT(t).Expect(w.machines()).To(HaveLen(3))
		if !died {
			NewWithT(t).Expect(at).To(BeNumerically(">", 2))
			return
		}
	}
}
