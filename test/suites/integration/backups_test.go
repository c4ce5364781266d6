package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// vault is a store of a namespace, and what a test knows of it.
type vault struct {
	server *s3server.Server
	bucket string
	// key can read what is stored.
	key *age.X25519Identity
}

// newVault starts a server with a bucket. It ends with the test.
func newVault(t *testing.T, bucket string) *vault {
	t.Helper()
	g := NewWithT(t)
	server, err := s3server.Start(t.Context(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(server.Stop()).To(Succeed()) })
	g.Expect(server.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{})).To(Succeed())
	g.Expect(server.EnableVersioning(t.Context(), bucket)).To(Succeed())
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	return &vault{server: server, bucket: bucket, key: key}
}

// objects are the Secret and the TalosBackupStore that lead to the vault.
func (v *vault) objects(namespace string) (*corev1.Secret, *backupv1.TalosBackupStore) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s3"},
		Data: map[string][]byte{
			backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey), backupv1.CAKey: v.server.CA,
		},
	}
	store := &backupv1.TalosBackupStore{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "store"},
		Spec: backupv1.TalosBackupStoreSpec{
			S3:         backupv1.S3Store{Endpoint: v.server.Endpoint, Bucket: v.bucket, CredentialsSecretName: secret.Name, CASecretName: secret.Name},
			Recipients: []string{v.key.Recipient().String()},
		},
	}
	return secret, store
}

// files are the current objects of the bucket, by their key.
func (v *vault) files(ctx context.Context, g Gomega) map[string][]byte {
	found := map[string][]byte{}
	for object := range v.server.ListObjects(ctx, v.bucket, minio.ListObjectsOptions{Recursive: true}) {
		g.Expect(object.Err).NotTo(HaveOccurred())
		file, err := v.server.GetObject(ctx, v.bucket, object.Key, minio.GetObjectOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		data, err := io.ReadAll(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(file.Close()).To(Succeed())
		found[object.Key] = data
	}
	return found
}

// file is the one of a backup whose name begins so.
func file(g Gomega, files map[string][]byte, backup, name string) []byte {
	for key, data := range files {
		if strings.Contains(key, "/"+backup+"/"+name) {
			return data
		}
	}
	g.Expect(files).To(BeNil(), "%s of %s is not among them", name, backup)
	return nil
}

// decrypt is what a person does with the private key.
func (v *vault) decrypt(g Gomega, sealed []byte) io.Reader {
	plain, err := age.Decrypt(bytes.NewReader(sealed), v.key)
	g.Expect(err).NotTo(HaveOccurred())
	return plain
}

// TestBackups is the life of a backup, from credentials that are wrong at first to data
// that is deleted: with the manager under its shipped rights, machines that ask for the
// role of each call, and a real S3 server.
func TestBackups(t *testing.T) {
	t.Parallel()
	const name = "backups"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	vault := newVault(t, name)
	hosts := runCluster(t, machines, name, 1, 0)

	// A store whose credentials are wrong says so, and is mended by a Secret.
	secret, store := vault.objects(name)
	secret.Data[backupv1.SecretAccessKeyKey] = []byte("wrong-by-a-word")
	g.Expect(world.Client.Create(ctx, secret)).To(Succeed())
	g.Expect(world.Client.Create(ctx, store)).To(Succeed())
	awaitCondition(t, store, backupv1.StoreReadyCondition, metav1.ConditionFalse, "InvalidCredentials")
	secret.Data[backupv1.SecretAccessKeyKey] = []byte(s3server.SecretKey)
	g.Expect(world.Client.Update(ctx, secret)).To(Succeed())
	awaitCondition(t, store, backupv1.StoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)

	// The schedule is for the next year; the annotation asks for a backup now.
	schedule := &backupv1.TalosEtcdBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "yearly", Annotations: map[string]string{backupv1.RunAnnotation: "before the audit"}},
		Spec: backupv1.TalosEtcdBackupScheduleSpec{
			MatchAll: new(true), StoreName: store.Name, Schedule: "0 0 29 2 *", TimeZone: "Europe/Berlin",
		},
	}
	g.Expect(world.Client.Create(ctx, schedule)).To(Succeed())
	backup := awaitBackup(t, name)
	g.Expect(backup.Labels).To(HaveKeyWithValue(backupv1.ScheduleNameLabel, schedule.Name))
	g.Expect(backup.Status.Verification.Level).To(Equal(backupv1.VerificationDigest))
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(schedule), schedule)).To(Succeed())
		g.Expect(schedule.Status.Clusters).To(HaveLen(1))
		g.Expect(schedule.Status.Clusters[0].CompletedAt).To(Equal(backup.Status.Snapshot.TakenAt))
		g.Expect(schedule.Status.Clusters[0].VerifiedAt.IsZero()).To(BeFalse())
		g.Expect(schedule.Status.LastRun).To(Equal("before the audit"))
	}).WithTimeout(timeout).Should(Succeed())

	bundle := expectWhole(t, vault, backup)
	vault.expectNothingSecret(t, name, bundle, &backupv1.TalosEtcdBackupScheduleList{})
	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	expectBackupBeforeRollout(t, name, schedule.Name)

	// Without its object a backup is found again in the store.
	g.Expect(world.Client.Delete(ctx, schedule)).To(Succeed())
	g.Expect(world.Client.Delete(ctx, backup)).To(Succeed())
	g.Eventually(func() error { return world.Client.Get(ctx, client.ObjectKeyFromObject(backup), backup) }).WithTimeout(timeout).Should(MatchError(ContainSubstring("not found")))
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(store), store)).To(Succeed())
		delete(store.Annotations, backupv1.ImportedAnnotation)
		g.Expect(world.Client.Update(ctx, store)).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())
	found := awaitBackup(t, name)
	g.Expect(found.Name).To(Equal(backup.Name))
	g.Expect(found.Annotations).To(HaveKey(backupv1.ImportedAnnotation))
	g.Expect(found.Status.Snapshot.SHA256).To(Equal(backup.Status.Snapshot.SHA256))

	// Its data goes with it only when that is asked for.
	found.Spec.DeletionPolicy = backupv1.DeletionDelete
	g.Expect(world.Client.Update(ctx, found)).To(Succeed())
	g.Expect(world.Client.Delete(ctx, found)).To(Succeed())
	g.Eventually(func() error { return world.Client.Get(ctx, client.ObjectKeyFromObject(found), found) }).WithTimeout(timeout).Should(MatchError(ContainSubstring("not found")))
	g.Expect(vault.files(ctx, g)).To(BeEmpty())

	deleteClusters(t, name, name)
	expectWiped(t, machines, hosts...)
}

// expectBackupBeforeRollout has the only Machine of a control plane replaced (design D14): a
// backup comes first. It goes in the end.
func expectBackupBeforeRollout(t *testing.T, name, schedule string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	before := machinesOf(ctx, g, name, true)
	patch := fmt.Sprintf(`{"spec":{"backup":{"scheduleName":%q},"rollout":{"after":%q}}}`, schedule, time.Now().UTC().Format(time.RFC3339))
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch", patch)
	g.Expect(err).NotTo(HaveOccurred())
	made := &backupv1.TalosEtcdBackup{}
	g.Eventually(func(g Gomega) {
		key := controlPlaneOf(ctx, g, name).Annotations[controlplanev1.BackupBeforeAnnotation]
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: key}, made)).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(made.Name).To(HavePrefix(name + "-before-"))
	g.Eventually(func(g Gomega) {
		machines := machinesOf(ctx, g, name, true)
		g.Expect(machines).To(HaveLen(1))
		g.Expect(machines[0].UID).NotTo(Equal(before[0].UID))
		g.Expect(controlPlaneOf(ctx, g, name).Annotations).NotTo(HaveKey(controlplanev1.BackupBeforeAnnotation))
	}).WithTimeout(timeout).Should(Succeed())
	awaitCondition(t, made, backupv1.BackupReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	g.Expect(made.Status.Snapshot.MachineName).To(Equal(before[0].Name), "before the Machine was replaced")
	made.Spec.DeletionPolicy = backupv1.DeletionDelete
	g.Expect(world.Client.Update(ctx, made)).To(Succeed())
	g.Expect(world.Client.Delete(ctx, made)).To(Succeed())
	g.Eventually(func() error { return world.Client.Get(ctx, client.ObjectKeyFromObject(made), made) }).WithTimeout(timeout).Should(MatchError(ContainSubstring("not found")))
}

// awaitCondition waits until a condition of an object has a status and a reason.
func awaitCondition(t *testing.T, object conditioned, kind string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
		found := told(object, kind)
		g.Expect([]string{string(found.Status), found.Reason}).To(Equal([]string{string(status), reason}), found.Message)
	}).WithTimeout(timeout).Should(Succeed())
}

// conditioned is an object with conditions.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
}

// awaitBackup waits until the only backup of a namespace is ready.
func awaitBackup(t *testing.T, namespace string) *backupv1.TalosEtcdBackup {
	t.Helper()
	g, list := NewWithT(t), &backupv1.TalosEtcdBackupList{}
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
	}).WithTimeout(timeout).Should(Succeed())
	awaitCondition(t, &list.Items[0], backupv1.BackupReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	return &list.Items[0]
}

// expectWhole decrypts a backup, and finds what its manifest and its object say in it. It
// returns the secrets bundle.
func expectWhole(t *testing.T, vault *vault, backup *backupv1.TalosEtcdBackup) []byte {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	files := vault.files(ctx, g)
	g.Expect(files).To(HaveLen(3), "a manifest, data and secrets")
	var manifest struct {
		Data struct{ PlainSHA256, StoredSHA256 string }
	}
	g.Expect(json.Unmarshal(file(g, files, backup.Name, "manifest.json"), &manifest)).To(Succeed())
	data := file(g, files, backup.Name, "data-")
	g.Expect(manifest.Data.StoredSHA256).To(Equal(fmt.Sprintf("%x", sha256.Sum256(data))))
	unpacked, err := zstd.NewReader(vault.decrypt(g, data))
	g.Expect(err).NotTo(HaveOccurred())
	defer unpacked.Close()
	snapshot, err := io.ReadAll(unpacked)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprintf("%x", sha256.Sum256(snapshot))).To(And(Equal(manifest.Data.PlainSHA256), Equal(backup.Status.Snapshot.SHA256)))
	end := len(snapshot) - sha256.Size
	sum := sha256.Sum256(snapshot[:end])
	g.Expect(snapshot[end:]).To(Equal(sum[:]), "the checksum that etcd has put at its end")

	bundle, err := io.ReadAll(vault.decrypt(g, file(g, files, backup.Name, "secrets-")))
	g.Expect(err).NotTo(HaveOccurred())
	inCluster := &corev1.Secret{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: backup.Namespace, Name: secrets.BundleName(backup.Spec.ClusterName)}, inCluster)).To(Succeed())
	g.Expect(bundle).To(MatchYAML(inCluster.Data[secrets.BundleKey]))
	return bundle
}

// secretsIn are the strings of a secrets bundle that are long enough to be secret, and the lines
// of its private keys.
func secretsIn(g Gomega, bundle []byte) []string {
	const long = 20
	var content any
	g.Expect(yaml.Unmarshal(bundle, &content)).To(Succeed())
	var found []string
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case string:
			if len(value) >= long {
				found = append(found, value)
			}
			decoded, _ := base64.StdEncoding.DecodeString(value)
			if block, _ := pem.Decode(decoded); block != nil && strings.HasSuffix(block.Type, "PRIVATE KEY") {
				found = append(found, base64.StdEncoding.EncodeToString(block.Bytes))
				for line := range strings.Lines(string(decoded)) {
					if line = strings.TrimSpace(line); len(line) >= long && !strings.HasPrefix(line, "-----") {
						found = append(found, line)
					}
				}
			}
		case map[string]any:
			for _, one := range value {
				walk(one)
			}
		case []any:
			for _, one := range value {
				walk(one)
			}
		}
	}
	walk(content)
	g.Expect(len(found)).To(BeNumerically(">", 5))
	return found
}

// expectNothingSecret looks for what is secret where it must not be: in the objects of the
// backup provider, and others, in all events of a namespace, in the log of the manager, and in
// the bucket.
func (v *vault) expectNothingSecret(t *testing.T, namespace string, bundle []byte, others ...client.ObjectList) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	var places []string
	for _, list := range append(others, &backupv1.TalosBackupStoreList{}, &backupv1.TalosEtcdBackupList{}, &eventsv1.EventList{}) {
		g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		text, err := json.Marshal(list)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(items(g, list)).NotTo(BeEmpty())
		places = append(places, string(text))
	}
	log, err := os.ReadFile(filepath.Join(world.Stack.LogDir(), "backup.log"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(log)).To(ContainSubstring("talosetcdbackup"))
	places = append(places, string(log))
	for key, stored := range v.files(ctx, g) {
		places = append(places, key, string(stored))
	}
	for _, secret := range append(secretsIn(g, bundle), s3server.SecretKey, "wrong-by-a-word", v.key.String()) {
		g.Expect(slices.ContainsFunc(places, func(place string) bool { return strings.Contains(place, secret) })).To(BeFalse(), "a secret is told")
	}
}
