package controllers

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// midnight is when the clock of a bed with a schedule begins.
var midnight = time.Date(2026, time.November, 25, 0, 0, 0, 0, time.UTC)

// newScheduledBed is a bed with a schedule of every day at two.
func newScheduledBed(t *testing.T, changes ...func(*backupv1.TalosEtcdBackupSchedule)) *bed {
	t.Helper()
	bucket, key := newBucket(t, true)
	b := newBedAt(t, bucket, key, midnight)
	b.schedule(changes...)

	return b
}

func (b *bed) schedule(changes ...func(*backupv1.TalosEtcdBackupSchedule)) {
	b.t.Helper()
	schedule := &backupv1.TalosEtcdBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "daily", CreationTimestamp: metav1.NewTime(b.clock.Now())},
		Spec: backupv1.TalosEtcdBackupScheduleSpec{
			ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, StoreName: "store", Schedule: "0 2 * * *", JitterSeconds: ptr.To(int32(0)),
		},
	}
	for _, change := range changes {
		change(schedule)
	}
	b.create(schedule)
}

func (b *bed) cluster() *clusterv1.Cluster {
	b.t.Helper()
	cluster := &clusterv1.Cluster{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "prod"}, cluster)).To(Succeed())

	return cluster
}

func (b *bed) theSchedule() *backupv1.TalosEtcdBackupSchedule {
	b.t.Helper()
	schedule := &backupv1.TalosEtcdBackupSchedule{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "daily"}, schedule)).To(Succeed())

	return schedule
}

// days are those of which there are backups, as their schedule had them.
func (b *bed) days() (days []string) {
	b.t.Helper()
	for _, backup := range b.allBackups() {
		at, err := time.Parse(time.RFC3339, backup.Annotations[backupv1.ScheduledAtAnnotation])
		b.Expect(err).NotTo(HaveOccurred())
		days = append(days, at.Format("02"))
	}

	return days
}

func TestASchedule(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(3)) })
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty(), "none is due yet")
	b.Expect(b.theSchedule().Status.NextAt.UTC()).To(Equal(midnight.Add(2 * time.Hour)))
	b.Expect(b.theSchedule().Status.SelectedClusters).To(HaveValue(Equal(int32(1))))
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	for range 5 {
		b.start()
		b.settle()
		b.clock.Step(24 * time.Hour)
	}
	b.Expect(b.days()).To(Equal([]string{"27", "28", "29"}))
	b.Expect(b.keys()).To(HaveLen(3*3), "the data of the others is gone, too")
	b.Expect(b.snapshots.Load()).To(Equal(int64(5)))
	schedule := b.theSchedule()
	b.Expect(says(schedule, backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
	b.Expect(schedule.Status.Clusters).To(HaveLen(1))
	b.Expect(schedule.Status.Clusters[0].CompletedAt.UTC()).To(Equal(midnight.Add(4*24*time.Hour + 2*time.Hour)))
	for _, backup := range b.allBackups() {
		b.Expect(backup.Labels).To(Equal(map[string]string{clusterv1.ClusterNameLabel: "prod", backupv1.ScheduleNameLabel: "daily"}))
		b.Expect(backup.Name).To(MatchRegexp(`^daily-prod-202611\d\dt0200z-[0-9a-f]{8}$`))
	}
}

// TestTheNewestThatWasRestoredStays, where newer ones were only read back, until one of them
// is verified as thoroughly.
func TestTheNewestThatWasRestoredStays(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(1)) })
	nextDay := func() {
		b.clock.Step(24 * time.Hour)
		b.settle()
	}
	verify := func(day string) {
		b.Expect(b.days()).To(ContainElement(day))
		backup := &b.allBackups()[slices.Index(b.days(), day)]
		backup.Annotations[backupv1.VerifyAnnotation] = "Restore"
		b.Expect(b.client.Update(t.Context(), backup)).To(Succeed())
		b.settle()
	}
	nextDay()
	verify("25")
	nextDay()
	nextDay()
	b.Expect(b.days()).To(Equal([]string{"25", "27"}))
	verify("27")
	b.Expect(b.days()).To(Equal([]string{"27"}))
}

// TestAScheduleMakesNoBackupTwice, also where its status was lost.
func TestAScheduleMakesNoBackupTwice(t *testing.T) {
	b := newScheduledBed(t)
	b.clock.SetTime(midnight.Add(3 * time.Hour))
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25"}))
	for range 3 {
		schedule := b.theSchedule()
		schedule.Status = backupv1.TalosEtcdBackupScheduleStatus{}
		b.Expect(b.client.Status().Update(t.Context(), schedule)).To(Succeed())
		b.start()
		b.settle()
	}
	b.Expect(b.days()).To(Equal([]string{"25"}))
	// Nor is one made again that somebody has deleted.
	b.Expect(b.client.Delete(t.Context(), &b.allBackups()[0])).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
}

func TestWhatWasMissed(t *testing.T) {
	for name, tt := range map[string]struct {
		deadline *int32
		want     []string
		says     string
	}{
		"the newest is made up for": {nil, []string{"27"}, "True Ready"},
		"unless it is too late":     {ptr.To(int32(600)), nil, "False BackupMissed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
				s.Spec.Suspend, s.Spec.StartingDeadlineSeconds = ptr.To(true), tt.deadline
			})
			b.clock.SetTime(midnight.Add(2*24*time.Hour + 3*time.Hour))
			b.settle()
			b.Expect(b.allBackups()).To(BeEmpty())
			b.Expect(b.theSchedule().Status.NextAt.IsZero()).To(BeTrue())
			edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Suspend = nil })
			b.settle()
			b.Expect(b.days()).To(Equal(tt.want))
			b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal(tt.says))
			b.clock.SetTime(midnight.Add(3*24*time.Hour + 2*time.Hour))
			b.settle()
			b.Expect(b.days()).To(Equal(append(tt.want, "28")))
			b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
		})
	}
}

// TestBackupsThatAreRefused are told with the words of the API server, and retention goes on:
// it may free a quota.
func TestBackupsThatAreRefused(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.MaxAgeDays = ptr.To(int32(2)) })
	b.schedules.Client = refusing[*backupv1.TalosEtcdBackup](b.client, func() error {
		stays := func(one backupv1.TalosEtcdBackup) bool { return one.DeletionTimestamp.IsZero() }
		if all := b.allBackups(); len(all) < 2 || !stays(all[0]) {
			return nil
		}
		return apierrors.NewForbidden(backupv1.GroupVersion.WithResource("talosetcdbackups").GroupResource(), "daily", errors.New("exceeded quota: backups"))
	})
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	b.settle()
	b.clock.Step(24 * time.Hour)
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25", "26"}))
	b.clock.Step(2 * 24 * time.Hour)
	_, err := b.schedules.Reconcile(t.Context(), requestOf(b.theSchedule()))
	b.Expect(err).To(MatchError(ContainSubstring("exceeded quota: backups")))
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("False BackupMissed"))
	b.Expect(conditions.GetMessage(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(And(ContainSubstring("Clusters prod"), ContainSubstring("exceeded quota: backups")))
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"26", "28"}))
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
}

// TestWhatCannotBeReadStays as it was told.
func TestWhatCannotBeReadStays(t *testing.T) {
	b := newScheduledBed(t)
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	b.settle()
	before := b.theSchedule().Status
	b.schedules.SecretCachingClient = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // It is a fake.
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return apierrors.NewForbidden(corev1.Resource("secrets"), "prod-talos", errors.New("not allowed"))
		},
	})
	_, err := b.schedules.Reconcile(t.Context(), requestOf(b.theSchedule()))
	b.Expect(err).To(MatchError(ContainSubstring("not allowed")))
	after := b.theSchedule()
	b.Expect(says(after, backupv1.ScheduleReadyCondition)).To(Equal("Unknown NotYetKnown"))
	b.Expect(conditions.GetMessage(after, backupv1.ScheduleReadyCondition)).To(ContainSubstring("not allowed"))
	before.Conditions, after.Status.Conditions = nil, nil
	b.Expect(after.Status).To(Equal(before))
	b.start()
	b.settle()
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
}

func TestAFormerBackupThatIsNotComplete(t *testing.T) {
	for policy, want := range map[backupv1.ConcurrencyPolicy][]string{
		"": {"25"}, backupv1.ConcurrencyForbid: {"25"}, backupv1.ConcurrencyReplace: {"26"}, backupv1.ConcurrencyAllow: {"25", "26"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
				s.Spec.ConcurrencyPolicy, s.Spec.Backup.TimeoutSeconds = policy, ptr.To(int32(86400))
			})
			edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
			b.clock.SetTime(midnight.Add(2 * time.Hour))
			b.settle()
			b.Expect(b.days()).To(Equal([]string{"25"}))
			b.clock.Step(24*time.Hour - time.Minute)
			b.settle()
			b.clock.Step(time.Minute)
			b.schedulesOnly()
			b.Expect(b.days()).To(Equal(want))
		})
	}
}

// schedulesOnly reconciles schedules, and lets go what was deleted.
func (b *bed) schedulesOnly() {
	b.t.Helper()
	for range 2 {
		for _, schedule := range b.allSchedules() {
			_, err := b.schedules.Reconcile(b.t.Context(), requestOf(&schedule))
			b.Expect(err).NotTo(HaveOccurred())
		}
		for _, backup := range b.allBackups() {
			if backup.DeletionTimestamp.IsZero() {
				continue
			}
			_, err := b.backups.Reconcile(b.t.Context(), requestOf(&backup))
			b.Expect(err).NotTo(HaveOccurred())
		}
	}
}

func TestABackupIsMadeAtOnce(t *testing.T) {
	b := newScheduledBed(t)
	for _, value := range []string{"now", "now", "again"} {
		edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) {
			s.Annotations = map[string]string{backupv1.RunAnnotation: value}
		})
		b.settle()
	}
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.Expect(b.theSchedule().Status.LastRun).To(Equal("again"))
	b.Expect(b.snapshots.Load()).To(Equal(int64(2)))
}

func TestAScheduleThatIsNone(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*backupv1.TalosEtcdBackupScheduleSpec)
		words  string
	}{
		"a bad schedule":       {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.Schedule = "often" }, "expected exactly 5 fields"},
		"an unknown time zone": {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.TimeZone = "Europe/Atlantis" }, "not in the IANA database"},
		"a bad selector": {func(s *backupv1.TalosEtcdBackupScheduleSpec) {
			s.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
		}, "clusterSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { tt.change(&s.Spec) })
			b.clock.Step(24 * time.Hour)
			b.settle()
			b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("False ScheduleInvalid"))
			b.Expect(b.theSchedule().Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring(tt.words))))
			b.Expect(b.allBackups()).To(BeEmpty())
		})
	}
}

// TestAClusterThatIsNotSelectedAnyMore gets no backups, and keeps those that it has.
func TestAClusterThatIsNotSelectedAnyMore(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.MaxAgeDays = ptr.To(int32(1)) })
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	b.settle()
	edit(b, b.cluster(), func(c *clusterv1.Cluster) { c.Labels = nil })
	b.clock.Step(30 * 24 * time.Hour)
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25"}))
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True NoClusterSelected"))
}

// TestFailedBackups are told, and only some are kept.
func TestFailedBackups(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.FailedLimit, s.Spec.Backup.TimeoutSeconds = ptr.To(int32(2)), ptr.To(int32(60))
	})
	for _, node := range b.nodes {
		node.OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) { return nil, errors.New("refused") }
	}
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	for range 4 {
		b.settle()
		b.clock.Step(time.Hour)
		b.settle()
		b.clock.Step(23 * time.Hour)
	}
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("False BackupFailed"))
	b.Expect(b.days()).To(Equal([]string{"27", "28"}))
}

// TestAScheduleGoesOnAfterALoss of the management cluster: with the backups that the store
// has, of which it keeps as many as ever.
func TestAScheduleGoesOnAfterALoss(t *testing.T) {
	last := func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(2)) }
	first := newScheduledBed(t, last)
	first.clock.SetTime(midnight.Add(2 * time.Hour))
	for range 2 {
		first.settle()
		first.clock.Step(24 * time.Hour)
	}
	b := newBedAt(t, first.bucket, first.key, midnight.Add(3*24*time.Hour))
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.schedule(last)
	b.clock.Step(2 * time.Hour)
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.Expect(b.keys()).To(HaveLen(2 * 3))
	b.Expect(b.snapshots.Load()).To(Equal(int64(1)))
}

// TestTheNewestBackupIsVerifiedOnASchedule of its own, once for each time.
func TestTheNewestBackupIsVerifiedOnASchedule(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.Verification = backupv1.ScheduledVerification{Schedule: "0 4 * * *", Level: backupv1.VerificationRestore}
	})
	b.create(b.identities())
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.IdentitySecretName = "identities" })
	b.clock.SetTime(midnight.Add(2 * time.Hour))
	b.settle()
	b.Expect(b.verifier.asked).To(BeEmpty())
	for range 2 {
		b.clock.Step(2 * time.Hour)
		b.settle()
		b.clock.Step(time.Hour)
		b.settle()
		b.clock.Step(21 * time.Hour)
		b.settle()
	}
	b.Expect(b.verifier.asked).To(HaveLen(2))
	b.Expect(b.verifier.asked).To(HaveEach(backupv1.VerificationRestore))
	verified := 0
	for _, backup := range b.allBackups() {
		if backup.Status.Verification.Level == backupv1.VerificationRestore {
			verified++
		}
	}
	b.Expect(verified).To(Equal(2), "each time the newest one")
	b.Expect(b.theSchedule().Status.Clusters[0].VerifiedAt.IsZero()).To(BeFalse())

	edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Suspend = ptr.To(true) })
	b.clock.Step(7 * 24 * time.Hour)
	b.settle()
	b.Expect(b.verifier.asked).To(HaveLen(2))
}
