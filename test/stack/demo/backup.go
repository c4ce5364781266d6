package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// vault is the store of backups, its bucket, its Secret and its schedule.
const vault = "vault"

// backupSteps back the etcd of the cluster up, and delete the backup with its data.
func (s *Scenario) backupSteps() []step {
	return []step{
		{"backup", "a backup of etcd to be in the store, and read back", s.whereThereIsAStore(s.backUp)},
		{"no backup", "the backup to be gone with its data", s.whereThereIsAStore(s.forgetBackup)},
	}
}

func (s *Scenario) whereThereIsAStore(do func(context.Context) (string, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		if s.StoreHost == "" {
			return "not applicable", nil
		}
		return do(ctx)
	}
}

// startStore starts an S3 server with a bucket.
func (s *Scenario) startStore(ctx context.Context) (err error) {
	folder := filepath.Join(s.Dir, "s3")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making the folder of the S3 server: %w", err)
	}
	if s.store, err = s3server.StartAt(ctx, folder, s.StoreHost); err != nil {
		return err
	}
	if err := s.store.MakeBucket(ctx, vault, minio.MakeBucketOptions{}); err != nil {
		return fmt.Errorf("making the bucket: %w", err)
	}
	return nil
}

// stopStore stops it, where it runs.
func (s *Scenario) stopStore() error {
	if s.store == nil {
		return nil
	}
	return s.store.Stop()
}

// backUp makes a store and a schedule that is asked for a backup now, waits for that, and
// lists it.
func (s *Scenario) backUp(ctx context.Context) (string, error) {
	if err := s.startStore(ctx); err != nil {
		return "", err
	}
	meta := metav1.ObjectMeta{Namespace: s.Cluster, Name: vault}
	version := backupv1.GroupVersion.String()
	for _, object := range []any{
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta, Data: map[string][]byte{
			backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey), backupv1.CAKey: s.store.CA,
		}},
		&backupv1.TalosBackupStore{TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: backupv1.TalosBackupStoreKind}, ObjectMeta: meta, Spec: backupv1.TalosBackupStoreSpec{
			S3: backupv1.S3Store{Endpoint: s.store.Endpoint, Bucket: vault, CredentialsSecretName: vault, CASecretName: vault},
		}},
		&backupv1.TalosEtcdBackupSchedule{
			TypeMeta:   metav1.TypeMeta{APIVersion: version, Kind: backupv1.TalosEtcdBackupScheduleKind},
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Cluster, Name: vault, Annotations: map[string]string{backupv1.RunAnnotation: "now"}},
			Spec: backupv1.TalosEtcdBackupScheduleSpec{
				MatchAll: new(true), StoreName: vault, Schedule: "0 2 * * *", Suspend: new(true),
				// Nobody has a key yet with whom the secrets of the cluster would be safe.
				Backup: backupv1.ScheduledBackup{Secrets: backupv1.SecretsExclude, DeletionPolicy: backupv1.DeletionDelete},
			},
		},
	} {
		manifest, err := yaml.Marshal(object)
		if err != nil {
			return "", fmt.Errorf("encoding the backup: %w", err)
		}
		if err := s.apply(ctx, manifest); err != nil {
			return "", err
		}
	}
	backups := &backupv1.TalosEtcdBackupList{}
	err := s.poll(ctx, func(ctx context.Context) error {
		if err := s.client.List(ctx, backups, client.InNamespace(s.Cluster)); err != nil {
			return err
		}
		if len(backups.Items) != 1 {
			return fmt.Errorf("there are %d TalosEtcdBackups", len(backups.Items))
		}
		if backup := &backups.Items[0]; !conditions.IsTrue(backup, backupv1.BackupReadyCondition) {
			return fmt.Errorf("TalosEtcdBackup %s: %s", backup.Name, message(backup, backupv1.BackupReadyCondition))
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	listed, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "get", "talosetcdbackups")
	for line := range strings.Lines(string(listed)) {
		fmt.Fprintf(s.Output, "    %s", line)
	}
	return fmt.Sprintf("%d KiB stored, verified", *backups.Items[0].Status.Snapshot.StoredBytes>>10), err
}

// forgetBackup deletes the schedule and the backup, looks into the bucket, and deletes the rest.
func (s *Scenario) forgetBackup(ctx context.Context) (string, error) {
	if _, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "delete", "talosetcdbackupschedule/"+vault); err != nil {
		return "", err
	}
	if _, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "delete", "talosetcdbackups", "--all"); err != nil {
		return "", err
	}
	for object := range s.store.ListObjects(ctx, vault, minio.ListObjectsOptions{Recursive: true}) {
		return "", errors.Join(fmt.Errorf("the bucket still has %s", object.Key), object.Err)
	}
	_, err := s.Management.kubectl(ctx, "--namespace", s.Cluster, "delete", "talosbackupstore/"+vault, "secret/"+vault)
	return "nothing stored", err
}
