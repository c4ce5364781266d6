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
	folder  string
	reserve uint64
	turn    *semaphore.Weighted
	// room returns how many bytes may be written to a folder, and how many its filesystem has.
	room func(folder string) (free, size uint64, err error)
}

// New returns a space in a folder, and removes what a former process has left there. So many
// percent of its filesystem are left free.
func New(folder string, reservePercent int) (*Space, error) {
	if reservePercent < 0 || reservePercent > 100 {
		return nil, fmt.Errorf("%d %% of the filesystem of the scratch folder cannot be left free: 0 to 100 can", reservePercent)
	}
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

	return &Space{folder: folder, reserve: uint64(reservePercent), turn: semaphore.NewWeighted(1), room: room}, nil
}

func room(folder string) (free, size uint64, err error) {
	var found unix.Statfs_t
	if err := unix.Statfs(folder, &found); err != nil {
		return 0, 0, fmt.Errorf("asking for the room in %s: %w", folder, err)
	}

	block := uint64(found.Bsize) //nolint:gosec // G115: no block has a negative size.

	return found.Bavail * block, found.Blocks * block, nil
}

// Take waits for its turn, and returns an empty folder with room for so many bytes, and what
// removes it. It fails with ErrShort where there is too little: the size may be what somebody
// claims, and a part of the filesystem is kept for others.
func (s *Space) Take(ctx context.Context, bytes int64) (folder string, leave func(), err error) {
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return "", nil, fmt.Errorf("waiting for scratch space: %w", err)
	}
	defer func() {
		if err != nil {
			s.turn.Release(1)
		}
	}()
	free, size, err := s.room(s.folder)
	if err != nil {
		return "", nil, err
	}
	if kept := size / 100 * s.reserve; bytes < 0 || free < kept || free-kept < uint64(bytes) {
		return "", nil, fmt.Errorf("%w: %d bytes are needed, and of the %d that are free in %s %d are kept for the node", ErrShort, bytes, free, s.folder, kept)
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
