package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

const (
	// maxAnswer is how much is read of an answer that is no object. What a page of a list
	// takes when it is decoded is up to 300 times as much for a moment, for a server that
	// means it.
	maxAnswer = 1 << 20
	// pageSize is how much of a list is asked for at once. With keys as long as S3 has them it
	// is half of an answer, and a server that sends a thousand of ours nevertheless has room.
	pageSize = 250
	// maxPages is how many pages a list may have: those of a million objects.
	maxPages = 4000
	// maxUnfinished is how many uploads are listed that nobody has ended. An attempt leaves
	// one at most.
	maxUnfinished = 10_000
	// maxName is the length in bytes of the longest key or version that S3 has.
	maxName = 1024
)

var (
	// errAnswer says that a server has sent too much.
	errAnswer = fmt.Errorf("the answer of the server is longer than %d bytes", maxAnswer)
	// errEndless says that a server sends page after page.
	errEndless = errors.New("the list of the server does not come to an end")
	errName    = fmt.Errorf("the server lists a name that is longer than %d bytes, which S3 has not", maxName)
)

// bounded bounds what is read of a server, which may be anybody's.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	pages, isList := request.Context().Value(pagesKey{}).(*pages)
	if isList && !pages.mayAsk(request) {
		return nil, errEndless
	}
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil || isObject(request, response) {
		return response, err
	}
	if isList && response.StatusCode == http.StatusOK {
		pages.answered(request)
	}
	response.Body = &short{ReadCloser: response.Body, left: maxAnswer}

	return response, nil
}

// isObject reports whether an answer is an object: who reads it knows how much it may be. All
// else that is asked for has a name of its own in the query.
func isObject(request *http.Request, response *http.Response) bool {
	query := request.URL.Query()
	query.Del("versionId")

	return request.Method == http.MethodGet && response.StatusCode == http.StatusOK && len(query) == 0
}

// short is the body of an answer that is no object.
type short struct {
	io.ReadCloser

	left int
}

// Read implements io.Reader.
func (s *short) Read(into []byte) (int, error) {
	if s.left < 0 {
		return 0, errAnswer
	}
	// One byte more tells an end from too much.
	read, err := s.ReadCloser.Read(into[:min(len(into), s.left+1)])
	if s.left -= read; s.left < 0 {
		return read, errAnswer
	}

	return read, err //nolint:wrapcheck // io.EOF must stay as it is.
}

type pagesKey struct{}

// pages are those of one list. The library follows them by itself, to wherever the server
// says, and only its requests can be seen.
type pages struct {
	last  string
	count int
}

// listing returns the context of the requests of one list.
func listing(ctx context.Context) context.Context {
	return context.WithValue(ctx, pagesKey{}, &pages{})
}

// mayAsk reports whether there may be such a page: the same one comes after none, unless it
// is asked for once more because there was no answer.
func (p *pages) mayAsk(request *http.Request) bool {
	return p.count < maxPages && (p.count == 0 || p.last != request.URL.RawQuery)
}

func (p *pages) answered(request *http.Request) {
	p.last = request.URL.RawQuery
	p.count++
}
