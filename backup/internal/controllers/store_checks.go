package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// check is how a store was when it was checked.
type check struct {
	// of is what was checked: another one is checked at once.
	of    string
	at    time.Time
	facts store.Facts
	err   error
}

// checks are the last checks of stores. After a restart of the manager all are due.
type checks struct {
	mu   sync.Mutex
	last map[types.NamespacedName]check
}

func newChecks() *checks { return &checks{last: map[types.NamespacedName]check{}} }

// get returns the last check of a store, and reports whether it was one of what is asked
// for. If not, it is an empty one of that.
func (c *checks) get(name types.NamespacedName, of string) (check, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, known := c.last[name]; known && found.of == of {
		return found, true
	}

	return check{of: of}, false
}

func (c *checks) set(name types.NamespacedName, done check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[name] = done
}

func (c *checks) forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, name)
}
