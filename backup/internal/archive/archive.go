package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"time"

	"filippo.io/age"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// cleanUpTimeout is how long the files of an attempt that has failed are tried to be
// deleted. What is left is collected later.
const cleanUpTimeout = 30 * time.Second

// Store is where the files are. See store.Store.
type Store interface {
	Upload(ctx context.Context, key, attempt string, data io.Reader) (store.Object, error)
	Put(ctx context.Context, key string, data []byte) (store.Object, error)
	Get(ctx context.Context, key, versionID string) (io.ReadCloser, store.Object, error)
	GetSmall(ctx context.Context, key, versionID string, limit int64) ([]byte, store.Object, error)
	List(ctx context.Context, prefix string) iter.Seq2[store.Object, error]
	Delete(ctx context.Context, key, versionID string) error
	Unfinished(ctx context.Context, prefix string) ([]store.Unfinished, error)
	Abort(ctx context.Context, key, id string) error
}

// Archive is the backups of one cluster. It reads and deletes nothing of any other one.
type Archive struct {
	store   Store
	prefix  string
	cluster Cluster
	folder  string
}

// Of returns the archive of a cluster in a store, below a prefix that the store has.
func Of(cluster Cluster, in Store, prefix string) (*Archive, error) {
	folder, err := cluster.folder(prefix)
	if err != nil {
		return nil, err
	}

	return &Archive{store: in, prefix: prefix, cluster: cluster, folder: folder}, nil
}

func (a *Archive) key(backup, file string) (string, error) {
	if !segment.MatchString(backup) {
		return "", fmt.Errorf("%q cannot be a folder of a store", backup)
	}

	return path.Join(a.folder, backup, file), nil
}

// Contents is what goes into a backup.
type Contents struct {
	// Snapshot is the stream of a node. It is closed.
	Snapshot io.ReadCloser
	// Secrets is the machine secrets bundle; empty means that it is not stored.
	Secrets []byte
	// Recipients are who can read both; without any, the snapshot is stored in the clear,
	// and secrets are refused.
	Recipients []age.Recipient
	// Ended tells the time when all of the snapshot was read.
	Ended func() time.Time
}

// Write stores a backup, and returns its manifest with what was stored. The attempt is a
// name that no other call gives.
//
// It may be called again after any end, once Read has found nothing. If a backup of the same
// name and UID gets there first, that is returned; one with another UID is an error with the
// reason store.Exists. What a call stores before it fails is deleted where that can be and no
// manifest can name it.
func (a *Archive) Write(ctx context.Context, draft Manifest, attempt string, contents Contents) (*Manifest, error) {
	defer func() { _ = contents.Snapshot.Close() }()
	if len(contents.Secrets) > 0 && len(contents.Recipients) == 0 {
		return nil, pipeline.ErrNoRecipient
	}
	draft.Format, draft.Cluster, draft.Codec = Format, a.cluster, CodecZstd
	if len(contents.Recipients) > 0 {
		draft.Codec = CodecZstdAge
	}
	written, err := a.write(ctx, draft, attempt, contents)
	if err == nil {
		return written, nil
	}
	// Another manager may have been faster.
	if store.ReasonOf(err) == store.Exists {
		if found, readErr := a.Read(ctx, draft.Name); readErr == nil && found.UID == draft.UID {
			return found, nil
		}
	}

	return nil, err
}

func (a *Archive) write(ctx context.Context, manifest Manifest, attempt string, contents Contents) (_ *Manifest, err error) {
	var stored []store.Object
	mayBeBackup := false
	defer func() {
		if err != nil && !mayBeBackup {
			err = errors.Join(err, a.deleteAll(ctx, stored))
		}
	}()
	data, err := a.writeData(ctx, &manifest, attempt, contents)
	if err != nil {
		return nil, err
	}
	stored = append(stored, data)
	if len(contents.Secrets) > 0 {
		secrets, err := a.writeSecrets(ctx, &manifest, attempt, contents)
		if err != nil {
			return nil, err
		}
		stored = append(stored, secrets)
	}
	manifest.Ended = contents.Ended().UTC()
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the manifest of backup %s: %w", manifest.Name, err)
	}
	key, err := a.key(manifest.Name, manifestFile)
	if err != nil {
		return nil, err
	}
	// A manifest whose answer was lost may be there, and needs its files: they are left to
	// Collect, but where somebody else's manifest is known to be there.
	if _, err = a.store.Put(ctx, key, append(text, '\n')); err != nil {
		mayBeBackup = store.ReasonOf(err) != store.Exists
		return nil, err
	}

	return &manifest, nil
}

// writeData stores the snapshot while it comes.
func (a *Archive) writeData(ctx context.Context, manifest *Manifest, attempt string, contents Contents) (store.Object, error) {
	manifest.Data.Name = dataFile + attempt
	key, err := a.key(manifest.Name, manifest.Data.Name)
	if err != nil {
		return store.Object{}, err
	}
	out, in := io.Pipe()
	var sums pipeline.Sums
	var encodeErr error
	encoded := make(chan struct{})
	go func() {
		defer close(encoded)
		sums, encodeErr = pipeline.Encode(contents.Snapshot, in, contents.Recipients...)
		_ = in.CloseWithError(encodeErr)
	}()
	object, err := a.store.Upload(ctx, key, attempt, out)
	// A node that is silent is not waited for when its store has failed.
	_ = out.CloseWithError(io.ErrClosedPipe)
	if err != nil {
		_ = contents.Snapshot.Close()
	}
	<-encoded
	if err != nil {
		return store.Object{}, err
	}
	if encodeErr != nil {
		return store.Object{}, errors.Join(encodeErr, a.deleteAll(ctx, []store.Object{object}))
	}
	if object.Bytes != sums.StoredBytes {
		return store.Object{}, errors.Join(fmt.Errorf("%w: the store has %d bytes of %d", pipeline.ErrStored, object.Bytes, sums.StoredBytes), a.deleteAll(ctx, []store.Object{object}))
	}
	manifest.Data = File{
		Name: manifest.Data.Name, VersionID: object.VersionID,
		StoredBytes: sums.StoredBytes, StoredSHA256: sums.StoredSHA256, PlainBytes: sums.PlainBytes, PlainSHA256: sums.PlainSHA256,
	}

	return object, nil
}

func (a *Archive) writeSecrets(ctx context.Context, manifest *Manifest, attempt string, contents Contents) (store.Object, error) {
	sealed, err := pipeline.Seal(contents.Secrets, contents.Recipients...)
	if err != nil {
		return store.Object{}, err
	}
	file := File{Name: secretsFile + attempt, StoredBytes: int64(len(sealed)), StoredSHA256: pipeline.SHA256(sealed)}
	key, err := a.key(manifest.Name, file.Name)
	if err != nil {
		return store.Object{}, err
	}
	object, err := a.store.Put(ctx, key, sealed)
	if err != nil {
		return store.Object{}, err
	}
	file.VersionID = object.VersionID
	manifest.Secrets = &file

	return object, nil
}

// deleteAll deletes what an attempt has stored in vain, also where its caller is ending.
func (a *Archive) deleteAll(ctx context.Context, objects []store.Object) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	var failed []error
	for _, object := range objects {
		failed = append(failed, a.store.Delete(ctx, object.Key, object.VersionID))
	}

	return errors.Join(failed...)
}

// Read returns the manifest of a backup. An error with the reason store.NotFound says that
// there is no such backup, and ErrManifest that its manifest is another one's.
func (a *Archive) Read(ctx context.Context, backup string) (*Manifest, error) {
	key, err := a.key(backup, manifestFile)
	if err != nil {
		return nil, err
	}
	text, _, err := a.store.GetSmall(ctx, key, "", maxManifest)
	if err != nil {
		return nil, err
	}

	return readManifest(text, place{cluster: a.cluster, backup: backup, file: manifestFile})
}

// Restore writes the snapshot of a backup. It fails as pipeline.Decode does.
func (a *Archive) Restore(ctx context.Context, manifest *Manifest, snapshot io.Writer, identities ...age.Identity) error {
	if manifest.Codec == CodecZstd {
		identities = nil
	} else if len(identities) == 0 {
		return pipeline.ErrIdentity
	}
	stored, err := a.open(ctx, manifest, &manifest.Data)
	if err != nil {
		return err
	}
	defer func() { _ = stored.Close() }()

	return pipeline.Decode(stored, snapshot, manifest.Data.sums(), identities...)
}

// Unpack writes the snapshot of a backup to a new file. It fails as Restore does.
func (a *Archive) Unpack(ctx context.Context, manifest *Manifest, path string, identities ...age.Identity) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // G304: the caller knows the file.
	if err != nil {
		return fmt.Errorf("unpacking the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	return a.Restore(ctx, manifest, file, identities...)
}

// Secrets reads the machine secrets bundle of a backup. It fails as pipeline.Open does.
func (a *Archive) Secrets(ctx context.Context, manifest *Manifest, identities ...age.Identity) ([]byte, error) {
	if manifest.Secrets == nil {
		return nil, fmt.Errorf("backup %s has no secrets", manifest.Name)
	}
	stored, err := a.open(ctx, manifest, manifest.Secrets)
	if err != nil {
		return nil, err
	}
	sealed, err := io.ReadAll(io.LimitReader(stored, maxSecrets))
	_ = stored.Close()
	if err != nil {
		return nil, err
	}
	if pipeline.SHA256(sealed) != manifest.Secrets.StoredSHA256 {
		return nil, pipeline.ErrStored
	}

	return pipeline.Open(sealed, identities...)
}

// Check reads a backup back, and compares all of it with its manifest. It needs no key,
// and says nothing about what is inside.
func (a *Archive) Check(ctx context.Context, manifest *Manifest) error {
	if err := a.checkFile(ctx, manifest, &manifest.Data); err != nil {
		return err
	}

	return a.CheckSecrets(ctx, manifest)
}

// CheckSecrets reads the secrets of a backup back, if it has any, and compares them with its
// manifest. Restore compares the snapshot.
func (a *Archive) CheckSecrets(ctx context.Context, manifest *Manifest) error {
	if manifest.Secrets == nil {
		return nil
	}

	return a.checkFile(ctx, manifest, manifest.Secrets)
}

func (a *Archive) checkFile(ctx context.Context, manifest *Manifest, file *File) error {
	stored, err := a.open(ctx, manifest, file)
	if err != nil {
		return err
	}
	// One byte more than there is tells that there is more: that need not have an end.
	sum, size, err := pipeline.Sum(io.LimitReader(stored, file.StoredBytes+1))
	_ = stored.Close()
	if err != nil {
		return err
	}
	if sum != file.StoredSHA256 || size != file.StoredBytes {
		return fmt.Errorf("%w: %s", pipeline.ErrStored, file.Name)
	}

	return nil
}

// open begins to read a file that a manifest names. If it is not there, that does not pass. A
// copy of a bucket has other versions than the manifest says, so that the newest one is read
// then: whichever it is, its digest decides.
func (a *Archive) open(ctx context.Context, manifest *Manifest, file *File) (io.ReadCloser, error) {
	key, err := a.key(manifest.Name, file.Name)
	if err != nil {
		return nil, err
	}
	stored, _, err := a.store.Get(ctx, key, file.VersionID)
	// Some servers say that a version is not there, and others that it is not one of theirs.
	if reason := store.ReasonOf(err); reason == store.NotFound || reason == store.Rejected {
		stored, _, err = a.store.Get(ctx, key, "")
	}
	if store.ReasonOf(err) == store.NotFound {
		return nil, fmt.Errorf("%w: %s is gone", pipeline.ErrStored, file.Name)
	}

	return stored, err
}

// Verified stores what a verification has found.
func (a *Archive) Verified(ctx context.Context, backup string, at time.Time, found any) error {
	text, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		return fmt.Errorf("writing what was verified of backup %s: %w", backup, err)
	}
	key, err := a.key(backup, verificationName(at))
	if err != nil {
		return err
	}
	_, err = a.store.Put(ctx, key, append(text, '\n'))

	return err
}
