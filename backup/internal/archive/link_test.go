package archive

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// direction is where bytes go to.
type direction int

const (
	up direction = iota
	down
)

func (d direction) String() string { return []string{"up", "down"}[d] }

// fault is what happens once to a link, when so many bytes have gone in a direction.
type fault struct {
	direction direction
	after     int64
	// stalls holds the connection without moving anything. Else it is cut.
	stalls bool
}

// piece is how much a link passes on at once.
const piece = 16 << 10

// link is a network between a store and its server.
type link struct {
	// pace is how long each piece takes in a direction.
	pace [2]time.Duration

	listener net.Listener
	over     chan struct{}
	serving  sync.WaitGroup

	mu      sync.Mutex
	fault   *fault
	passed  [2]int64
	clients []net.Conn
}

// newLink returns a link, and how a store of a bucket uses it.
func newLink(t *testing.T, config store.Config, once *fault, pace [2]time.Duration) (*link, store.Config) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	made := &link{pace: pace, listener: listener, over: make(chan struct{}), fault: once}
	to := strings.TrimPrefix(config.Endpoint, "https://")
	config.Endpoint = "https://" + listener.Addr().String()
	if pace[up] > 0 {
		config.Wrap = narrow
	}
	made.serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			made.mu.Lock()
			made.clients = append(made.clients, client)
			made.mu.Unlock()
			made.serving.Go(func() { made.serve(context.WithoutCancel(t.Context()), client, to) })
		}
	})

	return made, config
}

// narrow has the kernel take no megabytes of a store that have not gone over the link.
func narrow(store http.RoundTripper) http.RoundTripper {
	transport := store.(*http.Transport)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := dial(ctx, network, address)
		if err == nil {
			err = connection.(*net.TCPConn).SetWriteBuffer(piece)
		}

		return connection, err
	}

	return transport
}

// close cuts what is left, and waits until the server has done all that it was asked for.
func (l *link) close() {
	close(l.over)
	_ = l.listener.Close()
	l.mu.Lock()
	for _, client := range l.clients {
		_ = client.Close()
	}
	l.mu.Unlock()
	l.serving.Wait()
}

func (l *link) serve(ctx context.Context, client net.Conn, to string) {
	defer func() { _ = client.Close() }()
	if l.pace[up] > 0 {
		_ = client.(*net.TCPConn).SetReadBuffer(piece)
	}
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var answering sync.WaitGroup
	answering.Go(func() {
		l.pass(down, client, server)
		_ = client.Close()
		// The server ends what it has begun, and then the connection.
		_, _ = io.Copy(io.Discard, server)
	})
	l.pass(up, server, client)
	_ = client.Close()
	_ = server.(*net.TCPConn).CloseWrite()
	answering.Wait()
}

// pass moves bytes until either end is closed, or the fault happens.
func (l *link) pass(to direction, into io.Writer, from io.Reader) {
	buffer := make([]byte, piece)
	for {
		read, err := from.Read(buffer)
		passes, struck := l.take(to, int64(read))
		if _, failed := into.Write(buffer[:passes]); failed != nil || err != nil {
			return
		}
		if struck != nil && struck.stalls {
			<-l.over
		}
		if struck != nil {
			return
		}
		if pace := l.pace[to]; pace > 0 {
			<-time.After(pace * time.Duration(read) / piece)
		}
	}
}

// take counts bytes, and returns how many of them pass, and the fault if it is its turn.
func (l *link) take(to direction, bytes int64) (passes int64, struck *fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.passed[to]
	l.passed[to] += bytes
	if once := l.fault; once != nil && once.direction == to && l.passed[to] > once.after {
		l.fault = nil
		return once.after - before, once
	}

	return bytes, nil
}
