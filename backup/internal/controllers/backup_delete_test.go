package controllers

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/test/support/series"
)

// newDeletableBed is a bed with a backup that is complete, and whose data goes with it.
func newDeletableBed(t *testing.T) *bed {
	t.Helper()
	b := newBed(t)
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete })
	b.settle()
	b.Expect(b.keys()).To(HaveLen(3))

	return b
}

// toldOfData are the events that tell what became of data.
func (b *bed) toldOfData() (told []string) {
	b.t.Helper()
	for len(b.events.Events) > 0 {
		if event := <-b.events.Events; strings.Contains(event, " Data") {
			told = append(told, event)
		}
	}

	return told
}

// move puts the store elsewhere.
func (b *bed) move() {
	b.t.Helper()
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Prefix = "other" })
	b.settle()
}

// later deletes the backup, and lets time pass in which the deletion is tried again.
func (b *bed) later() {
	b.t.Helper()
	b.settle()
	b.clock.Step(2 * deletionRetry)
	b.settle()
}

// deletionEnds has the data be found and deleted. That is not taken in yet.
func (b *bed) deletionEnds() {
	b.t.Helper()
	b.round()
	b.round()
}

// isDeletion reports whether a request deletes an object.
func isDeletion(request *http.Request) bool {
	return request.Method == http.MethodDelete && !request.URL.Query().Has("uploadId")
}

// loseAnswers has the server delete what it is asked to, and the answer be lost that a backup
// has no more files.
func (b *bed) loseAnswers() {
	asked := 0
	b.onRequest = func(request *http.Request) error {
		if !isDeletion(request) {
			return nil
		}
		if asked++; asked != 3 {
			return nil
		}
		key := strings.TrimPrefix(request.URL.Path, "/"+b.bucket+"/")
		b.Expect(server.RemoveObject(b.t.Context(), b.bucket, key, minio.RemoveObjectOptions{VersionID: request.URL.Query().Get("versionId")})).To(Succeed())

		return errors.New("connection reset by peer")
	}
}

// TestDataThatWasDeletedIsNotLeftBehind, where a former try has deleted it, at the place at
// which nothing is found any more.
func TestDataThatWasDeletedIsNotLeftBehind(t *testing.T) {
	const gone, leftBehind = "Normal DataDeleted Nothing of the backup is left in the store", "Warning DataLeftBehind Nothing of the backup was found in the store"
	for name, tt := range map[string]struct {
		change func(*bed)
		mend   func(*bed)
		told   string
		left   int
	}{
		"the answer was lost":                      {(*bed).loseAnswers, func(*bed) {}, gone, 0},
		"the manager restarts before it is let go": {func(*bed) {}, (*bed).start, gone, 0},
		"the store is put elsewhere meanwhile": {func(b *bed) {
			b.onRequest = func(request *http.Request) error {
				if isDeletion(request) {
					return errors.New("connection reset by peer")
				}
				return nil
			}
		}, func(b *bed) { b.onRequest = nil; b.move() }, leftBehind, 3},
		"the store was put elsewhere, and did not answer there": {func(b *bed) {
			b.move()
			b.onRequest = func(*http.Request) error { return errors.New("connection reset by peer") }
		}, func(b *bed) { b.onRequest = nil }, leftBehind, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newDeletableBed(t)
			tt.change(b)
			b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
			b.deletionEnds()
			if b.onRequest != nil {
				b.settle()
			}
			b.Expect(b.allBackups()).To(HaveLen(1))
			tt.mend(b)
			b.later()
			b.Expect(b.allBackups()).To(BeEmpty())
			b.onRequest = nil
			b.Expect(b.keys()).To(HaveLen(tt.left))
			b.Expect(b.toldOfData()).To(HaveExactElements(HavePrefix(tt.told)))
		})
	}
}

// TestAPlaceAtWhichNothingIsFoundIsNotRecorded: the store was put there meanwhile, and the manager
// restarts before it takes that in.
func TestAPlaceAtWhichNothingIsFoundIsNotRecorded(t *testing.T) {
	b := newDeletableBed(t)
	b.move()
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.round()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.Expect(b.theBackup("one").Annotations).NotTo(HaveKey(backupv1.DeletionBegunAnnotation))
	b.start()
	b.later()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(HaveLen(3))
	b.Expect(b.toldOfData()).To(HaveExactElements(HavePrefix("Warning DataLeftBehind")))
}

// TestThePlaceIsRecordedBeforeAnythingIsDeletedThere, also where somebody else writes the backup
// meanwhile.
func TestThePlaceIsRecordedBeforeAnythingIsDeletedThere(t *testing.T) {
	b := newDeletableBed(t)
	place, conflicts, recorded, registry := placeOf(b.theStore()), 0, []string{}, prometheus.NewRegistry()
	b.Expect(b.metrics.Register(registry)).To(Succeed())
	b.backups.Client = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // It is a fake.
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if object.GetAnnotations()[backupv1.DeletionBegunAnnotation] != "" && conflicts == 0 {
				conflicts++
				return apierrors.NewConflict(backupv1.GroupVersion.WithResource("talosetcdbackups").GroupResource(), object.GetName(), errors.New("somebody was faster"))
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	b.onRequest = func(request *http.Request) error {
		if isDeletion(request) {
			recorded = append(recorded, b.theBackup("one").Annotations[backupv1.DeletionBegunAnnotation])
		}
		return nil
	}
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.deletionEnds()
	b.Expect(says(b.theBackup("one"), backupv1.BackupDeletingCondition)).To(Equal("True DeletingData"))
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(conflicts).To(Equal(1))
	b.Expect(recorded).To(Equal([]string{place, place, place}))
	b.Expect(series.NonZero(b, registry, "capi_talos_backup_attempts_total")).To(ConsistOf("succeeded Delete 1", HavePrefix("succeeded BackUp"), HavePrefix("succeeded Verify")))
	b.Expect(b.toldOfData()).To(HaveExactElements("Normal DataDeleted The data of the backup is deleted from the store"))
}

// TestARecordOfAnotherPlaceStays while nothing is found there: what is gone from the former place
// was deleted, and is not left behind.
func TestARecordOfAnotherPlaceStays(t *testing.T) {
	b := newDeletableBed(t)
	b.loseAnswers()
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.onRequest = func(*http.Request) error { return errors.New("connection reset by peer") }
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Prefix = "other" })
	b.later()
	b.onRequest = nil
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Prefix = "some/prefix" })
	b.later()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.toldOfData()).To(HaveExactElements(HavePrefix("Normal DataDeleted Nothing of the backup is left")))
}

// TestADeletionThatWaitsForItsTurn was not tried before.
func TestADeletionThatWaitsForItsTurn(t *testing.T) {
	b := newDeletableBed(t)
	b.move()
	ctx, free := context.WithCancel(t.Context())
	b.Expect(b.backups.Jobs.Start(jobs.Key{Namespace: namespace, Name: "other", Cluster: "prod"}, func(context.Context, func(metrics.Step)) Result {
		<-ctx.Done()
		return Result{}
	})).To(BeTrue())
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	free()
	b.Eventually(func() int { running, _ := b.backups.Jobs.Count(); return running }).Should(BeZero())
	b.later()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.toldOfData()).To(HaveExactElements(HavePrefix("Warning DataLeftBehind")))
}

// TestABackupThatCannotBeLetGo is let go later, and its data is not deleted once more.
func TestABackupThatCannotBeLetGo(t *testing.T) {
	b := newDeletableBed(t)
	requests := 0
	b.onRequest = func(*http.Request) error { requests++; return nil }
	b.backups.Client = interceptor.NewClient(b.client.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // It is a fake.
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if len(object.GetFinalizers()) == 0 {
				return errors.New("not now")
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.deletionEnds()
	deleted := requests
	for range 2 {
		_, err := b.backups.Reconcile(t.Context(), requestOf(b.theBackup("one")))
		b.Expect(err).To(MatchError(ContainSubstring("not now")))
		b.Expect(b.theBackup("one").Finalizers).NotTo(BeEmpty())
	}
	b.backups.Client = b.client
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(requests).To(Equal(deleted))
	b.Expect(b.toldOfData()).To(HaveExactElements("Normal DataDeleted The data of the backup is deleted from the store"))
}
