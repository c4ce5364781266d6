package controllers

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// silenceTracker remembers since when nodes do not tell everything. It only
// holds conditions still for a while; after a restart the while begins anew.
type silenceTracker struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	since map[client.ObjectKey]map[string]time.Time
}

func newSilenceTracker(c clock.PassiveClock) *silenceTracker {
	return &silenceTracker{clock: c, since: map[client.ObjectKey]map[string]time.Time{}}
}

// observe records which Machines' nodes of a control plane are silent now, and
// tells for how long each has been.
func (t *silenceTracker) observe(controlPlane client.ObjectKey, silent []string) map[string]time.Duration {
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
