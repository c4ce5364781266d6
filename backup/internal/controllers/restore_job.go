package controllers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"

	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// errOtherCluster says that a backup is not of the cluster that it is to be restored to.
var errOtherCluster = errors.New("the backup is of another cluster")

// RestoreResult is how a job of a restore has ended.
type RestoreResult struct {
	// Database is what was made of the backup; nil when nothing was.
	Database *restore.Database
	// EtcdVersion is the version of etcd that the backup is of.
	EtcdVersion string
	// Bundle is the secrets bundle of the backup, where a new cluster is to have it.
	Bundle *secrets.Bundle
	// AttemptID and Machine say for which attempt which Machine's node was sent the database;
	// empty when it was only made to see whether it can be.
	AttemptID, Machine string
	// Err is what went wrong.
	Err error
}

// restoreWork makes the database of a backup, and sends it.
type restoreWork struct {
	maker    DatabaseMaker
	archive  *archive.Archive
	name, id string
	// sha256 is the digest of the snapshot as the backup knows it; empty when it does not.
	sha256     string
	identities []age.Identity
	// seen is the latest revision that clients of the cluster are known to have seen.
	seen int64
	// bundle is that of the cluster; nil when the cluster is to have that of the backup.
	bundle *secrets.Bundle
	// attemptID and machine are those of the result.
	attemptID, machine string
	// send sends a node the database; nil when it is only made.
	send func(ctx context.Context, database io.Reader) error
}

// step is what the work counts as.
func (w *restoreWork) step() metrics.Step {
	if w.send != nil {
		return metrics.StepSend
	}

	return metrics.StepCheckRestore
}

func (w *restoreWork) run(ctx context.Context) RestoreResult {
	result := RestoreResult{AttemptID: w.attemptID, Machine: w.machine}
	manifest, err := w.archive.Read(ctx, w.name)
	if err == nil && manifest.UID != w.id {
		err = store.NewError(store.Exists, "reading backup "+w.name, errors.New("the store has another backup of that name"))
	}
	if err == nil && w.sha256 != "" && manifest.Data.PlainSHA256 != w.sha256 {
		err = fmt.Errorf("%w: the snapshot in the store is not the one that the backup was made of", pipeline.ErrStored)
	}
	if err != nil {
		result.Err = err
		return result
	}
	result.EtcdVersion = manifest.EtcdVersion
	if w.send == nil {
		if result.Bundle, result.Err = w.compare(ctx, manifest); result.Err != nil {
			return result
		}
	}
	var use func(io.Reader) error
	if w.send != nil {
		use = func(database io.Reader) error { return w.send(ctx, database) }
	}
	result.Database, result.Err = w.maker.Make(ctx, w.archive, manifest, w.identities, w.seen, use)

	return result
}

// compare compares the secrets of the backup with those of the cluster: with other ones the
// API server could not read what it has stored. It returns them for a cluster that has none.
func (w *restoreWork) compare(ctx context.Context, manifest *archive.Manifest) (*secrets.Bundle, error) {
	if manifest.Secrets == nil && w.bundle != nil {
		return nil, nil //nolint:nilnil // There is nothing to compare but the identity, which is in the place of the backup.
	}
	if manifest.Secrets == nil {
		return nil, fmt.Errorf("%w: it has no secrets of the cluster, without which no other cluster can be made of it", errOtherCluster)
	}
	raw, err := w.archive.Secrets(ctx, manifest, w.identities...)
	if err != nil {
		return nil, err
	}
	stored, err := secrets.ParseBundle(raw)
	if err != nil {
		return nil, err
	}
	if w.bundle == nil {
		return stored, nil
	}
	its, ours := stored.Machinery(), w.bundle.Machinery()
	for _, pair := range []struct {
		name      string
		its, ours []byte
	}{
		{"CA of Kubernetes", its.Certs.K8s.Crt, ours.Certs.K8s.Crt},
		{"key of service accounts", its.Certs.K8sServiceAccount.Key, ours.Certs.K8sServiceAccount.Key},
		{"key that encrypts Secrets (secretbox)", []byte(its.Secrets.SecretboxEncryptionSecret), []byte(ours.Secrets.SecretboxEncryptionSecret)},
		{"key that encrypts Secrets (AES-CBC)", []byte(its.Secrets.AESCBCEncryptionSecret), []byte(ours.Secrets.AESCBCEncryptionSecret)},
	} {
		if !bytes.Equal(pair.its, pair.ours) {
			return nil, fmt.Errorf("%w, or the cluster has other keys by now: they differ in the %s", errOtherCluster, pair.name)
		}
	}

	return nil, nil //nolint:nilnil // The cluster has its own.
}
