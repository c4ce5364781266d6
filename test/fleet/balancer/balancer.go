// Package balancer is the load balancer of the test bed: TCP, with health
// checks. It stands for the one that a user of bare metal brings along.
package balancer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// DefaultProbeInterval is how often targets are looked at.
	DefaultProbeInterval = 200 * time.Millisecond
	// probeTimeout bounds a look at one target.
	probeTimeout = 2 * time.Second
)

// Options are what a Balancer is made of.
type Options struct {
	// Host and Port are where it listens.
	Host string
	Port string
	// Targets are the host and port pairs to choose from. A target is healthy
	// when it serves a TLS certificate that is valid for Host: that tells the
	// control plane nodes of this endpoint from those of others.
	Targets func() []string
	// ProbeInterval is how often targets are looked at; 0 means
	// DefaultProbeInterval.
	ProbeInterval time.Duration
}

// Balancer is one endpoint.
type Balancer struct {
	options  Options
	listener net.Listener
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	healthy []string
	next    int
	open    map[net.Conn]struct{}
}

// Start listens. Close ends it.
func Start(ctx context.Context, options Options) (*Balancer, error) {
	if options.ProbeInterval == 0 {
		options.ProbeInterval = DefaultProbeInterval
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(options.Host, options.Port))
	if err != nil {
		return nil, fmt.Errorf("listening for the endpoint: %w", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Balancer{options: options, listener: listener, stop: stop, open: map[net.Conn]struct{}{}}
	b.running.Go(func() { b.probe(ctx) })
	b.running.Go(func() { b.accept(ctx) })
	return b, nil
}

// Close ends the endpoint and all of its connections.
func (b *Balancer) Close() error {
	b.stop()
	err := b.listener.Close()
	b.mu.Lock()
	for conn := range b.open {
		_ = conn.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Healthy are the targets that are healthy now.
func (b *Balancer) Healthy() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.healthy...)
}

func (b *Balancer) probe(ctx context.Context) {
	ticker := time.NewTicker(b.options.ProbeInterval)
	defer ticker.Stop()
	for {
		var healthy []string
		for _, target := range b.options.Targets() {
			if serves(ctx, target, b.options.Host) {
				healthy = append(healthy, target)
			}
		}
		b.mu.Lock()
		b.healthy = healthy
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// serves tells whether a target presents a certificate for host.
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

func (b *Balancer) accept(ctx context.Context) {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.running.Go(func() { b.forward(ctx, conn) })
	}
}

// forward joins a connection with a target. Without a healthy one the
// connection is reset at once, as if nothing listened.
func (b *Balancer) forward(ctx context.Context, from net.Conn) {
	target := b.pick()
	if target == "" {
		if tcp, ok := from.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = from.Close()
		return
	}
	to, err := (&net.Dialer{Timeout: probeTimeout}).DialContext(ctx, "tcp", target)
	if err != nil {
		_ = from.Close()
		return
	}
	b.track(from, to)
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

func (b *Balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.healthy) == 0 {
		return ""
	}
	b.next++
	return b.healthy[b.next%len(b.healthy)]
}

func (b *Balancer) track(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		b.open[conn] = struct{}{}
	}
}

func (b *Balancer) untrack(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(b.open, conn)
	}
}
