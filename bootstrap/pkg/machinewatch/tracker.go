package machinewatch

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

const (
	// enough is how often a machine is looked at after its last change before
	// the watch alone is trusted: right after a boot it finds its disks, links
	// and addresses one by one.
	enough = 3
	// patience is how long a watch must have lasted to be opened again at once.
	patience = 10 * time.Second
)

// Tracker remembers what was seen of machines that are watched. That saves calls
// only: a new process looks again.
type Tracker struct {
	watcher *Watcher
	clock   clock.PassiveClock

	mu    sync.Mutex
	views map[client.ObjectKey]view
}

type view struct {
	// target is where the machine was looked for, and as what.
	target string
	// found is everything that was seen, and status the part of it that the
	// watch tells.
	found, status string
	times         int
	watchedAt     time.Time
}

// NewTracker returns a Tracker that watches through watcher.
func NewTracker(watcher *Watcher, passiveClock clock.PassiveClock) *Tracker {
	return &Tracker{watcher: watcher, clock: passiveClock, views: map[client.ObjectKey]view{}}
}

// Unchanged tells the status of a machine that need not be asked: it is watched, was
// seen often enough where target says, and has not changed since.
func (t *Tracker) Unchanged(key client.ObjectKey, target string) (talosclient.MachineStatus, bool) {
	status, watched := t.watcher.Latest(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.views[key]

	return status, watched && last.times >= enough && last.target == target && last.status == fmt.Sprint(status)
}

// Seen records a look at a machine, and watches it with watch. found is
// everything that it has told. It tells whether the watch is enough from now on;
// else the machine is to be looked at again.
func (t *Tracker) Seen(key client.ObjectKey, target string, status talosclient.MachineStatus, found string, watch func(*Watcher)) bool {
	now := view{target: target, status: fmt.Sprint(status), found: found, times: 1}
	watched := t.watcher.Watching(key)

	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.views[key]
	now.watchedAt = last.watchedAt
	if last.target == now.target && last.found == now.found && last.status == now.status {
		now.times = min(last.times+1, enough)
	}
	// A watch that breaks as soon as it is opened must not wake us for ever.
	if watched || now.watchedAt.IsZero() || t.clock.Since(now.watchedAt) >= patience {
		if !watched {
			now.watchedAt = t.clock.Now()
		}
		watch(t.watcher)
		watched = true
	}
	t.views[key] = now

	return watched && now.times >= enough
}

// Forget ends the watch of a machine, and forgets what was seen of it.
func (t *Tracker) Forget(key client.ObjectKey) {
	t.watcher.Stop(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.views, key)
}
