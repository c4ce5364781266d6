package talossim

import (
	"crypto/tls"
	"sync"
	"time"
)

// now is the time by the clock of the machine.
func (m *Machine) now() time.Time {
	return m.sim.options.Clock.Now().Add(m.Faults().ClockAhead)
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
