package talosclient

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/utils/clock"
)

// idleTimeout is how long a shared connection stays open that nobody uses: longer
// than a healthy control plane node is left alone.
const idleTimeout = 10 * time.Minute

// Pool is the Dialer of the managers. Readers share one connection per node and CA,
// whatever certificate they come with; it stays open for a while when nobody uses
// it. All other connections belong to one caller, and end with it. So the number
// of connections is bounded by that of the machines. Close ends them all.
type Pool struct {
	clock     clock.WithDelayedExecution
	observers []grpc.DialOption
	metrics   *Metrics

	mu sync.Mutex
	// opened are all connections that are not closed, and shared those that are
	// lent to whoever asks.
	opened map[*conn]struct{}
	shared map[poolKey]*conn
	// sweeps reports whether a sweep is due at some time.
	sweeps bool
}

var _ Dialer = &Pool{}

// poolKey tells apart connections of which nobody may be given another's: the CA
// stands for the cluster, which alone knows its key.
type poolKey struct {
	address string
	ca      [sha256.Size]byte
}

// Option changes what New makes.
type Option func(*Pool)

// WithMetrics has metrics count the connections of the pool, and all calls over
// them.
func WithMetrics(metrics *Metrics) Option {
	return func(pool *Pool) {
		pool.metrics = metrics
		pool.observers = append(pool.observers, metrics.dialOptions()...)
	}
}

// WithClock has the pool judge certificates, and what is idle, by c instead of the
// clock of the machine.
func WithClock(c clock.WithDelayedExecution) Option {
	return func(pool *Pool) { pool.clock = c }
}

// New returns an empty pool.
func New(options ...Option) *Pool {
	pool := &Pool{clock: clock.RealClock{}, opened: map[*conn]struct{}{}, shared: map[poolKey]*conn{}}
	for _, option := range options {
		option(pool)
	}
	return pool
}

// Close ends all connections.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.opened {
		p.close(c)
	}
}

// conn is one gRPC connection, the Talos SDK on top of it, and the certificate
// it is bound to. The SDK's own connections would take TLS credentials of theirs.
type conn struct {
	*client.Client
	transport *grpc.ClientConn
	pin       *pin
	// identity is what the next handshake presents; nil in maintenance mode.
	identity atomic.Pointer[identity]
	// ends is when the certificate expires that the node has presented last; nil
	// until it has presented one.
	ends atomic.Pointer[time.Time]

	// What follows is guarded by the lock of the pool.

	key poolKey
	// users are the Nodes that are not closed, and unused is since when there are
	// none.
	users  int
	unused time.Time
}

func (c *conn) isReady() bool {
	return c.transport.GetState() == connectivity.Ready
}

// canBeLent reports whether another user may be given the connection. One that has
// failed would only tell its old error, and once the certificate of the node has
// expired nobody vouches for who is at the other end.
func (c *conn) canBeLent(now time.Time) bool {
	if ends := c.ends.Load(); ends != nil && now.After(*ends) {
		return false
	}
	state := c.transport.GetState()
	return state != connectivity.TransientFailure && state != connectivity.Shutdown
}

// node is the connection as it is given to a user.
func (p *Pool) node(c *conn) *node {
	return &node{conn: c, release: sync.OnceFunc(func() { p.giveBack(c) })}
}

// lease is a connection for one more user, who may be the first.
func (p *Pool) lease(address string, id *identity) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	p.sweep(now)

	key := poolKey{address: address, ca: id.ca}
	if c := p.shared[key]; c != nil && id.shares {
		if c.canBeLent(now) {
			c.users++
			if id.notAfter.After(c.identity.Load().notAfter) {
				// The node knows the former one until it is connected to again.
				c.identity.Store(id)
			}
			return c, nil
		}
		p.unshare(c)
	}
	c, err := p.openSecure(address, id)
	if err != nil {
		return nil, err
	}
	if id.shares {
		c.key = key
		p.shared[key] = c
	}
	p.add(c)
	return c, nil
}

// track is for a connection that was opened outside the lock.
func (p *Pool) track(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(c)
}

// retire keeps a connection from being lent any more. It ends with its last user.
func (p *Pool) retire(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unshare(c)
}

// giveBack ends a connection that its last user has closed, unless it is shared.
func (p *Pool) giveBack(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.users--
	switch {
	case c.users > 0:
	case p.shared[c.key] != c:
		p.close(c)
	default:
		c.unused = p.clock.Now()
		p.sweepLater()
	}
}

// What follows is called with the lock held.

// sweepLater has idle connections closed when nobody asks any more.
func (p *Pool) sweepLater() {
	if p.sweeps {
		return
	}
	p.sweeps = true
	p.clock.AfterFunc(idleTimeout, func() {
		go func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.sweeps = false
			p.sweep(p.clock.Now())
		}()
	})
}

// sweep closes what was idle for long enough.
func (p *Pool) sweep(now time.Time) {
	for _, c := range p.shared {
		switch {
		case c.users > 0:
		case now.Sub(c.unused) >= idleTimeout:
			p.close(c)
		default:
			p.sweepLater()
		}
	}
}

func (p *Pool) add(c *conn) {
	c.users = 1
	p.opened[c] = struct{}{}
	p.metrics.connected(1)
}

func (p *Pool) unshare(c *conn) {
	if p.shared[c.key] == c {
		delete(p.shared, c.key)
	}
	if c.users == 0 {
		p.close(c)
	}
}

func (p *Pool) close(c *conn) {
	if p.shared[c.key] == c {
		delete(p.shared, c.key)
	}
	if _, open := p.opened[c]; !open {
		return
	}
	delete(p.opened, c)
	p.metrics.connected(-1)
	// The connection is given up: an error of closing it tells nothing that
	// could be acted on.
	_ = c.transport.Close()
}
