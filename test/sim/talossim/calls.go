package talossim

import (
	"maps"
	"sync"
)

// callCounter counts the calls of the Talos API of a machine, over all its
// boots.
type callCounter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *callCounter) count(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[method]++
}

// Calls tells how often each method of the Talos API of the machine was called,
// by its full name as "/machine.MachineService/EtcdStatus", answered or refused.
// A watch counts once, when it is opened.
func (m *Machine) Calls() map[string]int {
	m.calls.mu.Lock()
	defer m.calls.mu.Unlock()
	return maps.Clone(m.calls.counts)
}
