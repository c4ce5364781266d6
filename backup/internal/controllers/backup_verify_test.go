package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
)

// newVerifiedBed has a backup that is complete, and private keys for it.
func newVerifiedBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.create(b.identities())
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.IdentitySecretName = "identities" })
	b.backup("one")
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("True Verified"))

	return b
}

func (b *bed) identities() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "identities"}, Data: map[string][]byte{backupv1.IdentitiesKey: []byte("# created\n" + b.key.String() + "\n")}}
}

// ask asks for a verification of the backup.
func (b *bed) ask(value string) {
	b.t.Helper()
	backup := b.theBackup("one")
	backup.Annotations[backupv1.VerifyAnnotation] = value
	b.Expect(b.client.Update(b.t.Context(), backup)).To(Succeed())
	b.settle()
}

// reports is how many reports lie beside the backup.
func (b *bed) reports() (count int) {
	b.t.Helper()
	for _, key := range b.keys() {
		if strings.Contains(key, "/one/verification-") {
			count++
		}
	}

	return count
}

func TestABackupIsVerifiedWhenSomebodyAsks(t *testing.T) {
	b := newVerifiedBed(t)
	b.Expect(b.reports()).To(BeZero())
	for i, value := range []string{"Snapshot", "Snapshot", "Restore/again"} {
		b.clock.Step(time.Minute)
		b.ask(value)
		found := b.theBackup("one").Status.Verification
		b.Expect(found.Request).To(Equal(value))
		b.Expect(found.Revision).To(HaveValue(BeEquivalentTo(42)), "%d", i)
		b.Expect(found.Keys).To(HaveValue(BeEquivalentTo(7)))
		b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	}
	b.Expect(b.verifier.asked).To(Equal([]backupv1.VerificationLevel{backupv1.VerificationSnapshot, backupv1.VerificationRestore}), "once for each value")
	b.Expect(b.verifier.keys).To(Equal(1))
	b.Expect(b.theBackup("one").Status.Verification.Level).To(Equal(backupv1.VerificationRestore))
	b.Expect(b.reports()).To(Equal(2))
	b.Expect(b.snapshots.Load()).To(BeEquivalentTo(1))

	b.loseStatus("one")
	b.settle()
	b.Expect(b.theBackup("one").Status.Verification.Level).To(Equal(backupv1.VerificationRestore), "a lost status is found out again")
	b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
}

func TestAStoreThatIsOnlyReadGetsNoReport(t *testing.T) {
	b := newVerifiedBed(t)
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
	b.ask("Snapshot")
	b.Expect(b.theBackup("one").Status.Verification.Level).To(Equal(backupv1.VerificationSnapshot))
	b.Expect(b.reports()).To(BeZero())
}

// TestAVerificationThatCannotBeMade says why, is tried again, and damages nothing.
func TestAVerificationThatCannotBeMade(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no key that fits":     {pipeline.ErrIdentity, "Unknown NoIdentity"},
		"no room":              {fmt.Errorf("%w: 2 bytes are needed", scratch.ErrShort), "Unknown ScratchSpaceShort"},
		"a newer etcd":         {fmt.Errorf("%w: 3.9.0", etcdtool.ErrRelease), "Unknown EtcdReleaseUnknown"},
		"a store that is away": {store.NewError(store.Unavailable, "reading", fmt.Errorf("gone")), "Unknown StoreUnavailable"},
		"anything else":        {fmt.Errorf("no such device"), "Unknown VerificationFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newVerifiedBed(t)
			b.verifier.err = tt.err
			b.ask("Snapshot")
			b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal(tt.want))
			b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("True Completed"))
			b.Expect(b.verifier.asked).To(HaveLen(1), "it waits before it is tried again")
			b.verifier.err = nil
			b.clock.Step(firstRetry)
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("True Verified"))
			b.Expect(b.theBackup("one").Status.Failure).To(BeZero())
		})
	}
}

func TestABackupThatIsNotSound(t *testing.T) {
	for name, err := range map[string]error{"stored": pipeline.ErrStored, "etcd": etcdtool.ErrSnapshot, "served": verify.ErrDiffers} {
		t.Run(name, func(t *testing.T) {
			b := newVerifiedBed(t)
			b.verifier.err = fmt.Errorf("looking: %w", err)
			b.ask("Snapshot")
			b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("False Damaged"))
			b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("False Damaged"))
			b.clock.Step(time.Hour)
			b.settle()
			b.Expect(b.verifier.asked).To(HaveLen(1), "it stays so until somebody asks again")
			b.verifier.err = scratch.ErrShort
			b.ask("Snapshot/2")
			b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("False Damaged"), "which is known until another one has found it sound")
			b.verifier.err = nil
			b.clock.Step(firstRetry)
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("True Verified"))
		})
	}
}

func TestPrivateKeysThatAreNotThere(t *testing.T) {
	b := newVerifiedBed(t)
	b.Expect(b.client.Delete(t.Context(), b.identities())).To(Succeed())
	b.ask("Snapshot")
	b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("Unknown NoIdentity"))
	b.Expect(b.verifier.asked).To(BeEmpty())
	b.create(b.identities())
	b.clock.Step(firstRetry)
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("True Verified"))
}

// TestALevelThatThereIsNot is told, and changes nothing.
func TestALevelThatThereIsNot(t *testing.T) {
	b := newVerifiedBed(t)
	b.ask("Thoroughly")
	b.Expect(says(b.theBackup("one"), backupv1.VerifiedCondition)).To(Equal("True Verified"))
	b.Expect(b.theBackup("one").Status.Verification.Request).To(Equal("Thoroughly"))
	b.Expect(b.verifier.asked).To(BeEmpty())
	b.Eventually(b.events.Events).Should(Receive(ContainSubstring("VerificationInvalid")))
}
