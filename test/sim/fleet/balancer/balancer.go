// Package balancer is the load balancer of the test bed: TCP, with health
// checks. It stands for the one that a user of bare metal brings along.
package balancer

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultProbeInterval is how often targets are looked at.
	DefaultProbeInterval = 200 * time.Millisecond
	// probeTimeout bounds a look at one target, and the way to it.
	probeTimeout = 2 * time.Second
	// failures is how often in a row a target must fail to be unhealthy: a busy
	// machine may miss one look.
	failures = 2
)

// Options are what a Balancer is made of.
type Options struct {
	// Host and Port are where it listens.
	Host string
	Port string
	// Targets are the host and port pairs to choose from, asked at every look.
	// A target is healthy when it serves a TLS certificate that is valid for
	// Host: that tells the control plane nodes of this endpoint from those of
	// others. One that fails twice in a row is unhealthy, and loses its
	// connections.
	Targets func() []string
	// ProbeInterval is how often targets are looked at; 0 means
	// DefaultProbeInterval.
	ProbeInterval time.Duration
}

// Balancer is one endpoint. It listens as long as a target is healthy:
// connections are refused at once otherwise, for clients of Kubernetes try ones
// that are reset again and again.
type Balancer struct {
	options Options
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// listener is nil while there is no healthy target.
	listener net.Listener
	// healthy are the healthy targets in the order of Targets, and failed counts
	// how often in a row one of them failed.
	healthy []string
	failed  map[string]int
	next    int
	// open are the open connections and the target that each belongs to.
	open map[net.Conn]string
}

// Start watches the targets of an endpoint, and fails if its address and port
// are not free. Close ends it.
func Start(ctx context.Context, options Options) (*Balancer, error) {
	if options.ProbeInterval == 0 {
		options.ProbeInterval = DefaultProbeInterval
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Balancer{options: options, stop: stop, failed: map[string]int{}, open: map[net.Conn]string{}}
	free, err := b.listen(ctx)
	if err == nil {
		err = free.Close()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("listening for the endpoint: %w", err)
	}
	b.running.Go(func() { b.probe(ctx) })
	return b, nil
}

func (b *Balancer) listen(ctx context.Context) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(b.options.Host, b.options.Port))
}

// Close ends the endpoint and all of its connections. It may be called twice.
func (b *Balancer) Close() error {
	b.stop()
	b.mu.Lock()
	b.closed = true
	b.healthy = nil
	b.gate(context.Background())
	for conn := range b.open {
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
	return nil
}

// gate listens if there is a healthy target, and stops listening if there is
// none. What cannot be opened is tried at the next look. The lock is held.
func (b *Balancer) gate(ctx context.Context) {
	switch {
	case len(b.healthy) == 0 && b.listener != nil:
		_ = b.listener.Close()
		b.listener = nil
	case len(b.healthy) > 0 && b.listener == nil && !b.closed:
		listener, err := b.listen(ctx)
		if err != nil {
			return
		}
		b.listener = listener
		b.running.Go(func() { b.accept(ctx, listener) })
	}
}

// Healthy are the targets that are healthy now.
func (b *Balancer) Healthy() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.healthy)
}

func (b *Balancer) probe(ctx context.Context) {
	ticker := time.NewTicker(b.options.ProbeInterval)
	defer ticker.Stop()
	for {
		b.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look probes all targets at once, so that one that hangs does not keep the
// others from being seen.
func (b *Balancer) look(ctx context.Context) {
	targets := b.options.Targets()
	results := make([]bool, len(targets))
	var looks sync.WaitGroup
	for i, target := range targets {
		looks.Go(func() {
			results[i] = serves(ctx, target, b.options.Host)
			if results[i] {
				b.welcome(ctx, target)
			}
		})
	}
	looks.Wait()

	b.mu.Lock()
	defer b.mu.Unlock()
	var healthy []string
	for i, target := range targets {
		switch {
		case results[i]:
			healthy = append(healthy, target)
		case slices.Contains(b.healthy, target):
			if b.failed[target]++; b.failed[target] < failures {
				healthy = append(healthy, target)
			}
		}
	}
	if b.closed {
		return
	}
	b.healthy = healthy
	b.gate(ctx)
	for conn, target := range b.open {
		if !slices.Contains(healthy, target) {
			_ = conn.Close()
		}
	}
}

// welcome takes a target in as soon as it was seen.
func (b *Balancer) welcome(ctx context.Context, target string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[target] = 0
	if !b.closed && !slices.Contains(b.healthy, target) {
		b.healthy = append(b.healthy, target)
		b.gate(ctx)
	}
}

// serves reports whether a target presents a certificate for host.
func serves(ctx context.Context, target, host string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	//nolint:gosec // G402: only the name in the certificate is of interest; the clients verify it.
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	secured, ok := conn.(*tls.Conn)
	if !ok || len(secured.ConnectionState().PeerCertificates) == 0 {
		return false
	}
	return secured.ConnectionState().PeerCertificates[0].VerifyHostname(host) == nil
}

func (b *Balancer) accept(ctx context.Context, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		b.running.Go(func() { b.forward(ctx, conn) })
	}
}

// forward joins a connection with a target. The connection is reset when there
// is none any more.
func (b *Balancer) forward(ctx context.Context, from net.Conn) {
	to, target := b.connect(ctx)
	if to == nil || !b.track(target, from, to) {
		reset(from)
		if to != nil {
			_ = to.Close()
		}
		return
	}
	defer b.untrack(from, to)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{to, from}, {from, to}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			done <- struct{}{}
		}()
	}
	<-done
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// connect returns a connection to a healthy target, or nil when there is none.
// One that went away since it was looked at is passed over.
func (b *Balancer) connect(ctx context.Context) (to net.Conn, target string) {
	dialer := &net.Dialer{Timeout: probeTimeout}
	for _, target := range b.candidates() {
		if conn, err := dialer.DialContext(ctx, "tcp", target); err == nil {
			return conn, target
		}
	}
	return nil, ""
}

// candidates are the healthy targets, each time with another one first.
func (b *Balancer) candidates() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.healthy) == 0 {
		return nil
	}
	b.next++
	first := b.next % len(b.healthy)
	return append(slices.Clone(b.healthy[first:]), b.healthy[:first]...)
}

// track remembers connections to a target. It returns false once the balancer
// is closed.
func (b *Balancer) track(target string, conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	for _, conn := range conns {
		b.open[conn] = target
	}
	return true
}

func (b *Balancer) untrack(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(b.open, conn)
	}
}
