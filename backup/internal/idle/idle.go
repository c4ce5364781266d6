// Package idle ends what stands still, and leaves alone what is slow.
package idle

import (
	"errors"
	"io"
	"sync"
	"time"
)

// Watch ends something in which nothing moves for too long. It is safe for concurrent use.
type Watch struct {
	patience time.Duration

	mu           sync.Mutex
	timer        *time.Timer
	isOver, late bool
}

// Begin begins to watch. If nothing moves for as long as the patience is, it calls end, once.
func Begin(patience time.Duration, end func()) *Watch {
	watch := &Watch{patience: patience}
	watch.mu.Lock()
	defer watch.mu.Unlock()
	watch.timer = time.AfterFunc(patience, func() {
		if watch.isLate() {
			end()
		}
	})

	return watch
}

// isLate ends the watch, and reports whether it was not over before.
func (w *Watch) isLate() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isOver {
		return false
	}
	w.isOver, w.late = true, true

	return true
}

// Moved says that something has moved. It does nothing after the end.
func (w *Watch) Moved() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isOver {
		w.timer.Reset(w.patience)
	}
}

// End ends the watch, and reports whether nothing had moved for too long.
func (w *Watch) End() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isOver = true
	w.timer.Stop()

	return w.late
}

// Reader reads from a stream, and calls end where that gives nothing for too long: its read is
// to fail then, and the reader fails with the error late. While nobody reads, it waits.
func Reader(from io.Reader, patience time.Duration, end func(), late error) io.Reader {
	return &reader{from: from, patience: patience, end: end, late: late}
}

type reader struct {
	from     io.Reader
	patience time.Duration
	end      func()
	late     error
	isLate   bool
}

// Read implements io.Reader.
func (r *reader) Read(into []byte) (int, error) {
	watch := Begin(r.patience, r.end)
	read, err := r.from.Read(into)
	// It may have been given up at the moment at which it came: then the next one fails.
	r.isLate = watch.End() || r.isLate
	if r.isLate && err != nil && !errors.Is(err, io.EOF) {
		err = r.late
	}

	return read, err //nolint:wrapcheck // io.EOF must stay as it is.
}
