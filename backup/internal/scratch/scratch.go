// Package scratch is room on disk in which backups are unpacked, one at a time.
package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// ErrShort says that there is too little room.
var ErrShort = errors.New("too little scratch space")

// Space is a folder that nobody else writes to.
type Space struct {
	folder string
	turn   *semaphore.Weighted
	// free returns how many bytes may be written to a folder.
	free func(folder string) (uint64, error)
}

// New returns a space in a folder, and removes what a former process has left there.
func New(folder string) (*Space, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("making the scratch folder: %w", err)
	}
	left, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("reading the scratch folder: %w", err)
	}
	for _, entry := range left {
		if err := os.RemoveAll(filepath.Join(folder, entry.Name())); err != nil {
			return nil, fmt.Errorf("clearing the scratch folder: %w", err)
		}
	}

	return &Space{folder: folder, turn: semaphore.NewWeighted(1), free: free}, nil
}

func free(folder string) (uint64, error) {
	var found unix.Statfs_t
	if err := unix.Statfs(folder, &found); err != nil {
		return 0, fmt.Errorf("asking for the room in %s: %w", folder, err)
	}

	return found.Bavail * uint64(found.Bsize), nil //nolint:gosec // G115: no block has a negative size.
}

// Take waits for its turn, and returns an empty folder with room for so many bytes, and what
// removes it. It fails with ErrShort where there is too little.
func (s *Space) Take(ctx context.Context, bytes int64) (folder string, leave func(), err error) {
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return "", nil, fmt.Errorf("waiting for scratch space: %w", err)
	}
	defer func() {
		if err != nil {
			s.turn.Release(1)
		}
	}()
	has, err := s.free(s.folder)
	if err != nil {
		return "", nil, err
	}
	if bytes < 0 || has < uint64(bytes) {
		return "", nil, fmt.Errorf("%w: %d bytes are needed, and %s has %d", ErrShort, bytes, s.folder, has)
	}
	folder, err = os.MkdirTemp(s.folder, "backup-")
	if err != nil {
		return "", nil, fmt.Errorf("making a scratch folder: %w", err)
	}

	return folder, func() {
		_ = os.RemoveAll(folder)
		s.turn.Release(1)
	}, nil
}
