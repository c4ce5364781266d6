package probe

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// Log remembers when the machine of each host has last answered. It is for
// metrics, and lost with the process.
type Log struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	last map[client.ObjectKey]time.Time
}

// NewLog returns an empty Log.
func NewLog(passiveClock clock.PassiveClock) *Log {
	return &Log{clock: passiveClock, last: map[client.ObjectKey]time.Time{}}
}

// Reach is the function Reach for the machine of a host. An answer of the right
// machine is remembered.
func (l *Log) Reach(ctx context.Context, dialer talosclient.Dialer, host client.ObjectKey, target Target) Answer {
	answer := Reach(ctx, dialer, target)
	if answer.Node != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last[host] = l.clock.Now()
	}

	return answer
}

// Last is when the machine of a host has last answered; false when it never has.
func (l *Log) Last(host client.ObjectKey) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.last[host]

	return at, ok
}

// Forget is for a host that does not exist any more.
func (l *Log) Forget(host client.ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.last, host)
}
