package e2e

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// backUp has a schedule make a backup of a cluster, restores it in the manager's Pod and then
// to the cluster, has the next one take its place, and deletes that with its data.
func backUp(ctx context.Context, name string) {
	GinkgoHelper()
	const backups = "backups"
	// The manager is in a Pod: it reaches this machine by its address in the network of kind.
	server, err := s3server.StartAt(ctx, filepath.Join(world.dir, "s3"), world.nodes.Network.Gateway.String())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
	endpoint, err := url.Parse(server.Endpoint)
	Expect(err).NotTo(HaveOccurred())
	port, err := strconv.Atoi(endpoint.Port())
	Expect(err).NotTo(HaveOccurred())
	allow(ctx, "capt-backup-system", port)
	Expect(server.MakeBucket(ctx, backups, minio.MakeBucketOptions{})).To(Succeed())
	meta := metav1.ObjectMeta{Namespace: name, Name: backups}
	step(ctx, name+": a backup made by a schedule", func(ctx context.Context) string {
		for _, object := range []client.Object{
			&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{
				backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey), backupv1.CAKey: server.CA,
			}},
			&backupv1.TalosBackupStore{ObjectMeta: meta, Spec: backupv1.TalosBackupStoreSpec{
				S3: backupv1.S3Store{Endpoint: server.Endpoint, Bucket: backups, CredentialsSecretName: backups, CASecretName: backups},
			}},
			&backupv1.TalosEtcdBackupSchedule{ObjectMeta: meta, Spec: backupv1.TalosEtcdBackupScheduleSpec{
				MatchAll: new(true), StoreName: backups, Schedule: "0 0 29 2 *",
				Backup: backupv1.ScheduledBackup{Secrets: backupv1.SecretsExclude}, Retention: backupv1.Retention{Last: new(int32(1))},
			}},
		} {
			Expect(world.client.Create(ctx, object)).To(Succeed())
		}
		kubectl(ctx, name, "annotate", "talosetcdbackupschedule", backups, backupv1.RunAnnotation+"=first")
		return fmt.Sprintf("%d KiB stored", *awaitBackup(ctx, name, "").Status.Snapshot.StoredBytes>>10)
	})
	step(ctx, name+": the backup restored by the manager", func(ctx context.Context) string {
		backup := awaitBackup(ctx, name, "")
		kubectl(ctx, name, "annotate", "talosetcdbackup", backup.Name, backupv1.VerifyAnnotation+"=Restore")
		verified := awaitBackup(ctx, name, backupv1.VerificationRestore)
		return fmt.Sprintf("%d keys", *verified.Status.Verification.Keys)
	})
	restoreEtcd(ctx, name)
	step(ctx, name+": the next backup takes its place", func(ctx context.Context) string {
		before := awaitBackup(ctx, name, "")
		// One that was verified stays until the next one is, at the same level.
		kubectl(ctx, name, "annotate", "--overwrite", "talosetcdbackupschedule", backups, backupv1.RunAnnotation+"=second")
		list := &backupv1.TalosEtcdBackupList{}
		Eventually(ctx, func(g Gomega) {
			g.Expect(world.client.List(ctx, list, client.InNamespace(name))).To(Succeed())
			g.Expect(list.Items).To(And(HaveLen(2), HaveEach(WithTransform(func(backup backupv1.TalosEtcdBackup) bool {
				return conditions.IsTrue(&backup, backupv1.BackupReadyCondition)
			}, BeTrue()))))
		}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
		kubectl(ctx, name, "annotate", "--overwrite", "talosetcdbackup", "--all", backupv1.VerifyAnnotation+"=Restore")
		Eventually(ctx, func() error {
			return world.client.Get(ctx, client.ObjectKeyFromObject(before), &backupv1.TalosEtcdBackup{})
		}).
			WithTimeout(timeout).WithPolling(interval).Should(MatchError(ContainSubstring("not found")))
		awaitBackup(ctx, name, "")
		return "one is left"
	})
	step(ctx, name+": the backup deleted with its data", func(ctx context.Context) string {
		kubectl(ctx, name, "delete", "talosetcdbackupschedule/"+backups)
		backup := awaitBackup(ctx, name, "")
		kubectl(ctx, name, "patch", "talosetcdbackup", backup.Name, "--type=merge", "--patch", `{"spec":{"deletionPolicy":"Delete"}}`)
		kubectl(ctx, name, "delete", "talosetcdbackup/"+backup.Name, "--timeout="+timeout.String())
		for object := range server.ListObjects(ctx, backups, minio.ListObjectsOptions{Recursive: true}) {
			Expect(object.Err).NotTo(HaveOccurred())
			Fail("the bucket still has " + object.Key)
		}
		// What a user has brought, nobody else takes away.
		kubectl(ctx, name, "delete", "talosbackupstore/"+backups, "secret/"+backups)
		return "nothing stored"
	})
}

// restoreEtcd gives up what the etcd of a cluster has, and restores its only backup, on the
// same machines.
func restoreEtcd(ctx context.Context, name string) {
	GinkgoHelper()
	step(ctx, name+": etcd restored from the backup, in place", func(ctx context.Context) string {
		late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "late"}}
		Expect(workloadClient(ctx, name).Create(ctx, late)).To(Succeed())
		machines, backup := machinesOf(ctx, name), awaitBackup(ctx, name, "")
		restore := &backupv1.TalosEtcdRestore{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "back"},
			Spec: backupv1.TalosEtcdRestoreSpec{
				ClusterName: name, BackupName: backup.Name, Confirm: name, QuorumPolicy: backupv1.QuorumDiscard,
			},
		}
		Expect(world.client.Create(ctx, restore)).To(Succeed())
		Eventually(ctx, func(g Gomega) {
			g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(restore), restore)).To(Succeed())
			g.Expect(conditions.IsTrue(restore, backupv1.RestoreReadyCondition)).To(BeTrue(), conditions.GetMessage(restore, backupv1.RestoreReadyCondition))
		}).WithTimeout(longTimeout).WithPolling(interval).Should(Succeed())
		awaitWhole(ctx, name, 3, 3)
		Expect(uids(machinesOf(ctx, name))).To(Equal(uids(machines)))
		workload := workloadClient(ctx, name)
		Expect(workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: survivor}, &corev1.ConfigMap{})).To(Succeed())
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(late), late)).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
		kubectl(ctx, name, "delete", "talosetcdrestore/"+restore.Name)
		return fmt.Sprintf("the same Machines, without what came later, in attempt %d", *restore.Status.Attempt)
	})
}

// awaitBackup waits for the only backup of a namespace to be ready, and verified at a level;
// empty means at any.
func awaitBackup(ctx context.Context, name string, level backupv1.VerificationLevel) *backupv1.TalosEtcdBackup {
	GinkgoHelper()
	list := &backupv1.TalosEtcdBackupList{}
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.List(ctx, list, client.InNamespace(name))).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
		backup := &list.Items[0]
		g.Expect(conditions.IsTrue(backup, backupv1.BackupReadyCondition)).To(BeTrue(), conditions.GetMessage(backup, backupv1.BackupReadyCondition))
		if level != "" {
			g.Expect(backup.Status.Verification.Level).To(Equal(level))
		}
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
	return &list.Items[0]
}
