package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

func TestABackupIsMade(t *testing.T) {
	b := newBed(t)
	b.backup("daily-1")
	b.settle()
	made := b.theBackup("daily-1")
	b.Expect(says(made, backupv1.BackupReadyCondition)).To(Equal("True Ready"), fmt.Sprint(made.Status))
	b.Expect(made.Status.Snapshot).To(And(
		HaveField("PlainBytes", HaveValue(Equal(int64(100_032)))), HaveField("StoredBytes", HaveValue(BeNumerically(">", 100_000))),
		HaveField("MachineName", "cp-1"), HaveField("RaftIndex", HaveValue(Equal(int64(42)))), HaveField("TalosVersion", "v1.13.9"), HaveField("KubernetesVersion", "v1.36.3"),
		HaveField("EtcdVersion", "3.6.12"), HaveField("Encryption", backupv1.EncryptionRecipients), HaveField("Secrets", backupv1.SecretsInclude),
	))
	b.Expect(made.Status.Verification.Level).To(Equal(backupv1.VerificationDigest))
	b.Expect(b.keys()).To(HaveLen(3))
	b.Expect(<-b.events.Events).To(Equal(fmt.Sprintf("Normal Completed The etcd of Cluster prod is backed up: %d bytes, of Machine cp-1", *made.Status.Snapshot.StoredBytes)))

	// It is made once, whatever happens then.
	b.start()
	b.loseStatus("daily-1")
	b.settle()
	b.Expect(says(b.theBackup("daily-1"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.theBackup("daily-1").Status.Snapshot).To(Equal(made.Status.Snapshot))
	b.Expect(b.snapshots.Load()).To(Equal(int64(1)))
	b.Expect(b.events.Events).To(BeEmpty())
}

// TestWhatAttemptsHaveLeftBehindIsDeleted: with the next backup that is made once it is old.
func TestWhatAttemptsHaveLeftBehindIsDeleted(t *testing.T) {
	b := newBed(t)
	b.backup("first")
	b.settle()
	kept := b.keys()
	left := path.Join(path.Dir(kept[0]), "data-of-an-attempt")
	_, err := server.PutObject(t.Context(), b.bucket, left, strings.NewReader("half"), 4, minio.PutObjectOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	b.backup("second")
	b.settle()
	b.Expect(b.keys()).To(ContainElement(left), "whose attempt may go on")
	b.clock.Step(leftoverAge + time.Hour)
	b.backup("third")
	b.settle()
	b.Expect(b.keys()).To(And(ContainElements(kept), HaveLen(3*len(kept)), Not(ContainElement(left))))
}

// TestNothingSecretIsTold: neither of the cluster nor of the store, in an object or an event.
func TestNothingSecretIsTold(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	b.nodes[1].OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) { return nil, errors.New("refused") }
	b.settle()
	told, err := json.Marshal([]any{b.allBackups(), b.allStores()})
	b.Expect(err).NotTo(HaveOccurred())
	for len(b.events.Events) > 0 {
		told = append(told, <-b.events.Events...)
	}
	secret := &corev1.Secret{}
	b.Expect(b.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "s3"}, secret)).To(Succeed())
	bundle := bundleOf(b, "prod").Machinery()
	for name, value := range map[string][]byte{
		"the access key of the store": bytes.TrimSpace(secret.Data[backupv1.SecretAccessKeyKey]), "the token of the machines": []byte(bundle.TrustdInfo.Token),
		"the secret of the cluster": []byte(bundle.Cluster.Secret), "the key of the Talos API": bundle.Certs.OS.Key, "the key of the recipient": []byte(b.key.String()),
	} {
		b.Expect(value).NotTo(BeEmpty())
		b.Expect(bytes.Contains(told, value)).To(BeFalse(), name)
	}
}

// TestAManagerThatDies after each of its reconciles makes the backup nevertheless.
func TestAManagerThatDies(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	for range 20 {
		b.round()
		b.start()
	}
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.snapshots.Load()).To(Equal(int64(1)), "the first one is found")
	b.Expect(b.keys()).To(HaveLen(3))
}

func TestWhatABackupWaitsFor(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after func(b *bed)
		want          string
	}{
		"a store": {
			func(b *bed) { b.Expect(b.client.Delete(b.t.Context(), b.theStore())).To(Succeed()) },
			func(b *bed) { b.create(b.store()) }, "Unknown WaitingForStore",
		},
		"a store that is ready": {
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Bucket = "nowhere" })
			},
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.S3.Bucket = b.bucket })
			}, "Unknown WaitingForStore",
		},
		"a store that may be written to": {
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
			},
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = "" })
			}, "False ReadOnly",
		},
		"recipients": {
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.Recipients = nil })
			},
			func(b *bed) {
				edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.Recipients = b.store().Spec.Recipients })
			}, "False NoRecipient",
		},
		"the secrets of the cluster": {
			func(b *bed) {
				b.Expect(b.client.Delete(b.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secrets.BundleName("prod")}})).To(Succeed())
			},
			func(b *bed) {
				b.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secrets.BundleName("prod")}, Data: map[string][]byte{secrets.BundleKey: bundleOf(b, "prod").YAML()}})
			}, "Unknown WaitingForCluster",
		},
		"the control plane": {
			func(b *bed) { b.initialized(false) }, func(b *bed) { b.initialized(true) }, "Unknown WaitingForCluster",
		},
		"a quorum": {
			func(b *bed) { b.nodes[0].SetSilent(true); b.nodes[1].SetSilent(true) },
			func(b *bed) { b.nodes[1].SetSilent(false); b.clock.Step(firstRetry) }, "False AttemptFailed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			tt.before(b)
			b.backup("one")
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal(tt.want))
			b.Expect(b.keys()).To(BeEmpty())
			tt.after(b)
			b.settle()
			b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"), fmt.Sprint(b.theBackup("one").Status))
		})
	}
}

func (b *bed) initialized(is bool) {
	b.t.Helper()
	cluster := &clusterv1.Cluster{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "prod"}, cluster)).To(Succeed())
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(is)
	b.Expect(b.client.Status().Update(b.t.Context(), cluster)).To(Succeed())
}

func TestSecretsAreLeftOutWhereTheBackupSaysSo(t *testing.T) {
	b := newBed(t)
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.Recipients = nil })
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.Secrets = backupv1.SecretsExclude })
	b.settle()
	made := b.theBackup("one")
	b.Expect(says(made, backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	b.Expect(made.Status.Snapshot.Secrets).To(Equal(backupv1.SecretsExclude))
	b.Expect(made.Status.Snapshot.Encryption).To(Equal(backupv1.EncryptionNone))
	b.Expect(b.keys()).To(HaveLen(2))
}

// TestABackupIsTriedForAWhile, later each time, and then no more.
func TestABackupIsTriedForAWhile(t *testing.T) {
	b := newBed(t)
	fails := func(context.Context, *fake.Machine) (io.ReadCloser, error) { return nil, errors.New("refused") }
	for _, node := range b.nodes {
		node.OnSnapshot = fails
	}
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.TimeoutSeconds = ptr.To(int32(60)) })
	b.settle()
	b.Expect(b.theBackup("one").Status.Failure.Count).To(Equal(int32(1)))
	b.clock.Step(firstRetry - time.Second)
	b.settle()
	b.Expect(b.theBackup("one").Status.Failure.Count).To(Equal(int32(1)), "not yet")
	b.clock.Step(time.Second)
	b.settle()
	b.Expect(b.theBackup("one").Status.Failure.Count).To(Equal(int32(2)))
	b.clock.Step(2*firstRetry - time.Second)
	b.settle()
	b.Expect(b.theBackup("one").Status.Failure.Count).To(Equal(int32(2)))
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False AttemptFailed"))
	b.clock.Step(time.Minute)
	b.settle()
	failed := b.theBackup("one")
	b.Expect(says(failed, backupv1.CompletedCondition)).To(Equal("False Failed"))
	b.Expect(conditions.Get(failed, backupv1.CompletedCondition).Message).To(ContainSubstring("refused"))

	for _, node := range b.nodes {
		node.OnSnapshot = nil
	}
	b.clock.Step(time.Hour)
	b.loseStatus("one")
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False Failed"), "it is over")
	b.Expect(b.keys()).To(BeEmpty())
}

func TestRetriesComeLaterEachTime(t *testing.T) {
	var waits []time.Duration
	for count := range int32(8) {
		waits = append(waits, retryAfter(count+1))
	}
	NewWithT(t).Expect(waits).To(Equal([]time.Duration{
		10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute,
	}))
}

// TestASnapshotThatIsCutIsNoBackup, as when Talos cannot read on.
func TestASnapshotThatIsCutIsNoBackup(t *testing.T) {
	b := newBed(t)
	b.nodes[1].OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(etcdSnapshot(100_000)[:50_000])), nil
	}
	b.backup("one")
	b.settle()
	b.Expect(b.theBackup("one").Status.Failure.Message).To(And(ContainSubstring("does not end with its own checksum"), HavePrefix("storing the snapshot of Machine cp-1: ")))
	b.Expect(b.keys()).To(BeEmpty())

	// The next attempt is another member's.
	b.clock.Step(firstRetry)
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.theBackup("one").Status.Snapshot.MachineName).To(Equal("cp-2"))
}

// TestANameThatIsTaken: the store has another backup of the name, which stays as it is.
func TestANameThatIsTaken(t *testing.T) {
	b := newBed(t)
	b.backup("one")
	b.settle()
	before := b.keys()
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(Equal(before), "its data is retained")

	b.backup("one", func(made *backupv1.TalosEtcdBackup) {
		made.UID, made.Spec.DeletionPolicy = "another", backupv1.DeletionDelete
	})
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False NameTaken"))
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(Equal(before), "it was not its own")
}

// TestAClusterThatTookThePlaceOfAnother is not backed up as that one.
func TestAClusterThatTookThePlaceOfAnother(t *testing.T) {
	b := newBed(t)
	b.nodes[0].SetSilent(true)
	b.nodes[1].SetSilent(true)
	b.backup("one")
	b.settle()
	stored := &corev1.Secret{}
	b.Expect(b.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: secrets.BundleName("prod")}, stored)).To(Succeed())
	edit(b, stored, func(s *corev1.Secret) { s.Data[secrets.BundleKey] = bundleOf(b, "another").YAML() })
	b.nodes[1].SetSilent(false)
	b.clock.Step(firstRetry)
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("False Failed"))
	b.Expect(conditions.Get(b.theBackup("one"), backupv1.CompletedCondition).Message).To(ContainSubstring("another one"))
	b.Expect(b.keys()).To(BeEmpty())
}

// TestWhatTheStoreDoesToABackup is told once somebody looks again.
func TestWhatTheStoreDoesToABackup(t *testing.T) {
	bucket, key := newBucket(t, false)
	b := newBedAt(t, bucket, key, time.Now().Truncate(time.Second))
	b.backup("one")
	b.settle()
	for _, key := range b.keys() {
		if bytes.Contains([]byte(key), []byte("/data-")) {
			b.Expect(server.Change(t.Context(), b.bucket, key, func(data []byte) []byte { data[1000] ^= 1; return data })).To(Succeed())
		}
	}
	b.loseStatus("one")
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("True Completed"))
	b.Expect(says(b.theBackup("one"), backupv1.BackupReadyCondition)).To(Equal("False Damaged"))

	opened, err := b.backups.Stores.Open(t.Context(), b.store())
	b.Expect(err).NotTo(HaveOccurred())
	for object, err := range opened.List(t.Context(), "") {
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(opened.Delete(t.Context(), object.Key, object.VersionID)).To(Succeed())
	}
	b.loseStatus("one")
	b.until("one", "False Lost")
	b.Expect(b.snapshots.Load()).To(Equal(int64(1)), "no other one takes its place")
}

func TestWhatBecomesOfTheData(t *testing.T) {
	policy := func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete }
	annotated := func(b *bed, name string) {
		edit(b, b.theBackup("one"), func(made *backupv1.TalosEtcdBackup) { made.Annotations[name] = "" })
	}
	for name, tt := range map[string]struct {
		change func(b *bed)
		stays  bool
	}{
		"it is deleted":               {func(*bed) {}, false},
		"clusterctl moves the object": {func(b *bed) { annotated(b, clusterctlv1.DeleteForMoveAnnotation) }, true},
		"the annotation leaves it":    {func(b *bed) { annotated(b, backupv1.ForceDeleteAnnotation) }, true},
		"the store is gone":           {func(b *bed) { b.Expect(b.client.Delete(b.t.Context(), b.theStore())).To(Succeed()) }, true},
		"the store may not be written to": {func(b *bed) {
			edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.AccessMode = backupv1.AccessReadOnly })
		}, true},
		"the policy has become to retain": {func(b *bed) {
			edit(b, b.theBackup("one"), func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = "" })
		}, true},
		"the cluster is gone": {func(b *bed) {
			b.Expect(b.client.Delete(b.t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod"}})).To(Succeed())
		}, false},
		"the manager knows nothing of them": {func(b *bed) { b.start(); b.loseStatus("one") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.backup("one", policy)
			b.backup("other", policy)
			b.settle()
			b.Expect(b.keys()).To(HaveLen(6))
			tt.change(b)
			b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
			b.settle()
			b.Expect(b.allBackups()).To(HaveLen(1))
			if tt.stays {
				b.Expect(b.keys()).To(HaveLen(6))
				return
			}
			b.Expect(b.keys()).To(And(HaveLen(3), HaveEach(ContainSubstring("/other/"))))
		})
	}
}

// TestADeletionThatFailsIsTriedAgain, and nothing is let go before.
func TestADeletionThatFailsIsTriedAgain(t *testing.T) {
	b := newBed(t)
	b.backup("one", func(made *backupv1.TalosEtcdBackup) { made.Spec.DeletionPolicy = backupv1.DeletionDelete })
	b.settle()
	secret := &corev1.Secret{}
	b.Expect(b.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "s3"}, secret)).To(Succeed())
	right := secret.Data[backupv1.SecretAccessKeyKey]
	edit(b, secret, func(s *corev1.Secret) { s.Data[backupv1.SecretAccessKeyKey] = []byte("wrong") })
	b.Expect(b.client.Delete(t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.BackupDeletingCondition)).To(Equal("True DeletionFailed"))
	b.Expect(conditions.Get(b.theBackup("one"), backupv1.BackupDeletingCondition).Message).To(And(ContainSubstring("correct the Secret"), ContainSubstring(backupv1.ForceDeleteAnnotation)))
	edit(b, secret, func(s *corev1.Secret) { s.Data[backupv1.SecretAccessKeyKey] = right })
	b.settle()
	b.Expect(b.allBackups()).To(HaveLen(1), "not yet")
	b.clock.Step(deletionRetry)
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(BeEmpty())
}

func TestHowLongAnAttemptMayTake(t *testing.T) {
	g, now := NewWithT(t), time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
	s := &backupScope{backup: &backupv1.TalosEtcdBackup{Spec: backupv1.TalosEtcdBackupSpec{TimeoutSeconds: ptr.To(int32(600))}}}
	s.backup.Status.StartedAt = metav1.NewTime(now)
	g.Expect(s.timeLeft(now.Add(time.Minute))).To(Equal(9 * time.Minute))
	g.Expect(s.timeLeft(now.Add(time.Hour))).To(Equal(firstRetry), "once more, after a time without a manager")
	s.backup.Annotations = map[string]string{backupv1.ImportedAnnotation: ""}
	g.Expect(s.timeLeft(now.Add(time.Hour))).To(Equal(10*time.Minute), "it is only read back")
}
