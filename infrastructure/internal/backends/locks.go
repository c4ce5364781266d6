package backends

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clusterLocks are locks by Cluster. One that nobody has or waits for is forgotten. The
// zero value is ready for use.
type clusterLocks struct {
	mu    sync.Mutex
	locks map[client.ObjectKey]*clusterLock
}

type clusterLock struct {
	sync.Mutex
	// users are those that have it, or wait for it.
	users int
}

// lock waits for the lock of a Cluster, and returns what gives it back.
func (l *clusterLocks) lock(cluster client.ObjectKey) (unlock func()) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[client.ObjectKey]*clusterLock{}
	}
	found := l.locks[cluster]
	if found == nil {
		found = &clusterLock{}
		l.locks[cluster] = found
	}
	found.users++
	l.mu.Unlock()
	found.Lock()

	return func() {
		found.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if found.users--; found.users == 0 {
			delete(l.locks, cluster)
		}
	}
}
