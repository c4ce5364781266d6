package controllers

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
)

func TestAStoreIsReady(t *testing.T) {
	b := newBed(t)
	b.settle()
	store := b.theStore()
	b.Expect(says(store, backupv1.StoreReadyCondition)).To(Equal("True Ready"))
	b.Expect(store.Status.Versioning).To(Equal(backupv1.FeatureEnabled))
	b.Expect(store.Status.ObjectLock).To(Equal(backupv1.FeatureDisabled))
	b.Expect(store.Status.Backups).To(HaveValue(BeZero()))
	b.Expect(b.keys()).To(BeEmpty(), "a check leaves nothing behind")
}

func TestWhatIsWrongWithAStore(t *testing.T) {
	secret := func(change func(*corev1.Secret)) func(b *bed) {
		return func(b *bed) {
			found := &corev1.Secret{}
			b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "s3"}, found)).To(Succeed())
			edit(b, found, change)
		}
	}
	spec := func(change func(*backupv1.TalosBackupStoreSpec)) func(b *bed) {
		return func(b *bed) {
			edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { change(&s.Spec) })
		}
	}
	for name, tt := range map[string]struct {
		change        func(b *bed)
		reason, words string
	}{
		"a Secret that is missing":   {spec(func(s *backupv1.TalosBackupStoreSpec) { s.S3.CredentialsSecretName = "none" }), "SecretInvalid", "Secret none is missing"},
		"a Secret without the key":   {secret(func(s *corev1.Secret) { delete(s.Data, backupv1.SecretAccessKeyKey) }), "SecretInvalid", "lacks the key secretAccessKey"},
		"a wrong secret":             {secret(func(s *corev1.Secret) { s.Data[backupv1.SecretAccessKeyKey] = []byte("wrong") }), "InvalidCredentials", "correct the Secret"},
		"a CA that is missing":       {secret(func(s *corev1.Secret) { delete(s.Data, backupv1.CAKey) }), "SecretInvalid", "lacks the key ca.crt"},
		"a CA that is none":          {secret(func(s *corev1.Secret) { s.Data[backupv1.CAKey] = []byte("none") }), "ConfigurationInvalid", "no certificate"},
		"no CA":                      {spec(func(s *backupv1.TalosBackupStoreSpec) { s.S3.CASecretName = "" }), "UntrustedCertificate", "give the CA"},
		"an unknown bucket":          {spec(func(s *backupv1.TalosBackupStoreSpec) { s.S3.Bucket = "nowhere" }), "BucketNotFound", "correct its name"},
		"a server that is not there": {spec(func(s *backupv1.TalosBackupStoreSpec) { s.S3.Endpoint = "https://127.0.0.1:1" }), "StoreUnavailable", "refused"},
		"a recipient that is none":   {spec(func(s *backupv1.TalosBackupStoreSpec) { s.Recipients = []string{"age1none"} }), "ConfigurationInvalid", "recipient 0 is no public key of age"},
		"a lock that the bucket lacks": {spec(func(s *backupv1.TalosBackupStoreSpec) {
			s.S3.ObjectLock = backupv1.ObjectLock{Mode: backupv1.LockGovernance, Days: ptr.To(int32(1))}
		}), "ObjectLockUnsupported", "take objectLock out"},
		"a key of a wrong length": {func(b *bed) {
			secret(func(s *corev1.Secret) { s.Data[backupv1.CustomerKeyKey] = []byte("too short") })(b)
			spec(func(s *backupv1.TalosBackupStoreSpec) {
				s.S3.Encryption = backupv1.ServerSideEncryption{Type: backupv1.EncryptionCustomerKey, CustomerKeySecretName: "s3"}
			})(b)
		}, "SecretInvalid", "has 9 bytes and not 32"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			tt.change(b)
			b.settle()
			found := conditions.Get(b.theStore(), backupv1.StoreReadyCondition)
			b.Expect(says(b.theStore(), backupv1.StoreReadyCondition)).To(Equal("False "+tt.reason), found.Message)
			b.Expect(found.Message).To(ContainSubstring(tt.words))
			b.Expect(<-b.events.Events).To(HavePrefix("Warning " + tt.reason))
			b.Expect(b.events.Events).To(BeEmpty(), "it is told once")
		})
	}
}

// TestAStoreIsCheckedNowAndThen, and at once when it or one of its Secrets has changed.
func TestAStoreIsCheckedNowAndThen(t *testing.T) {
	b := newBed(t)
	b.settle()
	b.Expect(server.RemoveBucket(t.Context(), b.bucket)).To(Succeed())
	b.clock.Step(5*time.Minute - time.Second)
	b.settle()
	b.Expect(says(b.theStore(), backupv1.StoreReadyCondition)).To(Equal("True Ready"), "nobody has looked")
	b.clock.Step(time.Second)
	b.settle()
	b.Expect(says(b.theStore(), backupv1.StoreReadyCondition)).To(Equal("False BucketNotFound"))
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.CredentialsSecretName = "none" })
	b.settle()
	b.Expect(says(b.theStore(), backupv1.StoreReadyCondition)).To(Equal("False SecretInvalid"))
}

// TestBackupsAreImported into an empty management cluster: those of the namespace, and once.
func TestBackupsAreImported(t *testing.T) {
	first := newBed(t)
	for i := range 3 {
		first.backup(fmt.Sprintf("daily-%d", i))
	}
	first.settle()
	before := first.keys()

	b := newBedAt(t, first.bucket, first.key, first.clock.Now())
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(3))
	for i := range 3 {
		name := fmt.Sprintf("daily-%d", i)
		imported, made := b.theBackup(name), first.theBackup(name)
		b.Expect(says(imported, backupv1.BackupReadyCondition)).To(Equal("True Ready"), fmt.Sprint(imported.Status))
		b.Expect(imported.Status.Snapshot).To(Equal(made.Status.Snapshot))
		b.Expect(imported.Annotations).To(HaveKeyWithValue(backupv1.IDAnnotation, made.Annotations[backupv1.IDAnnotation]))
		b.Expect(imported.Annotations).To(HaveKey(backupv1.ImportedAnnotation))
		b.Expect(imported.Spec.DeletionPolicy).To(Equal(backupv1.DeletionRetain))
	}
	b.Expect(b.snapshots.Load()).To(BeZero())
	b.Expect(says(b.theStore(), backupv1.ImportedCondition)).To(Equal("True Imported"))

	// What a user has deleted is not made again.
	b.Expect(b.client.Delete(t.Context(), b.theBackup("daily-0"))).To(Succeed())
	b.clock.Step(time.Hour)
	b.start()
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.Expect(b.keys()).To(Equal(before))
	// Unless the store is to be mirrored.
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.ImportPolicy = backupv1.ImportAlways })
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(3))
}

func TestNothingIsImportedWhereTheStoreSaysSo(t *testing.T) {
	first := newBed(t)
	first.backup("one")
	first.settle()
	b := newBedAt(t, first.bucket, first.key, first.clock.Now())
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.ImportPolicy = backupv1.ImportNever })
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
}

// TestABackupWhoseNameIsTakenIsNotImported: that is told, and all others are.
func TestABackupWhoseNameIsTakenIsNotImported(t *testing.T) {
	first := newBed(t)
	first.backup("one")
	first.backup("two")
	first.settle()
	b := newBedAt(t, first.bucket, first.key, first.clock.Now())
	b.backup("one", func(made *backupv1.TalosEtcdBackup) {
		made.Spec.ClusterName, made.Spec.StoreName = "another", "another"
	})
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.Expect(b.theBackup("one").Spec.ClusterName).To(Equal("another"))
	found := conditions.Get(b.theStore(), backupv1.ImportedCondition)
	b.Expect(found.Reason).To(Equal(backupv1.ImportFailedReason))
	b.Expect(found.Message).To(Equal("one of Cluster prod: a TalosEtcdBackup of another Cluster has that name"))

	// It is tried again with the next check, and not each time that somebody looks.
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.clock.Step(time.Duration(backupv1.DefaultCheckIntervalSeconds) * time.Second)
	b.settle()
	b.Expect(b.theBackup("one").Spec.ClusterName).To(Equal("prod"))
	b.Expect(says(b.theStore(), backupv1.ImportedCondition)).To(Equal("True Imported"))
}

// withBackups is a bed of an empty management cluster, whose store has backups daily-0 and so on.
func withBackups(t *testing.T, count int) *bed {
	t.Helper()
	first := newBed(t)
	for i := range count {
		first.backup(fmt.Sprintf("daily-%d", i))
	}
	first.settle()

	return newBedAt(t, first.bucket, first.key, first.clock.Now())
}

// isManifestOf reports whether a request is for the manifest of a backup.
func isManifestOf(request *http.Request, backup string) bool {
	return strings.HasSuffix(request.URL.Path, "/"+backup+"/manifest.json")
}

// TestManifestsThatAreNone are counted, and named in few words, however long their own are.
func TestManifestsThatAreNone(t *testing.T) {
	b := withBackups(t, 4)
	for _, key := range b.keys() {
		if path.Base(key) == "manifest.json" {
			b.Expect(server.Change(t.Context(), b.bucket, key, func([]byte) []byte {
				return fmt.Appendf(nil, `{"format": %q}`, strings.Repeat("x", 1<<19))
			})).To(Succeed())
		}
	}
	b.settle()
	found := conditions.Get(b.theStore(), backupv1.ImportedCondition)
	b.Expect(found.Reason).To(Equal(backupv1.ImportFailedReason))
	b.Expect(found.Message).To(And(HavePrefix("daily-0 of Cluster prod: "), ContainSubstring("daily-2"), HaveSuffix("; and 1 more")))
	b.Expect(len(found.Message)).To(BeNumerically("<", 2048))
}

// TestWhatIsRefusedTakesNoRoom, however much there is of it.
func TestWhatIsRefusedTakesNoRoom(t *testing.T) {
	g, found := NewWithT(t), refused{}
	for range 1000 {
		found.add(archive.Found{Name: "one"}, strings.Repeat("x", 1<<20))
	}
	g.Expect(found.count).To(Equal(1000))
	g.Expect(len(strings.Join(found.first, ""))).To(BeNumerically("<", 2048))
}

// TestABackupThatCannotBeReadInTimeHoldsUpNoOther.
func TestABackupThatCannotBeReadInTimeHoldsUpNoOther(t *testing.T) {
	b := withBackups(t, 3)
	b.stores.readTimeout = 3 * time.Second
	b.onRequest = func(request *http.Request) error {
		if isManifestOf(request, "daily-1") {
			<-request.Context().Done()
		}
		return nil
	}
	b.round()
	b.Expect(b.allBackups()).To(HaveLen(2))
	b.Expect(conditions.GetMessage(b.theStore(), backupv1.ImportedCondition)).To(Equal("daily-1 of Cluster prod: its manifest was not read within 3s"))
	b.onRequest = nil
	b.clock.Step(time.Duration(backupv1.DefaultCheckIntervalSeconds) * time.Second)
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(3))
}

// TestAnImportThatTakesLongGoesOn with the next check, and has no worker wait.
func TestAnImportThatTakesLongGoesOn(t *testing.T) {
	b := withBackups(t, 3)
	b.stores.importTimeout = 3 * time.Second
	b.onRequest = func(request *http.Request) error {
		if isManifestOf(request, "daily-1") {
			<-request.Context().Done()
		}
		return nil
	}
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.Expect(says(b.theStore(), backupv1.ImportedCondition)).To(Equal("False ImportFailed"))
	b.Expect(conditions.GetMessage(b.theStore(), backupv1.ImportedCondition)).To(Equal("it was not done within 3s, and goes on with the next check"))
	b.onRequest = nil
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1))
	b.clock.Step(time.Duration(backupv1.DefaultCheckIntervalSeconds) * time.Second)
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(3))
	b.Expect(says(b.theStore(), backupv1.ImportedCondition)).To(Equal("True Imported"))
}
