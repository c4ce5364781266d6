package nodes

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Since remembers since when something is so of the nodes or members of control planes. It
// is not recorded: after a restart of the manager the time begins anew. So what is done once
// a time is over, such as the removal of a member after spec.etcd.leaveTimeoutSeconds, comes
// later then, and never sooner.
type Since struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since map[client.ObjectKey]map[string]time.Time
}

// NewSince tells the time by a clock.
func NewSince(c clock.PassiveClock) *Since {
	return &Since{clock: c, since: map[client.ObjectKey]map[string]time.Time{}}
}

// Observe records which Machines' nodes of a control plane are silent now, and
// tells for how long each has been.
func (t *Since) Observe(controlPlane client.ObjectKey, silent []string) map[string]time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()

	now := t.clock.Now()
	previous := t.since[controlPlane]
	delete(t.since, controlPlane)
	if len(silent) == 0 {
		return nil
	}
	present := make(map[string]time.Time, len(silent))
	durations := make(map[string]time.Duration, len(silent))
	for _, machine := range silent {
		since, known := previous[machine]
		if !known {
			since = now
		}
		present[machine] = since
		durations[machine] = now.Sub(since)
	}
	t.since[controlPlane] = present

	return durations
}
