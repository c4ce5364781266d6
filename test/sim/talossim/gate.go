package talossim

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
)

// gate is between the network and the Talos API of a machine, for one boot: it
// holds everything up while the machine is silent.
type gate struct {
	mu       sync.Mutex
	changed  chan struct{}
	silent   bool
	refusing bool
	conns    map[*gatedConn]struct{}
	// serving is where the present server listens; nil while there is none.
	serving *gatedListener
}

func newGate(faults Faults) *gate {
	return &gate{changed: make(chan struct{}), silent: faults.Silent, refusing: faults.Refusing, conns: map[*gatedConn]struct{}{}}
}

// set opens or closes the gate.
func (g *gate) set(silent, refusing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent, g.refusing = silent, refusing
	close(g.changed)
	g.changed = make(chan struct{})
	if refusing {
		for conn := range g.conns {
			_ = conn.Conn.Close()
		}
	}
	if g.serving != nil {
		g.serving.refuse(refusing)
	}
}

// listen listens at address, behind the gate.
func (g *gate) listen(address string) (net.Listener, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	listener := &gatedListener{gate: g, address: address, accepted: make(chan net.Conn), closed: make(chan struct{})}
	if !g.refusing {
		if err := listener.open(); err != nil {
			return nil, err
		}
	}
	g.serving = listener
	return listener, nil
}

// drop ends all connections, also those that are held up.
func (g *gate) drop() {
	g.mu.Lock()
	conns := slices.Collect(maps.Keys(g.conns))
	g.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// wait waits while the machine is silent; it returns false once closed is.
func (g *gate) wait(closed <-chan struct{}) bool {
	for {
		g.mu.Lock()
		silent, changed := g.silent, g.changed
		g.mu.Unlock()
		if !silent {
			return true
		}
		select {
		case <-closed:
			return false
		case <-changed:
		}
	}
}

// gatedListener accepts as long as the machine does not refuse.
type gatedListener struct {
	gate     *gate
	address  string
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
	// inner is nil while the machine refuses; the lock of the gate guards it.
	inner net.Listener
}

// open listens. The lock of the gate is held.
func (l *gatedListener) open() error {
	inner, err := net.Listen("tcp", l.address) //nolint:noctx // It lives as long as the server.
	if err != nil {
		return fmt.Errorf("listening for the Talos API: %w", err)
	}
	l.inner = inner
	go func() {
		for {
			conn, err := inner.Accept()
			if err != nil {
				return
			}
			select {
			case l.accepted <- l.gate.keep(conn):
			case <-l.closed:
				_ = conn.Close()
			}
		}
	}()
	return nil
}

// refuse ends or resumes listening. The lock of the gate is held.
func (l *gatedListener) refuse(refusing bool) {
	switch {
	case refusing && l.inner != nil:
		_ = l.inner.Close()
		l.inner = nil
	case !refusing && l.inner == nil:
		// The address is the machine's own: it was free a moment ago.
		_ = l.open()
	}
}

// Accept implements net.Listener.
func (l *gatedListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *gatedListener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(l.address)}
}

// Close implements net.Listener.
func (l *gatedListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.gate.mu.Lock()
		defer l.gate.mu.Unlock()
		if l.inner != nil {
			_ = l.inner.Close()
			l.inner = nil
		}
		if l.gate.serving == l {
			l.gate.serving = nil
		}
	})
	return nil
}

func (g *gate) keep(conn net.Conn) net.Conn {
	kept := &gatedConn{Conn: conn, gate: g, closed: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[kept] = struct{}{}
	return kept
}

// gatedConn neither reads nor writes while the machine is silent.
type gatedConn struct {
	net.Conn
	gate   *gate
	closed chan struct{}
	once   sync.Once
}

var errGateClosed = errors.New("the connection was closed while the machine was silent")

// Read implements net.Conn. What arrives while the machine is silent is read
// once it no longer is.
func (c *gatedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	if !c.gate.wait(c.closed) {
		return 0, errGateClosed
	}
	return n, err
}

// Write implements net.Conn.
func (c *gatedConn) Write(from []byte) (int, error) {
	if !c.gate.wait(c.closed) {
		return 0, errGateClosed
	}
	return c.Conn.Write(from)
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.gate.mu.Lock()
		defer c.gate.mu.Unlock()
		delete(c.gate.conns, c)
	})
	return c.Conn.Close()
}
