package helm

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxAnswer is how long an answer of an API server may be, in bytes.
const maxAnswer = 256 << 20

var (
	errRedirected = errors.New("it sends the request elsewhere, which no API server does")
	errTooLong    = fmt.Errorf("its answer is longer than %d MiB", maxAnswer>>20)
)

// guarded is a connection to an API server that anybody may have set up: it could send the
// manager on to what only that can reach, or answer without end.
type guarded struct {
	inner http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g guarded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := g.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.Header.Get("Location") != "" && response.StatusCode/100 == 3 {
		_ = response.Body.Close()
		return nil, errRedirected
	}
	// Watches go on as long as they are wanted, and are read one event at a time.
	if request.URL.Query().Get("watch") == "" {
		response.Body = &boundedBody{ReadCloser: response.Body, left: maxAnswer}
	}

	return response, nil
}

// boundedBody is a body that may have so many bytes.
type boundedBody struct {
	io.ReadCloser

	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(into []byte) (int, error) {
	read, err := b.ReadCloser.Read(into)
	if b.left -= int64(read); b.left < 0 {
		return 0, errTooLong
	}

	return read, err
}
