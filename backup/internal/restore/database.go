package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"filippo.io/age"

	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
)

const (
	// Bump is by how much the revision of etcd is raised beyond the last one that is known, so
	// that no client that has seen a later one sees it go back. etcd's documentation on disaster
	// recovery counts with it for a week of 1500 writes a second.
	Bump = 1_000_000_000
	// logBytes are those of the log that etcd begins with.
	logBytes = 64 << 20

	snapshotFile = "snapshot.db"
	dataFolder   = "data"
	// peerURL is that of the member that the database is made for. Talos makes its own of it.
	peerURL = "https://127.0.0.1:2380"
)

// Maker makes databases of backups.
type Maker struct {
	// Scratch is where it does.
	Scratch *scratch.Space
	// Programs are those of etcd.
	Programs etcdtool.Programs
}

// Database is what was made of a backup.
type Database struct {
	// Revision is the revision of etcd from which it goes on.
	Revision int64
}

// Make unpacks a backup, and makes the database of it that a node is sent: its revision is
// Bump after its own and the one that clients have seen, whichever is later, and all before
// counts as compacted. use, which may be nil, is given it. It fails as verify.Verifier.Verify
// does, and as use does.
func (m *Maker) Make(ctx context.Context, in *archive.Archive, manifest *archive.Manifest, identities []age.Identity, seen int64, use func(io.Reader) error) (*Database, error) {
	release, err := m.Programs.For(manifest.EtcdVersion)
	if err != nil {
		return nil, err
	}
	folder, leave, err := m.Scratch.Take(ctx, 2*manifest.Data.PlainBytes+logBytes)
	if err != nil {
		return nil, err
	}
	defer leave()
	snapshot, data := filepath.Join(folder, snapshotFile), filepath.Join(folder, dataFolder)
	if err := in.Unpack(ctx, manifest, snapshot, identities...); err != nil {
		return nil, err
	}
	status, err := release.Status(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	made := &Database{Revision: max(status.Revision, seen) + Bump}
	bump := uint64(made.Revision - status.Revision) //nolint:gosec // G115: it is Bump at least.
	if err := release.Restore(ctx, snapshot, etcdtool.RestoreOptions{DataDir: data, Name: "restore", PeerURL: peerURL, Bump: bump}); err != nil {
		return nil, err
	}
	if use == nil {
		return made, nil
	}
	file, err := os.Open(filepath.Join(data, "member", "snap", "db")) //nolint:gosec // G304: it is in the scratch folder.
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}

	return made, errors.Join(use(file), file.Close())
}
