package nodes

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// Leaves are the calls by which nodes were asked to leave etcd and that have not
// ended: Talos takes up to five minutes, longer than a reconcile may. After a restart
// there are none, and the nodes are asked again.
type Leaves struct {
	ctx   context.Context //nolint:containedctx // The life of the manager.
	clock clock.PassiveClock
	ended chan event.GenericEvent

	mu    sync.Mutex
	calls map[client.ObjectKey]*leaveCall
	// broken is when calls ended of which nobody knows whether etcd carries them out.
	broken map[client.ObjectKey]time.Time
}

// LeaveSettles is after what time etcd does not carry out any more what it was asked for:
// it gives up after 7 seconds (etcd v3.6, server/config/config.go, ReqTimeout).
const LeaveSettles = 10 * time.Second

type leaveCall struct{ cancel context.CancelFunc }

// NewLeaves keeps calls that end with ctx.
func NewLeaves(ctx context.Context, c clock.PassiveClock) *Leaves {
	return &Leaves{
		ctx: ctx, clock: c, ended: make(chan event.GenericEvent, 16),
		calls: map[client.ObjectKey]*leaveCall{}, broken: map[client.ObjectKey]time.Time{},
	}
}

// Unsettled reports whether the node of a Machine was told a moment ago not to leave, and
// may have been too far by then.
func (l *Leaves) Unsettled(machine client.ObjectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, found := l.broken[machine]
	if found && l.clock.Since(at) >= LeaveSettles {
		delete(l.broken, machine)
		return false
	}

	return found
}

// Running reports whether the node of a Machine was asked and has not answered.
func (l *Leaves) Running(machine client.ObjectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.calls[machine] != nil
}

// Start begins a call, unless one is running, and reports whether it has; its
// end is an event.
func (l *Leaves) Start(machine client.ObjectKey, call func(context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[machine] != nil {
		return false
	}
	ctx, cancel := context.WithCancel(l.ctx)
	started := &leaveCall{cancel: cancel}
	l.calls[machine] = started
	go func() {
		call(ctx)
		cancel()
		l.mu.Lock()
		if l.calls[machine] == started {
			delete(l.calls, machine)
		}
		l.mu.Unlock()
		select {
		case l.ended <- event.GenericEvent{Object: MachineOf(machine)}:
		case <-l.ctx.Done():
		}
	}()

	return true
}

// Stop ends a call, if one is running: what was safe may be so no longer.
func (l *Leaves) Stop(machine client.ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if call := l.calls[machine]; call != nil {
		call.cancel()
		delete(l.calls, machine)
		l.broken[machine] = l.clock.Now()
	}
}

// Ended are the events of calls that have ended.
func (l *Leaves) Ended() <-chan event.GenericEvent { return l.ended }

// Leaver is a node that can be asked to leave etcd.
type Leaver interface {
	EtcdForfeitLeadership(ctx context.Context) error
	EtcdStatus(ctx context.Context) (talosclient.EtcdStatus, error)
	EtcdLeave(ctx context.Context) error
}

// Leave asks a node to leave etcd. It hands the leadership over first if it can. A
// connection finds its way to whoever has the address later, so the node says before it is
// asked that it still is that member.
func Leave(ctx context.Context, node Leaver, member uint64, c clock.PassiveClock, log logr.Logger) {
	before := c.Now()
	if err := node.EtcdForfeitLeadership(ctx); err != nil {
		log.Info("The node does not hand the leadership of etcd over", "reason", err.Error())
	}
	switch status, err := node.EtcdStatus(ctx); {
	case err != nil:
		log.Info("The node does not tell its etcd member any more", "reason", err.Error())
		return
	case status.MemberID != member:
		log.Info("Another etcd member answers at the address of the node", "member", etcd.FormatID(status.MemberID))
		return
	case status.Leader == member:
		log.Info("The node still leads etcd")
	}
	if err := node.EtcdLeave(ctx); err != nil {
		log.Info("The node has not left etcd", "reason", err.Error(), "after", c.Since(before).Round(time.Second).String())
		return
	}
	log.Info("The node has left etcd", "after", c.Since(before).Round(time.Second).String())
}
