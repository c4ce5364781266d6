package controllers

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

const (
	// maxNamed is how many backups a message names, and maxWhy how much it says of each, in bytes.
	maxNamed = 3
	maxWhy   = 512
)

// reconcileImport makes objects for the backups of this namespace that the store has and
// nobody knows: once for a store, or at each check, as it says. It takes only so long at a time:
// what is imported by then is known at the next check, which goes on behind it.
func (r *StoreReconciler) reconcileImport(ctx context.Context, s *storeScope) error {
	_, done := s.store.Annotations[backupv1.ImportedAnnotation]
	if s.opened == nil || !s.isImportDue(done) {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, r.importTimeout)
	defer cancel()
	imported, failed, err := r.importAll(within, s)
	if imported > 0 {
		r.Recorder.Eventf(s.store, nil, corev1.EventTypeNormal, backupv1.ImportedReason, "Import", "%d backups were found in the store", imported)
	}
	switch {
	case err == nil:
		s.imported = importedOf(failed)
	case ctx.Err() == nil && within.Err() != nil:
		s.imported = condition.Falsef(backupv1.ImportFailedReason, "it was not done within %s, and goes on with the next check", r.importTimeout)
		return nil
	case store.ReasonOf(err) != "":
		s.imported = condition.False(backupv1.ImportFailedReason, err.Error())
		s.next = min(s.next, recheckInterval)
		return nil
	default:
		return err
	}
	if failed.count > 0 || done {
		return nil
	}
	status, written := s.store.Status, s.before.DeepCopy()
	if err := annotate(ctx, r.Client, written, map[string]string{backupv1.ImportedAnnotation: ""}); err != nil {
		return err
	}
	s.before, s.store = written, written.DeepCopy()
	s.store.Status = status

	return nil
}

// isImportDue reports whether backups are to be imported, which was done or not. What could not be
// imported is tried again with the next check.
func (s *storeScope) isImportDue(done bool) bool {
	policy := s.store.Spec.ImportPolicy
	if policy == backupv1.ImportNever {
		return false
	}

	return !done && !conditions.IsFalse(s.before, backupv1.ImportedCondition) || s.checked && (!done || policy == backupv1.ImportAlways)
}

// refused are backups that cannot be imported: as many as somebody has put there, so that only
// the first ones are kept.
type refused struct {
	count int
	first []string
}

func (r *refused) add(backup archive.Found, why string) {
	r.count++
	if len(r.first) < maxNamed {
		r.first = append(r.first, fmt.Sprintf("%s of Cluster %s: %s", backup.Name, backup.Cluster.Name, condition.Cut(why, maxWhy)))
	}
}

// importAll makes the objects of all backups of the namespace that have none. It counts them,
// and says of which backups none can be made, and why.
func (r *StoreReconciler) importAll(ctx context.Context, s *storeScope) (imported int, failed refused, err error) {
	known := map[string]*backupv1.TalosEtcdBackup{}
	for i := range s.backups {
		known[s.backups[i].Name] = &s.backups[i]
	}
	for found, err := range archive.All(ctx, s.opened, s.opened.Prefix, s.store.Namespace) {
		if err != nil {
			return imported, failed, err
		}
		if there := known[found.Name]; there != nil {
			if !isOf(there, found.Cluster) {
				failed.add(found, "a TalosEtcdBackup of another Cluster has that name")
			}
			continue
		}
		made, err := r.importBackup(ctx, s, found)
		switch {
		case isRefusal(err):
			failed.add(found, err.Error())
		case err != nil:
			return imported, failed, err
		default:
			known[made.Name] = made
			imported++
		}
	}

	return imported, failed, nil
}

// readFor reads the manifest of a backup to import. One that does not come in time is refused: a
// later one may.
func (r *StoreReconciler) readFor(ctx context.Context, in *archive.Archive, backup string) (*archive.Manifest, error) {
	within, cancel := context.WithTimeout(ctx, r.readTimeout)
	defer cancel()
	manifest, err := in.Read(within, backup)
	if err == nil {
		return manifest, nil
	}
	if within.Err() != nil {
		err = fmt.Errorf("its manifest was not read within %s", r.readTimeout)
	}

	return nil, &refusal{err}
}

// isOf reports whether a backup may be of a cluster.
func isOf(backup *backupv1.TalosEtcdBackup, cluster archive.Cluster) bool {
	return backup.Spec.ClusterName == cluster.Name && mayBeOf(backup, cluster.Identity)
}

// importBackup makes the object of a backup that was found.
func (r *StoreReconciler) importBackup(ctx context.Context, s *storeScope, found archive.Found) (*backupv1.TalosEtcdBackup, error) {
	in, err := archive.Of(found.Cluster, s.opened, s.opened.Prefix)
	if err != nil {
		return nil, &refusal{err}
	}
	manifest, err := r.readFor(ctx, in, found.Name)
	if err != nil {
		return nil, err
	}
	made := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.store.Namespace, Name: found.Name, Annotations: map[string]string{
			backupv1.IDAnnotation: manifest.UID, backupv1.ClusterIdentityAnnotation: found.Cluster.Identity, backupv1.ImportedAnnotation: "",
		}},
		Spec: backupv1.TalosEtcdBackupSpec{ClusterName: found.Cluster.Name, StoreName: s.store.Name, Secrets: secretsOf(manifest), DeletionPolicy: backupv1.DeletionRetain},
	}
	if manifest.Schedule != "" {
		made.Labels = map[string]string{backupv1.ScheduleNameLabel: manifest.Schedule}
	}
	objects.WatchAs(s.store, made)
	err = r.Client.Create(ctx, made)
	switch {
	case apierrors.IsAlreadyExists(err):
		return made, nil
	case objects.IsRefused(err):
		return nil, &refusal{err}
	case err != nil:
		return nil, fmt.Errorf("creating TalosEtcdBackup %s: %w", made.Name, err)
	}

	return made, nil
}

// refusal is why one backup cannot be imported, which keeps no other one from being.
type refusal struct{ error }

func isRefusal(err error) bool {
	_, is := err.(*refusal) //nolint:errorlint // It is never wrapped.

	return is
}

func importedOf(failed refused) condition.Finding {
	if failed.count == 0 {
		return condition.True(backupv1.ImportedReason, "")
	}
	more := ""
	if rest := failed.count - len(failed.first); rest > 0 {
		more = fmt.Sprintf("; and %d more", rest)
	}

	return condition.False(backupv1.ImportFailedReason, strings.Join(failed.first, "; ")+more)
}

func secretsOf(manifest *archive.Manifest) backupv1.SecretsPolicy {
	if manifest.Secrets != nil {
		return backupv1.SecretsInclude
	}

	return backupv1.SecretsExclude
}
