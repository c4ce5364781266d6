package nodes

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// Memory remembers what healthy nodes said, so that a control plane at rest can be
// reconciled without asking them again. What it gives may only be used to find
// that there is nothing to do: before anything is done, nodes are asked.
type Memory struct {
	clock clock.PassiveClock
	keep  time.Duration

	mu    sync.Mutex
	known map[client.ObjectKey]remembered
	// addresses are where nodes answered last.
	addresses map[client.ObjectKey]string
	// endpoints are what answered last at the endpoints of control planes.
	endpoints map[client.ObjectKey]health.APIServerState
}

type remembered struct {
	at    time.Time
	facts health.Facts
}

// NewMemory remembers for so long what healthy nodes said.
func NewMemory(c clock.PassiveClock, keep time.Duration) *Memory {
	return &Memory{
		clock: c, keep: keep, known: map[client.ObjectKey]remembered{}, addresses: map[client.ObjectKey]string{},
		endpoints: map[client.ObjectKey]health.APIServerState{},
	}
}

// Remember keeps what the node of a Machine said now.
func (m *Memory) Remember(machine client.ObjectKey, facts health.Facts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[machine] = remembered{at: m.clock.Now(), facts: facts}
}

// Forget drops what the node of a Machine said.
func (m *Memory) Forget(machine client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, machine)
}

// Recall is what the node of a Machine said not longer ago than is kept.
func (m *Memory) Recall(machine client.ObjectKey) (health.Facts, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.known[machine]

	return found.facts, ok && m.clock.Since(found.at) < m.keep
}

// Reach keeps where the node of a Machine answers; empty drops it.
func (m *Memory) Reach(machine client.ObjectKey, address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addresses[machine] = address; address == "" {
		delete(m.addresses, machine)
	}
}

// Reached is where the node of a Machine answered last; empty when nobody knows.
func (m *Memory) Reached(machine client.ObjectKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.addresses[machine]
}

// Answered keeps what answers at the endpoint of a control plane; APIServerUnknown
// drops it.
func (m *Memory) Answered(controlPlane client.ObjectKey, state health.APIServerState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.endpoints[controlPlane] = state; state == health.APIServerUnknown {
		delete(m.endpoints, controlPlane)
	}
}

// Endpoint is what answered there last. It is told while nobody asks, and nothing is
// decided by it.
func (m *Memory) Endpoint(controlPlane client.ObjectKey) health.APIServerState {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.endpoints[controlPlane]
}
