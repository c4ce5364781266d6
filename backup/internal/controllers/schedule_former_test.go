package controllers

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// oneEachDay has the clock go on for some days.
func (b *bed) oneEachDay(days int) {
	b.t.Helper()
	for range days {
		b.clock.Step(24 * time.Hour)
		b.settle()
	}
}

func (b *bed) secretsOfCluster() *corev1.Secret {
	b.t.Helper()
	stored := &corev1.Secret{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: secrets.BundleName("prod")}, stored)).To(Succeed())

	return stored
}

// createAnother replaces Cluster prod by another one of that name, with keys of its own.
func (b *bed) createAnother() {
	b.t.Helper()
	cluster := b.cluster()
	b.Expect(b.client.Delete(b.t.Context(), cluster)).To(Succeed())
	edit(b, b.secretsOfCluster(), func(s *corev1.Secret) { s.Data[secrets.BundleKey] = bundleOf(b, "another").YAML() })
	another := &clusterv1.Cluster{ObjectMeta: cluster.ObjectMeta, Status: cluster.Status}
	another.UID, another.ResourceVersion, another.CreationTimestamp.Time = "", "", b.clock.Now()
	b.create(another)
}

// TestBackupsOfAFormerClusterStay: another one has its name by now, and they may be all that
// is left of it. Retention is about those of the present one.
func TestBackupsOfAFormerClusterStay(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.Retention.Last, s.Spec.Retention.MaxAgeDays = ptr.To(int32(2)), ptr.To(int32(5))
	})
	b.oneEachDay(3)
	b.Expect(b.days()).To(Equal([]string{"26", "27"}))
	b.createAnother()
	b.oneEachDay(9)
	b.Expect(b.days()).To(Equal([]string{"26", "27", "05", "06"}))
	b.Expect(b.keys()).To(HaveLen(4*3), "their data stays, too")
}

// TestTheBackupsOfAFormerClusterAreNotThoseOfThePresentOne: neither that they are complete,
// nor that they have failed, nor that they are not yet complete.
func TestTheBackupsOfAFormerClusterAreNotThoseOfThePresentOne(t *testing.T) {
	verified := func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.Verification = backupv1.ScheduledVerification{Schedule: "0 4 * * *", Level: backupv1.VerificationSnapshot}
		s.Spec.Backup.TimeoutSeconds, s.Spec.Suspend = ptr.To(int32(30*24*3600)), ptr.To(true)
	}
	b := newScheduledBed(t, verified)
	run := func(value string) {
		edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) {
			s.Annotations = map[string]string{backupv1.RunAnnotation: value}
		})
		b.settle()
	}
	run("complete")
	b.Expect(b.theSchedule().Status.Clusters[0].CompletedAt.IsZero()).To(BeFalse())
	b.createAnother()
	b.settle()
	b.Expect(b.theSchedule().Status.Clusters[0]).To(Equal(backupv1.ScheduledCluster{Name: "prod"}))

	edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Suspend = nil })
	b.initialized(false)
	b.oneEachDay(1)
	b.Expect(b.allBackups()[0].Annotations).NotTo(HaveKey(backupv1.VerifyAnnotation))

	former := &b.allBackups()[0]
	former.Annotations[backupv1.OutcomeAnnotation] = outcomeFailed
	b.Expect(b.client.Update(t.Context(), former)).To(Succeed())
	b.settle()
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))

	delete(former.Annotations, backupv1.OutcomeAnnotation)
	b.Expect(b.client.Update(t.Context(), former)).To(Succeed())
	b.initialized(true)
	b.schedulesOnly()
	b.Expect(b.allBackups()).To(HaveLen(2), "it is not waited for")
}

// TestWithoutTheKeysOfTheCluster nobody knows which backups are its own: none is deleted, and
// what was known stays known.
func TestWithoutTheKeysOfTheCluster(t *testing.T) {
	b := newScheduledBed(t)
	b.oneEachDay(3)
	known := b.theSchedule().Status.Clusters
	stored := b.secretsOfCluster()
	b.Expect(b.client.Delete(t.Context(), stored)).To(Succeed())
	edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(1)) })
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25", "26", "27"}))
	b.Expect(b.theSchedule().Status.Clusters).To(Equal(known))

	stored.ResourceVersion = ""
	b.create(stored)
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"27"}))
}

// TestARefusalStaysTold where the same reconcile begins no backup by the clock, for one is under
// way.
func TestARefusalStaysTold(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Backup.TimeoutSeconds = ptr.To(int32(86400)) })
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25"}))
	b.clock.Step(24 * time.Hour)
	edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Annotations = map[string]string{backupv1.RunAnnotation: "now"}
	})
	b.schedules.Client = refusing[*backupv1.TalosEtcdBackup](b.client, func() error {
		return apierrors.NewForbidden(backupv1.GroupVersion.WithResource("talosetcdbackups").GroupResource(), "daily", errors.New("exceeded quota: backups"))
	})
	_, err := b.schedules.Reconcile(t.Context(), requestOf(b.theSchedule()))
	b.Expect(err).To(MatchError(ContainSubstring("exceeded quota: backups")))
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("False BackupMissed"))
	b.Expect(conditions.GetMessage(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(ContainSubstring("exceeded quota: backups"))
}

// TestALostRaceIsNoMissedBackup: the next reconcile begins it on what is there then.
func TestALostRaceIsNoMissedBackup(t *testing.T) {
	lost := apierrors.NewConflict(schema.GroupResource{Resource: "anything"}, "it", errors.New("somebody was faster"))
	for name, race := range map[string]interceptor.Funcs{
		"for the former backup": {Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return lost
		}},
		"for a quota": {Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return lost }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
				s.Spec.ConcurrencyPolicy, s.Spec.Backup.TimeoutSeconds = backupv1.ConcurrencyReplace, ptr.To(int32(86400))
			})
			edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
			b.clock.SetTime(midnight.Add(2 * time.Hour))
			b.settle()
			b.clock.Step(24 * time.Hour)
			b.schedules.Client = interceptor.NewClient(b.client.(client.WithWatch), race) //nolint:forcetypeassert // It is a fake.
			result, err := b.schedules.Reconcile(t.Context(), requestOf(b.theSchedule()))
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(result.RequeueAfter).To(Equal(reconciliation.Soonest))
			b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
			b.schedules.Client = b.client
			b.schedulesOnly()
			b.Expect(b.days()).To(Equal([]string{"26"}))
		})
	}
}

// TestBackupsThatAreImportedAreNoFormerAttempts, though they have not ended until they are
// read back: they are neither given up for the next one nor waited for, and are kept.
func TestBackupsThatAreImportedAreNoFormerAttempts(t *testing.T) {
	for _, policy := range []backupv1.ConcurrencyPolicy{backupv1.ConcurrencyForbid, backupv1.ConcurrencyReplace} {
		t.Run(string(policy), func(t *testing.T) {
			first := newScheduledBed(t)
			first.oneEachDay(2)
			b := newBedAt(t, first.bucket, first.key, midnight.Add(5*24*time.Hour))
			for range 3 {
				_, err := b.stores.Reconcile(t.Context(), requestOf(b.theStore()))
				b.Expect(err).NotTo(HaveOccurred())
			}
			b.Expect(b.allBackups()).To(HaveLen(2))
			b.schedule(func(s *backupv1.TalosEtcdBackupSchedule) {
				s.Spec.ConcurrencyPolicy, s.Spec.Retention.Last = policy, ptr.To(int32(1))
				s.Spec.FailedLimit, s.Spec.Verification.Schedule = ptr.To(int32(0)), "0 2 * * *"
			})
			b.clock.Step(2 * time.Hour)
			b.schedulesOnly()
			b.Expect(b.allBackups()).To(HaveLen(3), "the next one is begun")
			b.Expect(b.keys()).To(HaveLen(2*3), "and nothing goes")
		})
	}
}

// TestTheNewestBackupIsTheOneThatWasTakenLast: those that are imported are made as objects in
// any order.
func TestTheNewestBackupIsTheOneThatWasTakenLast(t *testing.T) {
	g, cluster := NewWithT(t), scheduledCluster{}
	for day, name := range []string{"taken-first", "taken-last", "not-read-yet"} {
		backup := &backupv1.TalosEtcdBackup{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name != "not-read-yet" {
			condition.Set(backup, backupv1.CompletedCondition, condition.True(backupv1.CompletedReason, ""))
			backup.Status.Snapshot.TakenAt = metav1.NewTime(midnight.AddDate(0, 0, day))
		}
		cluster.backups = append(cluster.backups, backup)
	}
	now := midnight.AddDate(0, 0, 1)
	g.Expect(cluster.complete(now)).To(HaveExactElements(HaveField("Name", "taken-last"), HaveField("Name", "taken-first")))
	cluster.backups[1].DeletionTimestamp = ptr.To(metav1.NewTime(midnight))
	g.Expect(cluster.complete(now)).To(HaveExactElements(HaveField("Name", "taken-first")))
	g.Expect(cluster.backups).To(HaveLen(3))
}
