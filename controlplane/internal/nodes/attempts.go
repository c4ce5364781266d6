package nodes

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

const (
	// BootstrapPatience is how long a node that took a bootstrap is left alone, unless
	// it has booted since, or its etcd has ended: it pulls the image of etcd first, for
	// which Talos gives itself 20 minutes, and another call begins that anew.
	BootstrapPatience = 10 * time.Minute
	// RestartPatience is how long a node may take to boot before it is asked again.
	RestartPatience = 10 * time.Minute
)

// Attempts remember what nodes were asked to do about etcd that must not be asked for
// again at once. After a restart of the manager there are none: what is asked for then
// rests on a look at the node just before.
type Attempts struct {
	clock    clock.PassiveClock
	patience time.Duration

	mu   sync.Mutex
	made map[client.ObjectKey]attempt
}

type attempt struct {
	at time.Time
	// run is the start of the service etcd that the attempt is about; zero when it is
	// not known.
	run time.Time
}

// NewAttempts remembers each attempt for so long.
func NewAttempts(c clock.PassiveClock, patience time.Duration) *Attempts {
	return &Attempts{clock: c, patience: patience, made: map[client.ObjectKey]attempt{}}
}

// Note records that the node of a Machine is asked now. etcd is its service after that.
func (a *Attempts) Note(machine client.ObjectKey, etcd talosclient.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made[machine] = attempt{at: a.clock.Now(), run: etcd.Started}
}

// Pending reports whether the node of a Machine was asked not long ago, and its etcd is
// in the same run still.
func (a *Attempts) Pending(machine client.ObjectKey, etcd talosclient.Service) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	made, found := a.made[machine]
	isSame := made.run.IsZero() || etcd.Started.IsZero() || made.run.Equal(etcd.Started)

	return found && isSame && a.clock.Since(made.at) < a.patience
}

// Forget drops what is remembered about the node of a Machine.
func (a *Attempts) Forget(machine client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.made, machine)
}
