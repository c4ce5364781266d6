package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockRetry is how often a lock that another process holds is tried.
const lockRetry = 500 * time.Millisecond

// lock takes the lock of a part, telling once when it has to wait for it. The
// kernel gives it up when the process dies.
func (b *Builder) lock(ctx context.Context, path string, waiting func()) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening its lock: %w", err)
	}
	unlock := func() { _ = file.Close() }
	said := false
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			unlock()
			return nil, fmt.Errorf("taking its lock: %w", err)
		}
		if !said {
			waiting()
			said = true
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, ctx.Err()
		case <-b.Clock.After(lockRetry):
		}
	}
}
