package talossim

import (
	"context"
	"crypto/tls"
	"sync"
	"time"
)

// now is the time by the clock of the machine.
func (m *Machine) now() time.Time {
	return m.sim.options.Clock.Now().Add(m.Faults().ClockAhead)
}

// timeTimeout is how long a bootstrap waits for the clock to be set
// (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go, Bootstrap).
const timeTimeout = 5 * time.Second

// synced reports whether the clock is set. Talos sets it once in a boot, and in a
// container never (internal/app/machined/pkg/controllers/time/sync.go). The lock is held.
func (b *boot) synced() bool {
	b.inSync = b.inSync || b.sim.options.Personality == Container || !b.machine.faults.NoTime
	return b.inSync
}

// awaitTime waits until the clock is set, as the services etcd, trustd and kubelet do,
// and cri does not (internal/app/machined/pkg/system/services, Condition of each).
func (b *boot) awaitTime(ctx context.Context) error {
	b.sim.update(func() { b.cri = true })
	return b.sim.await(ctx, b.synced)
}

// certificates are those of the Talos API: a machine makes another one when its clock
// is set (internal/app/machined/pkg/controllers/secrets/api.go follows the time
// status).
type certificates struct {
	machine *Machine
	issue   func(begins time.Time) (tls.Certificate, error)

	mu      sync.Mutex
	ahead   time.Duration
	present *tls.Certificate
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	ahead := c.machine.Faults().ClockAhead
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present != nil && c.ahead == ahead {
		return c.present, nil
	}
	made, err := c.issue(c.machine.now())
	if err != nil {
		return nil, err
	}
	c.ahead, c.present = ahead, &made

	return c.present, nil
}
