package controllers

import (
	"errors"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// hide puts a mark over the manifest of a backup, as who deletes it without its version, and
// returns how to take the mark away.
func (b *bed) hide(name string) (unhide func()) {
	b.t.Helper()
	manifest := ""
	for _, key := range b.keys() {
		if strings.HasSuffix(key, "/"+name+"/manifest.json") {
			manifest = key
		}
	}
	b.Expect(manifest).NotTo(BeEmpty())
	b.Expect(server.RemoveObject(b.t.Context(), b.bucket, manifest, minio.RemoveObjectOptions{})).To(Succeed())

	return func() {
		b.t.Helper()
		for object := range server.ListObjectsIter(b.t.Context(), b.bucket, minio.ListObjectsOptions{Prefix: manifest, WithVersions: true}) {
			if object.IsDeleteMarker {
				b.Expect(server.RemoveObject(b.t.Context(), b.bucket, manifest, minio.RemoveObjectOptions{VersionID: object.VersionID})).To(Succeed())
			}
		}
	}
}

// until lets time pass in steps until a backup says something, and returns how long that
// took.
func (b *bed) until(name, want string) time.Duration {
	b.t.Helper()
	for began := b.clock.Now(); ; b.clock.Step(lastRetry / 2) {
		b.settle()
		if says(b.theBackup(name), backupv1.CompletedCondition) == want {
			return b.clock.Since(began)
		}
		b.Expect(b.clock.Since(began)).To(BeNumerically("<", 24*time.Hour), says(b.theBackup(name), backupv1.CompletedCondition))
	}
}

// TestABackupIsNotLostByOneAnswer of the store, but when it was looked for again and again, and
// it is found again where it comes back.
func TestABackupIsNotLostByOneAnswer(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	b.settle()
	unhide := b.hide("one")
	b.loseStatus("one")
	b.settle()
	missing := b.theBackup("one")
	b.Expect(says(missing, backupv1.BackupReadyCondition)).To(Equal("Unknown Missing"))
	b.Expect(conditions.GetMessage(missing, backupv1.CompletedCondition)).To(ContainSubstring("1 times in a row"))
	b.Expect(missing.Status.Failure.Count).To(Equal(int32(1)))
	b.Expect(b.until("one", "False Lost")).To(BeNumerically("~", lostAfter+lastRetry, lastRetry))
	lost := b.theBackup("one")
	b.Expect(lost.Status.Failure.Count).To(BeNumerically(">", 10))
	b.Expect(lost.Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, outcomeCompleted), "once it was")

	b.start()
	b.loseStatus("one")
	b.Expect(b.until("one", "False Lost")).To(BeNumerically(">", time.Hour), "also by a manager that knows nothing of that")
	unhide()
	b.Expect(b.until("one", "True Completed")).To(BeNumerically("~", lostRetry, lastRetry))
	b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.snapshots.Load()).To(Equal(int64(1)))
	var told []string
	for len(b.events.Events) > 0 {
		if event := <-b.events.Events; strings.Contains(event, "Lost") {
			told = append(told, event)
		}
	}
	b.Expect(told).To(HaveLen(2), "each time once")
}

// TestAStoreThatFailsMeanwhile has said nothing about the backup: it is looked for anew.
func TestAStoreThatFailsMeanwhile(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	b.settle()
	b.hide("one")
	b.loseStatus("one")
	b.until("one", "Unknown Missing")
	b.clock.Step(40 * time.Minute)
	b.settle()
	b.onRequest = func(request *http.Request) error {
		if strings.HasSuffix(request.URL.Path, "manifest.json") {
			return errors.New("connection reset by peer")
		}
		return nil
	}
	b.Expect(b.until("one", "False AttemptFailed")).To(BeNumerically("<=", lastRetry))
	b.clock.Step(3 * time.Hour)
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False AttemptFailed"))
	b.onRequest = nil
	b.Expect(b.until("one", "Unknown Missing")).To(BeNumerically("<=", lastRetry))
	b.Expect(b.theBackup("one").Status.Failure.Count).To(Equal(int32(1)))
	b.Expect(b.until("one", "False Lost")).To(BeNumerically(">", time.Hour))

	b.onRequest = func(*http.Request) error { return errors.New("connection reset by peer") }
	b.clock.Step(3 * time.Hour)
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False Lost"), "what is known stays known")
}

// TestTheDataOfALostBackupStays: when the store has it again, so has the schedule.
func TestTheDataOfALostBackupStays(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.FailedLimit, s.Spec.Backup.DeletionPolicy = ptr.To(int32(0)), backupv1.DeletionDelete
	})
	b.oneEachDay(1)
	before := b.keys()
	name := b.allBackups()[0].Name
	unhide := b.hide(name)
	b.loseStatus(name)
	b.settle()
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"), "nobody knows yet")
	edit(b, b.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.Suspend = ptr.To(true) })
	b.until(name, "False Lost")
	b.settle()
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("False BackupFailed"))
	b.oneEachDay(1)
	unhide()
	b.until(name, "True Completed")
	b.Expect(b.keys()).To(Equal(before))
	b.settle()
	b.Expect(says(b.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
}

// TestTheDataOfALostBackupStaysWithoutVersions of its manifest, when another backup clears up: it
// may be had back, as from a copy of the bucket.
func TestTheDataOfALostBackupStaysWithoutVersions(t *testing.T) {
	bucket, key := newBucket(t, false)
	b := newBedAt(t, bucket, key, time.Now().Truncate(time.Second))
	b.backup("one")
	b.settle()
	made := b.keys()
	manifest := made[slices.IndexFunc(made, func(key string) bool { return path.Base(key) == "manifest.json" })]
	b.Expect(server.RemoveObject(t.Context(), bucket, manifest, minio.RemoveObjectOptions{})).To(Succeed())
	left := strings.Replace(manifest, "/one/manifest.json", "/never/data-of-an-attempt", 1)
	_, err := server.PutObject(t.Context(), bucket, left, strings.NewReader("half"), 4, minio.PutObjectOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	b.clock.Step(leftoverAge + time.Hour)
	b.backup("two")
	b.settle()
	b.Expect(b.keys()).To(And(HaveLen(2*len(made)-1), Not(ContainElement(left))))
}

// TestADatasetThatSomebodyHasHiddenStays when the object of a backup goes that has failed:
// versions are there for that.
func TestADatasetThatSomebodyHasHiddenStays(t *testing.T) {
	b := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.FailedLimit, s.Spec.Backup.DeletionPolicy = ptr.To(int32(0)), backupv1.DeletionDelete
	})
	b.oneEachDay(1)
	failed := b.allBackups()[0]
	b.hide(failed.Name)
	hidden := b.keys()
	failed.Annotations[backupv1.OutcomeAnnotation] = outcomeFailed
	b.Expect(b.client.Update(t.Context(), &failed)).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(Equal(hidden))
}

// TestABackupThatWasCompleteIsNotRecordedAsFailed, whatever the store has in its place.
func TestABackupThatWasCompleteIsNotRecordedAsFailed(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	b.settle()
	edit(b, b.theBackup("one"), func(made *backupv1.TalosEtcdBackup) { made.Annotations[backupv1.IDAnnotation] = "another" })
	b.loseStatus("one")
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False NameTaken"))
	b.Expect(b.theBackup("one").Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, outcomeCompleted))
}

// TestABackupOfWhichNothingIsFound: nobody is told that its data is deleted.
func TestABackupOfWhichNothingIsFound(t *testing.T) {
	const deleted, leftBehind = "Normal DataDeleted", "Warning DataLeftBehind Nothing of the backup was found in the store"
	emptied := func(b *bed) {
		edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Prefix = "other" })
	}
	for name, tt := range map[string]struct {
		before, after func(*bed)
		told          string
		left          int
	}{
		"it is there":              {func(*bed) {}, func(*bed) {}, deleted, 0},
		"the store is another one": {func(*bed) {}, emptied, leftBehind, 3},
		"its manifest is hidden":   {func(*bed) {}, func(b *bed) { b.hide("one") }, deleted, 0},
		"it was never made":        {func(b *bed) { b.nodes[0].SetSilent(true); b.nodes[1].SetSilent(true) }, emptied, "", 0},
		"the store has another one": {func(*bed) {}, func(b *bed) {
			edit(b, b.theBackup("one"), func(made *backupv1.TalosEtcdBackup) { made.Annotations[backupv1.IDAnnotation] = "another" })
		}, leftBehind, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			tt.before(b)
			b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete })
			b.settle()
			tt.after(b)
			b.settle()
			b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
			b.settle()
			b.Expect(b.allBackups()).To(BeEmpty())
			b.Expect(b.keys()).To(HaveLen(tt.left))
			told := ""
			for len(b.events.Events) > 0 {
				if event := <-b.events.Events; strings.Contains(event, "Data") {
					told += event
				}
			}
			if tt.told == "" {
				b.Expect(told).To(BeEmpty())
				return
			}
			b.Expect(told).To(HavePrefix(tt.told))
		})
	}
}
