package controllers

import (
	"fmt"
	"net/http"

	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// newLockedBed is a bed whose store locks what it gets for some days, and counts the requests
// to delete an object. None may ask to bypass a lock.
func newLockedBed(t *testing.T, begin time.Time, days int32) (b *bed, deletions *atomic.Int64) {
	t.Helper()
	g, bucket := NewWithT(t), fmt.Sprintf("locking-%d", buckets.Add(1))
	g.Expect(server.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{ObjectLocking: true})).To(Succeed())
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	b, deletions = newBedAt(t, bucket, key, begin), &atomic.Int64{}
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) {
		s.Spec.S3.ObjectLock = backupv1.ObjectLock{Mode: backupv1.LockGovernance, Days: ptr.To(days)}
	})
	b.onRequest = func(request *http.Request) error {
		if request.Header.Values("X-Amz-Bypass-Governance-Retention") != nil {
			b.t.Error("a lock is to be bypassed")
		}
		// A check of the store gives up an upload.
		if request.Method == http.MethodDelete && !request.URL.Query().Has("uploadId") {
			deletions.Add(1)
		}
		return nil
	}

	return b, deletions
}

// endLocks ends the locks of all that the bucket has, as its administrator can by a bypass, and
// only he. The server takes no time but one to come, by its own clock.
func (b *bed) endLocks() {
	b.t.Helper()
	mode, until := minio.Governance, time.Time{}
	for object := range server.ListObjectsIter(b.t.Context(), b.bucket, minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
		b.Expect(object.Err).NotTo(HaveOccurred())
		until = time.Now().Truncate(time.Second).Add(2 * time.Second)
		b.Expect(server.PutObjectRetention(b.t.Context(), b.bucket, object.Key, minio.PutObjectRetentionOptions{
			VersionID: object.VersionID, Mode: &mode, RetainUntilDate: &until, GovernanceBypass: true,
		})).To(Succeed())
	}
	b.Eventually(time.Now).WithTimeout(time.Minute).Should(BeTemporally(">", until))
}

// TestALockedBackupIsDeletedWhenItsLockEnds: until then the server refuses, which is told with
// the time, and asked once each hour.
func TestALockedBackupIsDeletedWhenItsLockEnds(t *testing.T) {
	begin := time.Now().Truncate(time.Second)
	b, deletions := newLockedBed(t, begin, 2)
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete })
	b.settle()
	stored := b.keys()
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	locked := b.theBackup("one")
	b.Expect(says(locked, backupv1.BackupDeletingCondition)).To(Equal("True ObjectLocked"))
	b.Expect(conditions.GetMessage(locked, backupv1.BackupDeletingCondition)).To(ContainSubstring("it is locked until " + begin.AddDate(0, 0, 2).UTC().Format(time.RFC3339)))
	b.Expect(deletions.Load()).To(Equal(int64(1)), "the manifest is first, and nothing is tried behind it")

	for hour := range 24 {
		for range 2 {
			b.clock.Step(30*time.Minute - time.Second)
			b.settle()
		}
		b.Expect(deletions.Load()).To(Equal(int64(hour+1)), "not yet")
		b.clock.Step(2 * time.Second)
		b.settle()
		b.Expect(deletions.Load()).To(Equal(int64(hour + 2)))
	}
	b.Expect(b.keys()).To(Equal(stored), "nothing of it goes")
	b.start()
	b.settle()
	b.Expect(deletions.Load()).To(Equal(int64(25)), "a new manager does not begin anew")

	b.endLocks()
	b.clock.Step(time.Hour - time.Second)
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.clock.Step(time.Second)
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(BeEmpty())
	b.Expect(deletions.Load()).To(Equal(int64(25 + len(stored))))
}

// TestRetentionKeepsWhatIsLocked, tries to delete none of it, and has nothing to complain of.
// What is not locked any more goes.
func TestRetentionKeepsWhatIsLocked(t *testing.T) {
	b, deletions := newLockedBed(t, time.Now().UTC().Truncate(24*time.Hour), 3)
	b.schedule(func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Retention.Last = ptr.To(int32(1)) })
	b.oneEachDay(3)
	b.Expect(b.allBackups()).To(HaveLen(3))
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
	for _, backup := range b.allBackups() {
		b.Expect(says(&backup, backupv1.BackupReadyCondition)).To(Equal("True Ready"))
		b.Expect(backup.DeletionTimestamp.IsZero()).To(BeTrue())
	}
	b.Expect(deletions.Load()).To(BeZero())
	b.endLocks()
	b.oneEachDay(2)
	b.Expect(b.allBackups()).To(HaveLen(3), "those of the last three days")
	b.Expect(b.keys()).To(HaveLen(3 * 3))
}
