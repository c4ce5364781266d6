// Package lookout keeps watch on machines, and tells when a machine need not be
// asked: nothing but an open watch is then between the manager and it.
package lookout

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/follow"
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

// Lookout remembers what was seen of machines that are watched. That saves calls
// only: a new process looks again.
type Lookout struct {
	follower *follow.Follower
	clock    clock.PassiveClock

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
	followedAt    time.Time
}

// New returns a Lookout that watches through follower.
func New(follower *follow.Follower, passiveClock clock.PassiveClock) *Lookout {
	return &Lookout{follower: follower, clock: passiveClock, views: map[client.ObjectKey]view{}}
}

// Calm tells the status of a machine that need not be asked: it is watched, was
// seen often enough where target says, and has not changed since.
func (l *Lookout) Calm(key client.ObjectKey, target string) (talosclient.MachineStatus, bool) {
	status, watched := l.follower.Latest(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.views[key]

	return status, watched && last.times >= enough && last.target == target && last.status == fmt.Sprint(status)
}

// Seen records a look at a machine, and watches it with watch. found is
// everything that it has told. It tells whether the watch is enough from now on;
// else the machine is to be looked at again.
func (l *Lookout) Seen(key client.ObjectKey, target string, status talosclient.MachineStatus, found string, watch func(*follow.Follower)) bool {
	now := view{target: target, status: fmt.Sprint(status), found: found, times: 1}
	watched := l.follower.Following(key)

	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.views[key]
	now.followedAt = last.followedAt
	if last.target == now.target && last.found == now.found && last.status == now.status {
		now.times = min(last.times+1, enough)
	}
	// A watch that breaks as soon as it is opened must not wake us for ever.
	if watched || now.followedAt.IsZero() || l.clock.Since(now.followedAt) >= patience {
		if !watched {
			now.followedAt = l.clock.Now()
		}
		watch(l.follower)
		watched = true
	}
	l.views[key] = now

	return watched && now.times >= enough
}

// Forget ends the watch of a machine, and forgets what was seen of it.
func (l *Lookout) Forget(key client.ObjectKey) {
	l.follower.Stop(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.views, key)
}
