package webhooks

import (
	"testing"

	"filippo.io/age"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

func TestRecipientsThatAreNone(t *testing.T) {
	g := NewWithT(t)
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	for name, tt := range map[string]struct{ recipient, want string }{
		"a public key": {key.Recipient().String(), ""}, "a private key": {key.String(), "spec.recipients: Invalid value: recipient 0 is a private key"},
		"neither": {"age1none", "recipient 0 is no public key of age"},
	} {
		t.Run(name, func(t *testing.T) {
			g, store := NewWithT(t), &backupv1.TalosBackupStore{Spec: backupv1.TalosBackupStoreSpec{Recipients: []string{tt.recipient}}}
			_, err := stores().ValidateCreate(t.Context(), store)
			if tt.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
			g.Expect(err).To(MatchError(ContainSubstring(tt.want)))
			g.Expect(err.Error()).NotTo(ContainSubstring(tt.recipient))
			_, err = stores().ValidateUpdate(t.Context(), store.DeepCopy(), store)
			g.Expect(err).To(HaveOccurred())
			store.DeletionTimestamp = ptr.To(metav1.Now())
			_, err = stores().ValidateUpdate(t.Context(), store.DeepCopy(), store)
			g.Expect(err).NotTo(HaveOccurred(), "what is being deleted is let go")
			_, err = stores().ValidateDelete(t.Context(), store)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

// TestAStoreThatIsPutElsewhere: who does that under backups is told what becomes of them.
func TestAStoreThatIsPutElsewhere(t *testing.T) {
	const told = ": 2 TalosEtcdBackups are in the former place. What the new one lacks of them counts as lost, and stays in the former one when they are deleted: copy it first, or make another TalosBackupStore"
	bucket := func(s *backupv1.TalosBackupStore) { s.Spec.S3.Bucket = "others" }
	for name, tt := range map[string]struct {
		backups *int32
		change  func(*backupv1.TalosBackupStore)
		want    string
	}{
		"another bucket":              {ptr.To(int32(2)), bucket, "spec.s3.bucket" + told},
		"another prefix":              {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Prefix = "" }, "spec.s3.prefix" + told},
		"another endpoint":            {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Endpoint = "https://s3.example.net" }, "spec.s3.endpoint" + told},
		"all of them":                 {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { s.Spec.S3 = backupv1.S3Store{} }, "spec.s3.endpoint, spec.s3.bucket, spec.s3.prefix" + told},
		"the same endpoint":           {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Endpoint += "/" }, ""},
		"another region":              {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Region = "eu-1" }, ""},
		"no backups":                  {ptr.To(int32(0)), bucket, ""},
		"backups that nobody counted": {nil, bucket, ""},
		"one that is being deleted":   {ptr.To(int32(2)), func(s *backupv1.TalosBackupStore) { bucket(s); s.DeletionTimestamp = ptr.To(metav1.Now()) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, before := NewWithT(t), &backupv1.TalosBackupStore{}
			before.Spec.S3 = backupv1.S3Store{Endpoint: "https://s3.example.com", Bucket: "backups", Prefix: "some"}
			before.Status.Backups = tt.backups
			after := before.DeepCopy()
			tt.change(after)
			warnings, err := stores().ValidateUpdate(t.Context(), before, after)
			g.Expect(err).NotTo(HaveOccurred())
			if tt.want == "" {
				g.Expect(warnings).To(BeEmpty())
				return
			}
			g.Expect(warnings).To(ConsistOf(tt.want))
		})
	}
}

func TestSchedulesThatAreNone(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*backupv1.TalosEtcdBackupScheduleSpec)
		want   string
	}{
		"a schedule":           {func(*backupv1.TalosEtcdBackupScheduleSpec) {}, ""},
		"a bad one":            {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.Schedule = "@daily" }, `spec.schedule: Invalid value: "@daily"`},
		"one that never comes": {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.Schedule = "0 0 30 2 *" }, "is never due"},
		"a bad verification":   {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.Verification.Schedule = "@weekly" }, `spec.verification.schedule: Invalid value: "@weekly"`},
		"an unknown time zone": {func(s *backupv1.TalosEtcdBackupScheduleSpec) { s.TimeZone = "Europe/Atlantis" }, `spec.timeZone: Invalid value: "Europe/Atlantis"`},
		"a bad selector": {func(s *backupv1.TalosEtcdBackupScheduleSpec) {
			s.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
		}, "spec.clusterSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			g, schedule := NewWithT(t), &backupv1.TalosEtcdBackupSchedule{Spec: backupv1.TalosEtcdBackupScheduleSpec{Schedule: "0 2 * * 1-5", TimeZone: "Europe/Berlin"}}
			tt.change(&schedule.Spec)
			_, err := schedules().ValidateCreate(t.Context(), schedule)
			if tt.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.want)))
		})
	}
}
