package controllers

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// nodeMemory remembers what healthy nodes said, so that passes over a control
// plane at rest need not ask them again. What it gives may only be used to find
// that there is nothing to do: before anything is done, nodes are asked.
type nodeMemory struct {
	clock clock.PassiveClock

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

func newNodeMemory(c clock.PassiveClock) *nodeMemory {
	return &nodeMemory{
		clock: c, known: map[client.ObjectKey]remembered{}, addresses: map[client.ObjectKey]string{},
		endpoints: map[client.ObjectKey]health.APIServerState{},
	}
}

// remember keeps what the node of a Machine said now.
func (m *nodeMemory) remember(machine client.ObjectKey, facts health.Facts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[machine] = remembered{at: m.clock.Now(), facts: facts}
}

// forget drops what the node of a Machine said.
func (m *nodeMemory) forget(machine client.ObjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, machine)
}

// recall is what the node of a Machine said less than the healthy interval ago.
func (m *nodeMemory) recall(machine client.ObjectKey) (health.Facts, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.known[machine]

	return found.facts, ok && m.clock.Since(found.at) < healthyInterval
}

// reach keeps where the node of a Machine answers; empty drops it.
func (m *nodeMemory) reach(machine client.ObjectKey, address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.addresses[machine] = address; address == "" {
		delete(m.addresses, machine)
	}
}

// reached is where the node of a Machine answered last; empty when nobody knows.
func (m *nodeMemory) reached(machine client.ObjectKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.addresses[machine]
}

// answered keeps what answers at the endpoint of a control plane; APIServerUnknown
// drops it.
func (m *nodeMemory) answered(controlPlane client.ObjectKey, state health.APIServerState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.endpoints[controlPlane] = state; state == health.APIServerUnknown {
		delete(m.endpoints, controlPlane)
	}
}

// endpoint is what answered there last. It is told while nobody asks, and nothing is
// decided by it.
func (m *nodeMemory) endpoint(controlPlane client.ObjectKey) health.APIServerState {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.endpoints[controlPlane]
}
