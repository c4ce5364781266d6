package talos

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// Backups of a cluster of real machines, in a real S3 server.
var _ = Describe("Backups", func() {
	It("are made on a schedule, verified at every level, pruned, and found by another management cluster", Label("backups"), func(ctx SpecContext) {
		const name = "backups"
		vault := newVault(ctx, name)
		addHosts(ctx, name, 3)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 3}, nil)
		awaitControlPlane(ctx, name, 3)
		Expect(workloadClient(ctx, name).Create(ctx, configMap("before"))).To(Succeed())

		By("making one each minute, and restoring the newest one each minute")
		vault.create(ctx, world.client, name)
		Expect(world.client.Create(ctx, &backupv1.TalosEtcdBackupSchedule{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "often"},
			Spec: backupv1.TalosEtcdBackupScheduleSpec{
				MatchAll: new(true), StoreName: vault.bucket, Schedule: "* * * * *", JitterSeconds: new(int32(0)),
				Verification: backupv1.ScheduledVerification{Schedule: "* * * * *", Level: backupv1.VerificationRestore},
				Retention:    backupv1.Retention{Last: new(int32(1))},
			},
		})).To(Succeed())
		restored := awaitBackup(ctx, world.client, name, func(backup *backupv1.TalosEtcdBackup) bool {
			return backup.Status.Verification.Level == backupv1.VerificationRestore
		})
		Expect(restored.Status.Verification.Revision).To(HaveValue(BeNumerically(">", 0)))
		Expect(restored.Status.Verification.Keys).To(HaveValue(BeNumerically(">", 100)))
		var report struct{ Resources map[string]int64 }
		text, _ := vault.file(ctx, restored.Name, "verification-")
		Expect(json.Unmarshal(text, &report)).To(Succeed())
		// Nodes are kept as minions.
		for _, resource := range []string{"namespaces", "minions", "secrets", "serviceaccounts"} {
			Expect(report.Resources).To(HaveKeyWithValue(resource, BeNumerically(">", 0)))
		}

		By("deleting the former one")
		Eventually(ctx, func() error {
			return world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(restored), &backupv1.TalosEtcdBackup{})
		}).WithTimeout(timeout).WithPolling(time.Second).Should(MatchError(ContainSubstring("not found")))
		Expect(vault.names(ctx)).NotTo(ContainElement(restored.Name))
		patch(ctx, name, "talosetcdbackupschedule", "often", `{"spec":{"suspend":true,"retention":null}}`)

		By("having one verified when somebody asks")
		kept := awaitBackup(ctx, world.client, name, func(*backupv1.TalosEtcdBackup) bool { return true })
		for _, level := range []backupv1.VerificationLevel{backupv1.VerificationDigest, backupv1.VerificationSnapshot, backupv1.VerificationRestore} {
			kubectl(ctx, name, "annotate", "--overwrite", "talosetcdbackup", kept.Name, backupv1.VerifyAnnotation+"="+string(level)+"/by-hand")
			name := kept.Name
			kept = awaitBackup(ctx, world.client, kept.Namespace, func(backup *backupv1.TalosEtcdBackup) bool {
				return backup.Name == name && backup.Status.Verification.Request == string(level)+"/by-hand" && backup.Status.Verification.Level == level
			})
		}
		expectFromAFollower(ctx, name, kept)

		By("restoring it by hand, as the page says")
		folder := restoreByHand(ctx, vault, kept)

		By("showing the store to an empty management cluster")
		there := newPlace(ctx)
		Expect(there.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
		vault.create(ctx, there.client, name)
		found := awaitBackup(ctx, there.client, name, func(backup *backupv1.TalosEtcdBackup) bool { return backup.Name == kept.Name })
		Expect(found.Annotations).To(HaveKey(backupv1.ImportedAnnotation))
		Expect(found.Status.Snapshot).To(Equal(kept.Status.Snapshot))

		By("replacing a machine that has lost its etcd")
		expectOneVoterReplaced(ctx, folder, name)

		By("bringing etcd back by hand on the machines that are there")
		Expect(workloadClient(ctx, name).Create(ctx, configMap("after"))).To(Succeed())
		bringBackByHand(ctx, folder, name)

		By("beginning the cluster anew by hand once its machines are gone")
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
		beginAnewByHand(ctx, folder, name)

		By("giving the machines back")
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
	}, SpecTimeout(3*longTimeout))
})

// vault is a bucket of an S3 server, and the key that can read what is in it.
type vault struct {
	server *s3server.Server
	bucket string
	key    *age.X25519Identity
}

// newVault starts a server on loopback, where the managers are. It ends with the spec.
func newVault(ctx context.Context, bucket string) *vault {
	GinkgoHelper()
	server, err := s3server.Start(ctx, filepath.Join(world.dir, "s3"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
	Expect(server.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})).To(Succeed())
	key, err := age.GenerateX25519Identity()
	Expect(err).NotTo(HaveOccurred())
	return &vault{server: server, bucket: bucket, key: key}
}

// create makes the store in a namespace, with its Secrets.
func (v *vault) create(ctx context.Context, c ctrlclient.Client, namespace string) {
	GinkgoHelper()
	Expect(c.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.bucket + "-credentials"},
		Data: map[string][]byte{
			backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey), backupv1.CAKey: v.server.CA,
			backupv1.IdentitiesKey: []byte(v.key.String()),
		},
	})).To(Succeed())
	Expect(c.Create(ctx, &backupv1.TalosBackupStore{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.bucket},
		Spec: backupv1.TalosBackupStoreSpec{
			S3: backupv1.S3Store{
				Endpoint: v.server.Endpoint, Bucket: v.bucket, CredentialsSecretName: v.bucket + "-credentials", CASecretName: v.bucket + "-credentials",
			},
			Recipients: []string{v.key.Recipient().String()}, IdentitySecretName: v.bucket + "-credentials",
		},
	})).To(Succeed())
}

// keys are those of all objects.
func (v *vault) keys(ctx context.Context) (keys []string) {
	GinkgoHelper()
	for object := range v.server.ListObjects(ctx, v.bucket, minio.ListObjectsOptions{Recursive: true}) {
		Expect(object.Err).NotTo(HaveOccurred())
		keys = append(keys, object.Key)
	}
	return keys
}

// names are those of all backups.
func (v *vault) names(ctx context.Context) (names []string) {
	GinkgoHelper()
	for _, key := range v.keys(ctx) {
		names = append(names, filepath.Base(filepath.Dir(key)))
	}
	return slices.Compact(names)
}

// file is that of a backup whose name begins so, and its key.
func (v *vault) file(ctx context.Context, backup, name string) (data []byte, key string) {
	GinkgoHelper()
	keys := v.keys(ctx)
	i := slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, "/"+backup+"/"+name) })
	Expect(i).To(BeNumerically(">=", 0), "%s of %s is not among %v", name, backup, keys)
	object, err := v.server.GetObject(ctx, v.bucket, keys[i], minio.GetObjectOptions{})
	Expect(err).NotTo(HaveOccurred())
	data, err = io.ReadAll(object)
	Expect(err).NotTo(HaveOccurred())
	return data, keys[i]
}

// awaitBackup waits for a backup that is ready, and that a caller wants.
func awaitBackup(ctx context.Context, c ctrlclient.Client, namespace string, wanted func(*backupv1.TalosEtcdBackup) bool) (found *backupv1.TalosEtcdBackup) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		list := &backupv1.TalosEtcdBackupList{}
		g.Expect(c.List(ctx, list, ctrlclient.InNamespace(namespace))).To(Succeed())
		i := slices.IndexFunc(list.Items, func(backup backupv1.TalosEtcdBackup) bool {
			return backup.DeletionTimestamp.IsZero() && conditions.IsTrue(&backup, backupv1.BackupReadyCondition) && wanted(&backup)
		})
		g.Expect(i).To(BeNumerically(">=", 0), "%+v", list.Items)
		found = &list.Items[i]
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	return found
}

// expectFromAFollower expects that the leader of etcd has not given a snapshot.
func expectFromAFollower(ctx context.Context, name string, backup *backupv1.TalosEtcdBackup) {
	GinkgoHelper()
	for _, machine := range machinesOf(ctx, name) {
		if machine.Name != backup.Status.Snapshot.MachineName {
			continue
		}
		status, err := talosOf(ctx, name, addressOf(machine)).EtcdStatus(ctx)
		Expect(err).NotTo(HaveOccurred())
		member := status.GetMessages()[0].GetMemberStatus()
		Expect(member.GetLeader()).NotTo(Equal(member.GetMemberId()))
		return
	}
	Fail("the Machine that has given the snapshot is gone")
}
