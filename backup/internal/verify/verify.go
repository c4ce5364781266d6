// Package verify looks into backups, further than that what was stored is still there: that
// etcd finds its data in order, and that an etcd serves it.
package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"filippo.io/age"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
)

// ErrDiffers says that what an etcd serves is not what the snapshot has.
var ErrDiffers = errors.New("etcd serves something else than the snapshot has")

const (
	// snapshotFile and dataFolder are in the scratch folder.
	snapshotFile = "snapshot.db"
	dataFolder   = "data"
	// peerURL is that of a member that has no peers.
	peerURL = "https://127.0.0.1:2380"
)

// Report is what was found. It is stored beside the backup, and holds nothing secret.
type Report struct {
	// Level is how far was looked.
	Level backupv1.VerificationLevel `json:"level"`
	// Etcd is the release of etcd that has looked.
	Etcd string `json:"etcd,omitempty"`
	// Hash is etcd's own of the database, Revision its last revision, Keys how many keys it
	// has, and Bytes its size.
	Hash     uint32 `json:"hash,omitempty"`
	Revision int64  `json:"revision,omitempty"`
	Keys     int64  `json:"keys,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"`
	// Resources are how many keys each resource of Kubernetes has.
	Resources map[string]int64 `json:"resources,omitempty"`
}

// Verifier verifies backups.
type Verifier struct {
	// Scratch is where they are unpacked.
	Scratch *scratch.Space
	// Programs are those of etcd.
	Programs etcdtool.Programs
}

// Verify verifies a backup at a level. Beyond Digest it needs the private key of one of its
// recipients, where it has any. It fails as archive.Archive.Check and Restore do, and with
// etcdtool.ErrSnapshot and ErrDiffers where etcd finds fault with it; with scratch.ErrShort
// and etcdtool.ErrRelease where it cannot be verified here.
func (v *Verifier) Verify(ctx context.Context, level backupv1.VerificationLevel, in *archive.Archive, manifest *archive.Manifest, identities []age.Identity) (*Report, error) {
	if level == backupv1.VerificationDigest {
		return &Report{Level: level}, in.Check(ctx, manifest)
	}
	release, err := v.Programs.For(manifest.EtcdVersion)
	if err != nil {
		return nil, err
	}
	// The database, and where it is restored the data that is made of it.
	folder, leave, err := v.Scratch.Take(ctx, 2*manifest.Data.PlainBytes)
	if err != nil {
		return nil, err
	}
	defer leave()
	snapshot := filepath.Join(folder, snapshotFile)
	if err := in.Unpack(ctx, manifest, snapshot, identities...); err != nil {
		return nil, err
	}
	if err := in.CheckSecrets(ctx, manifest); err != nil {
		return nil, err
	}
	status, err := release.Status(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	report := &Report{Level: level, Etcd: release.Name, Hash: status.Hash, Revision: status.Revision, Keys: status.TotalKey, Bytes: status.TotalSize}
	if level != backupv1.VerificationRestore {
		return report, nil
	}
	facts, err := serve(ctx, release, folder, status)
	if err != nil {
		return nil, err
	}
	report.Keys, report.Resources = facts.Keys, facts.Resources

	return report, nil
}

// serve restores the snapshot into a new etcd, and compares what that serves, which it
// returns.
func serve(ctx context.Context, release *etcdtool.Release, folder string, status *etcdtool.Status) (*etcdtool.Facts, error) {
	data := filepath.Join(folder, dataFolder)
	if err := release.Restore(ctx, filepath.Join(folder, snapshotFile), etcdtool.RestoreOptions{DataDir: data, Name: "verify", PeerURL: peerURL}); err != nil {
		return nil, err
	}
	server, err := release.Serve(ctx, data, folder)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	facts, err := server.Facts(ctx)
	if err != nil {
		return nil, err
	}
	if !facts.Match(status) {
		return nil, fmt.Errorf("%w: revision %d with %d keys, and not %d with %d", ErrDiffers, facts.Revision, facts.Keys, status.Revision, status.TotalKey)
	}

	return facts, nil
}
