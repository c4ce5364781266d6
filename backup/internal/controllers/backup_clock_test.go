package controllers

import (
	"errors"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// aheadBy is by how much a clock was ahead.
const aheadBy = 365 * 24 * time.Hour

// TestAnAttemptByAClockThatWasAhead is repeated, or given up, as one of the time at which that is
// seen.
func TestAnAttemptByAClockThatWasAhead(t *testing.T) {
	for name, tt := range map[string]struct {
		mend func(*bed)
		wait time.Duration
		want string
	}{
		"and that passes": {func(b *bed) { b.nodes[0].SetSilent(false); b.nodes[1].SetSilent(false) }, firstRetry, "True Completed"},
		"and that stays":  {func(*bed) {}, time.Minute, "False Failed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.clock.Step(aheadBy)
			b.nodes[0].SetSilent(true)
			b.nodes[1].SetSilent(true)
			b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.TimeoutSeconds = ptr.To(int32(60)) })
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False AttemptFailed"))

			b.clock.SetTime(b.clock.Now().Add(-aheadBy))
			tt.mend(b)
			b.settle()
			b.clock.Step(tt.wait)
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal(tt.want))
		})
	}
}

// TestADeletionByAClockThatWasAhead is tried again.
func TestADeletionByAClockThatWasAhead(t *testing.T) {
	b := newBed(t)
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete })
	b.settle()
	b.clock.Step(aheadBy)
	b.onRequest = func(request *http.Request) error {
		if request.Method == http.MethodDelete {
			return errors.New("connection reset by peer")
		}
		return nil
	}
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.BackupDeletingCondition)).To(HaveSuffix(" DeletionFailed"))

	b.clock.SetTime(b.clock.Now().Add(-aheadBy))
	b.onRequest = nil
	b.settle()
	b.clock.Step(deletionRetry)
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
}

// TestACheckByAClockThatWasAhead is repeated at once.
func TestACheckByAClockThatWasAhead(t *testing.T) {
	b := newBed(t)
	b.clock.Step(aheadBy)
	b.settle()
	b.Expect(server.RemoveBucket(t.Context(), b.bucket)).To(Succeed())
	b.clock.SetTime(b.clock.Now().Add(-aheadBy))
	b.settle()
	b.Expect(says(b.theStore(), backupv1.StoreReadyCondition)).To(Equal("False BucketNotFound"))
}

// TestARestoreByAClockThatWasAhead looks at its backup again.
func TestARestoreByAClockThatWasAhead(t *testing.T) {
	b := newRestoreBed(t)
	b.clock.Step(aheadBy)
	b.maker.err = errors.New("no such device")
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool { return r.Status.Failure.Count == 1 })
	b.clock.SetTime(b.clock.Now().Add(-aheadBy))
	b.maker.err = nil
	b.step()
	b.clock.Step(firstRetry)
	b.step()
	b.Expect(b.maker.made).To(BeNumerically(">", 1))
}
