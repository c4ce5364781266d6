package backups

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

const namespace = "team"

func controlPlane(policy controlplanev1.BackupPolicy, begun string) *controlplanev1.TalosControlPlane {
	made := &controlplanev1.TalosControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cp"}}
	made.Spec.Backup = controlplanev1.TalosControlPlaneBackupSpec{ScheduleName: "daily", Policy: policy}
	if begun != "" {
		made.Annotations = map[string]string{controlplanev1.BackupBeforeAnnotation: begun}
	}

	return made
}

func schedule() *backupv1.TalosEtcdBackupSchedule {
	return &backupv1.TalosEtcdBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "daily"},
		Spec: backupv1.TalosEtcdBackupScheduleSpec{StoreName: "s3", Schedule: "0 2 * * *", Backup: backupv1.ScheduledBackup{
			Secrets: backupv1.SecretsExclude, DeletionPolicy: backupv1.DeletionDelete, TimeoutSeconds: ptr.To(int32(1800)),
		}},
	}
}

func backup(status metav1.ConditionStatus, outcome string) *backupv1.TalosEtcdBackup {
	before := &backupv1.TalosEtcdBackup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "before", Annotations: map[string]string{}, CreationTimestamp: made}}
	if outcome != "" {
		before.Annotations[backupv1.OutcomeAnnotation] = outcome
	}
	if status != "" {
		conditions.Set(before, metav1.Condition{Type: backupv1.CompletedCondition, Status: status, Reason: "Some", Message: "the store is away"})
	}

	return before
}

// verified is a backup that is complete, and was verified at a level, or was not.
func verified(status metav1.ConditionStatus, level backupv1.VerificationLevel) *backupv1.TalosEtcdBackup {
	before := backup(metav1.ConditionTrue, "Completed")
	before.Status.Verification.Level = level
	conditions.Set(before, metav1.Condition{Type: backupv1.VerifiedCondition, Status: status, Reason: "Some", Message: "this was found"})

	return before
}

// made is when the backups are created, and asked about.
var made = metav1.Unix(1<<30, 0)

func newBackups(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) Backups {
	t.Helper()
	c := fake.NewClientBuilder().WithScheme(builders.Scheme(t, backupv1.AddToScheme, controlplanev1.AddToScheme)).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()

	return Backups{Client: c, Live: c, Clock: testclock.NewFakePassiveClock(made.Time)}
}

func TestState(t *testing.T) {
	for name, tc := range map[string]struct {
		begun    string
		objects  []client.Object
		required plan.BackupFacts
		effort   plan.BackupState
	}{
		"no schedule":               {"", nil, plan.BackupFacts{State: plan.BackupUnderWay, Message: "TalosEtcdBackupSchedule daily does not exist; create it, or set spec.backup.policy to BestEffort"}, plan.BackupMade},
		"none begun":                {"", []client.Object{schedule()}, plan.BackupFacts{State: plan.BackupDue}, plan.BackupDue},
		"recorded, and not created": {"before", []client.Object{schedule()}, plan.BackupFacts{State: plan.BackupDue, Begun: true}, plan.BackupDue},
		"created": {"before", []client.Object{schedule(), backup("", "")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not begun yet; the backup provider makes it",
		}, plan.BackupUnderWay},
		"waiting": {"before", []client.Object{schedule(), backup(metav1.ConditionUnknown, "")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not complete: the store is away",
		}, plan.BackupUnderWay},
		"an attempt has failed": {"before", []client.Object{schedule(), backup(metav1.ConditionFalse, "")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not complete: the store is away",
		}, plan.BackupUnderWay},
		"complete, and not looked at": {"before", []client.Object{backup(metav1.ConditionTrue, "Completed")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not read back yet",
		}, plan.BackupUnderWay},
		"complete, and cannot be read": {"before", []client.Object{verified(metav1.ConditionUnknown, "")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not read back yet: this was found",
		}, plan.BackupUnderWay},
		"complete, and cannot be looked at once more": {"before", []client.Object{verified(metav1.ConditionUnknown, backupv1.VerificationDigest)}, plan.BackupFacts{State: plan.BackupMade, Begun: true}, plan.BackupMade},
		"damaged": {"before", []client.Object{schedule(), verified(metav1.ConditionFalse, backupv1.VerificationDigest)}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is damaged: this was found; delete it to have another one made",
		}, plan.BackupMade},
		"complete": {"before", []client.Object{verified(metav1.ConditionTrue, backupv1.VerificationDigest)}, plan.BackupFacts{State: plan.BackupMade, Begun: true}, plan.BackupMade},
		"complete, and looked for": {"before", []client.Object{backup(metav1.ConditionUnknown, "Completed")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before is not complete: the store is away",
		}, plan.BackupUnderWay},
		"lost": {"before", []client.Object{schedule(), backup(metav1.ConditionFalse, "Completed")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before has failed: the store is away; delete it to have another one made",
		}, plan.BackupMade},
		"failed": {"before", []client.Object{schedule(), backup(metav1.ConditionFalse, "Failed")}, plan.BackupFacts{
			State: plan.BackupUnderWay, Begun: true, Message: "TalosEtcdBackup before has failed: the store is away; delete it to have another one made",
		}, plan.BackupMade},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := newBackups(t, interceptor.Funcs{}, tc.objects...).State(t.Context(), controlPlane("", tc.begun))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(tc.required))
			found, err = newBackups(t, interceptor.Funcs{}, tc.objects...).State(t.Context(), controlPlane(controlplanev1.BackupBestEffort, tc.begun))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.State).To(Equal(tc.effort))
		})
	}
}

// TestABackupIsNotWaitedForForever where the best is enough: its provider may not run.
func TestABackupIsNotWaitedForForever(t *testing.T) {
	for _, status := range []metav1.ConditionStatus{"", metav1.ConditionUnknown, metav1.ConditionFalse, metav1.ConditionTrue} {
		for late, effort := range map[time.Duration]plan.BackupState{10*time.Minute - time.Second: plan.BackupUnderWay, 10 * time.Minute: plan.BackupMade} {
			g := NewWithT(t)
			asked := newBackups(t, interceptor.Funcs{}, schedule(), backup(status, ""))
			asked.Clock = testclock.NewFakePassiveClock(made.Add(late))
			found, err := asked.State(t.Context(), controlPlane(controlplanev1.BackupBestEffort, "before"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.State).To(Equal(effort))
			g.Expect(found.Begun).To(BeTrue())
			found, err = asked.State(t.Context(), controlPlane("", "before"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found.State).To(Equal(plan.BackupUnderWay), "it is required")
		}
	}
}

// TestNobodyAsks: nothing is read then.
func TestNobodyAsks(t *testing.T) {
	g := NewWithT(t)
	asked := controlPlane("", "before")
	asked.Spec.Backup = controlplanev1.TalosControlPlaneBackupSpec{}
	g.Expect(Backups{}.State(t.Context(), asked)).To(Equal(plan.BackupFacts{Begun: true}))
}

// TestWithoutTheKinds of backups: they are not installed.
func TestWithoutTheKinds(t *testing.T) {
	g := NewWithT(t)
	none := newBackups(t, interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return &meta.NoKindMatchError{GroupKind: backupv1.GroupVersion.WithKind("TalosEtcdBackup").GroupKind()}
	}})
	for _, begun := range []string{"", "before"} {
		found, err := none.State(t.Context(), controlPlane("", begun))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.State).To(Equal(plan.BackupUnderWay))
		g.Expect(found.Message).To(ContainSubstring("set spec.backup.policy to BestEffort"))
		found, err = none.State(t.Context(), controlPlane(controlplanev1.BackupBestEffort, begun))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.State).To(Equal(plan.BackupMade))
	}
	away := newBackups(t, interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("away")
	}})
	for _, begun := range []string{"", "before"} {
		_, err := away.State(t.Context(), controlPlane(controlplanev1.BackupBestEffort, begun))
		g.Expect(err).To(MatchError(ContainSubstring("away")), "what is not known is not taken for none")
	}
}

func TestCreate(t *testing.T) {
	for policy, timeout := range map[controlplanev1.BackupPolicy]int32{"": 1800, controlplanev1.BackupRequired: 1800, controlplanev1.BackupBestEffort: 600} {
		t.Run(string(policy), func(t *testing.T) {
			g, cluster := NewWithT(t), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod"}}
			backups := newBackups(t, interceptor.Funcs{}, schedule())
			for range 2 {
				g.Expect(backups.Create(t.Context(), controlPlane(policy, ""), cluster, "before")).To(Succeed())
			}
			found := &backupv1.TalosEtcdBackup{}
			g.Expect(backups.Live.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "before"}, found)).To(Succeed())
			g.Expect(found.Spec).To(Equal(backupv1.TalosEtcdBackupSpec{
				ClusterName: "prod", StoreName: "s3", Secrets: backupv1.SecretsExclude, DeletionPolicy: backupv1.DeletionDelete, TimeoutSeconds: ptr.To(timeout),
			}))
			g.Expect(found.Labels).To(Equal(map[string]string{clusterv1.ClusterNameLabel: "prod", backupv1.ScheduleNameLabel: "daily"}))
		})
	}
	g := NewWithT(t)
	watched, found := controlPlane("", ""), &backupv1.TalosEtcdBackup{}
	watched.Labels = map[string]string{clusterv1.WatchLabel: "ours"}
	backups := newBackups(t, interceptor.Funcs{}, schedule())
	g.Expect(backups.Create(t.Context(), watched, &clusterv1.Cluster{}, "before")).To(Succeed())
	g.Expect(backups.Live.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "before"}, found)).To(Succeed())
	g.Expect(found.Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"), "else nobody makes it")
	err := newBackups(t, interceptor.Funcs{}).Create(t.Context(), controlPlane("", ""), &clusterv1.Cluster{}, "before")
	g.Expect(err).To(MatchError(ContainSubstring("reading TalosEtcdBackupSchedule daily")))
}
