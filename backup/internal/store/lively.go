package store

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/backup/internal/idle"
)

// errSilent says that a server stands still. It is none of the context, which would be the
// end of who asks.
var errSilent = errors.New("the server has neither taken nor sent anything for too long")

// lively ends requests of which nothing is taken for too long, and answers of which nothing
// comes: whoever waits for them may have what others wait for.
type lively struct {
	http.RoundTripper

	patience time.Duration
}

// RoundTrip implements http.RoundTripper.
func (l lively) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	watch := idle.Begin(l.patience, cancel)
	end := cancel
	request = request.WithContext(ctx)
	if request.Body != nil && request.Body != http.NoBody {
		body := &sending{ReadCloser: request.Body, watch: watch}
		request.Body, end = body, func() { body.end(); cancel() }
	}
	response, err := l.RoundTripper.RoundTrip(request)
	isLate := watch.End()
	if isLate && err == nil {
		_ = response.Body.Close()
	}
	if isLate {
		err = errSilent
	}
	if err != nil {
		end()
		return nil, err
	}
	response.Body = &receiving{Reader: idle.Reader(response.Body, l.patience, cancel, errSilent), body: response.Body, end: end}

	return response, nil
}

// sending is the body of a request, for as long as that lasts. A transport may read on when the
// server has answered early, or the request was given up: the library may send the same data once
// more by then, and its memory may hold what is another tenant's, and none of that server's
// business.
type sending struct {
	io.ReadCloser

	watch *idle.Watch

	mu     sync.Mutex
	isOver bool
}

// end takes the body back.
func (s *sending) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOver = true
}

// Read implements io.Reader. What was read of it before was taken. It fails with os.ErrClosed
// after the end.
func (s *sending) Read(into []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOver {
		return 0, os.ErrClosed
	}
	s.watch.Moved()

	return s.ReadCloser.Read(into) //nolint:wrapcheck // io.EOF must stay as it is.
}

// receiving is the body of an answer, whose request ends with it.
type receiving struct {
	io.Reader

	body io.Closer
	end  func()
}

// Close implements io.Closer.
func (r *receiving) Close() error {
	defer r.end()

	return r.body.Close() //nolint:wrapcheck // It is the body's own.
}
