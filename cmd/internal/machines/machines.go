// Package machines is what the mains of managers share that talk to Talos machines. The
// others do not link what it takes.
package machines

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// Machines are the connections of a manager to Talos machines.
type Machines struct {
	pool  *talosclient.Pool
	calls *talosclient.Metrics
}

// New returns no connections. They are to be closed when the manager has ended.
func New() *Machines {
	calls := talosclient.NewMetrics(clock.RealClock{})

	return &Machines{pool: talosclient.New(talosclient.WithMetrics(calls)), calls: calls}
}

// Dialer opens connections, whose metrics the manager serves from then on.
func (m *Machines) Dialer() (talosclient.Dialer, error) {
	return m.pool, m.calls.Register(metrics.Registry)
}

// Close closes them.
func (m *Machines) Close() { m.pool.Close() }
