package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// TestAClockThatWasAhead for a while does not keep a schedule from going on when it is right
// again.
func TestAClockThatWasAhead(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.Retention.Last = ptr.To(int32(2))
		s.Spec.Verification = backupv1.ScheduledVerification{Schedule: "0 4 * * *", Level: backupv1.VerificationRestore}
	})
	b.create(b.identities())
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.IdentitySecretName = "identities" })
	b.clock.SetTime(midnight.AddDate(1, 0, 0).Add(5 * time.Hour))
	b.settle()
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.Expect(b.verifier.asked).To(HaveLen(1))

	b.clock.SetTime(midnight.Add(5 * time.Hour))
	for range 3 {
		b.settle()
		b.clock.Step(time.Hour)
		b.settle()
		b.clock.Step(23 * time.Hour)
	}
	b.Expect(b.days()).To(Equal([]string{"26", "27", "25"}), "that of the wrong time stays, and pushes none out")
	b.Expect(b.verifier.asked).To(HaveLen(1+3), "each day the one of that day")
	known := b.theSchedule().Status.Clusters[0]
	b.Expect(known.ScheduledAt.UTC()).To(Equal(midnight.Add(2*24*time.Hour + 2*time.Hour)))
	b.Expect(known.CompletedAt.UTC()).To(BeTemporally("<=", b.clock.Now()))
}

// TestAClockThatIsSetBackABit makes nothing twice.
func TestAClockThatIsSetBackABit(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.JitterSeconds = ptr.To(int32(0)) })
	b.clock.SetTime(midnight.Add(3 * time.Hour))
	b.settle()
	b.clock.SetTime(midnight)
	b.settle()
	b.Expect(b.days()).To(Equal([]string{"25"}))
	b.Expect(b.theSchedule().Status.Clusters[0].ScheduledAt).To(Equal(metav1.NewTime(midnight.Add(2 * time.Hour).Local())))
}
