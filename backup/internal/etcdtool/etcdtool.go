// Package etcdtool runs the programs of etcd on snapshots, in processes of their own: their
// memory and their faults are not the manager's.
package etcdtool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Releases are the minor releases of etcd whose programs there are, the newest last: those
// of Talos 1.12 to 1.14. Folder backup/etcd has a module for each.
func Releases() []string { return []string{"3.6", "3.7"} }

// ErrRelease says that there are no programs for a release of etcd.
var ErrRelease = errors.New("no programs for this release of etcd")

// ErrSnapshot says that the programs of etcd refuse a snapshot.
var ErrSnapshot = errors.New("etcd refuses the snapshot")

// Programs are the programs of all releases.
type Programs struct {
	// Folder has them: etcdutl-3.6, etcd-3.6 and so on.
	Folder string
}

// For returns the programs for a version of etcd: 3.6.12. It fails with ErrRelease where
// there are none.
func (p Programs) For(etcdVersion string) (*Release, error) {
	parsed, err := version.ParseGeneric(etcdVersion)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is no version", ErrRelease, etcdVersion)
	}
	name := fmt.Sprintf("%d.%d", parsed.Major(), parsed.Minor())
	if !slices.Contains(Releases(), name) {
		return nil, fmt.Errorf("%w: %s, there are those for %s", ErrRelease, etcdVersion, strings.Join(Releases(), " and "))
	}

	return &Release{Name: name, folder: p.Folder}, nil
}

// Release are the programs of a minor release of etcd.
type Release struct {
	// Name is that of the release: 3.6.
	Name string

	folder string
}

func (r *Release) path(program string) string { return filepath.Join(r.folder, program+"-"+r.Name) }

// Status is what is in a snapshot.
type Status struct {
	// Hash is one of all that is in it.
	Hash uint32 `json:"hash"`
	// Revision is its last revision, and TotalKey how many keys it has at that.
	Revision int64 `json:"revision"`
	TotalKey int64 `json:"totalKey"`
	// TotalSize is the size of the database in bytes.
	TotalSize int64 `json:"totalSize"`
	// Version is that of its storage.
	Version string `json:"version"`
}

// Status looks into a snapshot: all of its pages and records. It fails with ErrSnapshot where
// something in it is wrong.
func (r *Release) Status(ctx context.Context, snapshot string) (*Status, error) {
	told, err := r.etcdutl(ctx, "snapshot", "status", "--write-out=json", snapshot)
	if err != nil {
		return nil, fmt.Errorf("looking into the snapshot: %w", err)
	}
	status := &Status{}
	if err := json.Unmarshal(told, status); err != nil {
		return nil, errors.New("looking into the snapshot: etcdutl has answered something else than its status")
	}

	return status, nil
}

// RestoreOptions are what data is made of a snapshot for.
type RestoreOptions struct {
	// DataDir is where it goes. It must not be there.
	DataDir string
	// Name and PeerURL are those of the only member.
	Name, PeerURL string
	// Bump is by how much the revision is raised; all before counts as compacted then, so
	// that no client sees the revision go back. 0 leaves both as they are.
	Bump uint64
}

// Restore makes the data of an etcd of one member of a snapshot, whose checksum it
// compares. It fails with ErrSnapshot where something in it is wrong.
func (r *Release) Restore(ctx context.Context, snapshot string, options RestoreOptions) error {
	args := []string{
		"snapshot", "restore", snapshot, "--data-dir=" + options.DataDir, "--name=" + options.Name,
		"--initial-cluster=" + options.Name + "=" + options.PeerURL, "--initial-advertise-peer-urls=" + options.PeerURL,
	}
	if options.Bump > 0 {
		args = append(args, "--bump-revision="+strconv.FormatUint(options.Bump, 10), "--mark-compacted")
	}
	if _, err := r.etcdutl(ctx, args...); err != nil {
		return fmt.Errorf("restoring the snapshot: %w", err)
	}

	return nil
}

// etcdutl runs it, and returns what it prints. What it says of errors is told to nobody: it
// can quote keys and values of the database.
func (r *Release) etcdutl(ctx context.Context, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, r.path("etcdutl"), args...) //nolint:gosec // G204: it is a program of the image.
	// Everything that it can verify of what it writes.
	command.Env = append(os.Environ(), "ETCD_VERIFY=all")
	told, err := command.Output()

	return told, judge(ctx, command, err)
}

// judge says why a program has failed: it refuses what it was given, or it could not do its
// work.
func judge(ctx context.Context, command *exec.Cmd, err error) error {
	name := filepath.Base(command.Path)
	ended, hasEnded := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case hasEnded && ended.Exited():
		return fmt.Errorf("%w: %s: %s", ErrSnapshot, name, ended.ProcessState)
	}

	return fmt.Errorf("running %s: %w", name, err)
}
