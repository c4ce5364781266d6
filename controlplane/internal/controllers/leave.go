package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// leaves are the calls by which nodes were asked to leave etcd and that have not
// ended: Talos takes up to five minutes, longer than a pass may. After a restart
// there are none, and the nodes are asked again.
type leaves struct {
	ctx   context.Context //nolint:containedctx // The life of the manager.
	clock clock.PassiveClock
	ended chan event.GenericEvent

	mu    sync.Mutex
	calls map[client.ObjectKey]*leaveCall
	// broken is when calls ended of which nobody knows whether etcd carries them out.
	broken map[client.ObjectKey]time.Time
}

// leaveSettles is after what time etcd does not carry out any more what it was asked for:
// it gives up after 7 seconds (etcd v3.6, server/config/config.go, ReqTimeout).
const leaveSettles = 10 * time.Second

type leaveCall struct{ cancel context.CancelFunc }

func newLeaves(ctx context.Context, c clock.PassiveClock) *leaves {
	return &leaves{
		ctx: ctx, clock: c, ended: make(chan event.GenericEvent, 16),
		calls: map[client.ObjectKey]*leaveCall{}, broken: map[client.ObjectKey]time.Time{},
	}
}

// unsettled tells that the node of a Machine was told a moment ago not to leave, and may
// have been too far by then.
func (l *leaves) unsettled(machine client.ObjectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, found := l.broken[machine]
	if found && l.clock.Since(at) >= leaveSettles {
		delete(l.broken, machine)
		return false
	}

	return found
}

// running tells that the node of a Machine was asked and has not answered.
func (l *leaves) running(machine client.ObjectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.calls[machine] != nil
}

// start begins a call, unless one is running, and tells whether it has; its end
// starts a pass.
func (l *leaves) start(machine client.ObjectKey, call func(context.Context)) bool {
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

// stop ends a call, if one is running: what was safe may be so no longer.
func (l *leaves) stop(machine client.ObjectKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if call := l.calls[machine]; call != nil {
		call.cancel()
		delete(l.calls, machine)
		l.broken[machine] = l.clock.Now()
	}
}

// stopUnwantedLeaves ends the calls that the decision does not wait for: Talos
// would go on trying after what made the leave safe has changed. Once the member is
// out, the call goes on: Talos stops etcd and wipes its data by it.
func (r *Reconciler) stopUnwantedLeaves(s *scope) {
	for _, machine := range s.machines {
		waited := s.decision.Machine == machine.Name && s.decision.Action == plan.WaitForLeave
		if !waited && !s.facts.HasLeft(machine.Name) {
			r.leaves.stop(keyOf(machine))
		}
	}
}

// leaveEtcd asks the node of the decision to leave etcd. It hands the leadership
// over first if it can. A connection finds its way to whoever has the address later,
// so the node says before it is asked that it still is that member.
func (r *Reconciler) leaveEtcd(ctx context.Context, s *scope) error {
	machine, member := s.machine(s.decision.Machine), s.decision.MemberID
	node, err := r.connectAsAdmin(ctx, s, machine)
	if err != nil {
		return fmt.Errorf("asking the node of Machine %s to leave etcd: %w", machine.Name, err)
	}
	log := ctrl.LoggerFrom(ctx).WithValues("Machine", logMachine(s, machine.Name))
	log.Info("Asking the node to leave etcd")
	r.event(s, normal, "EtcdLeaveRequested", "LeaveEtcd", "Asking the node of Machine %s to leave etcd", machine.Name)

	started := r.leaves.start(keyOf(machine), func(ctx context.Context) {
		defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
		before := r.Clock.Now()
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
			log.Info("The node has not left etcd", "reason", err.Error(), "after", r.Clock.Since(before).Round(time.Second).String())
			return
		}
		log.Info("The node has left etcd", "after", r.Clock.Since(before).Round(time.Second).String())
	})
	if !started {
		_ = node.Close() // As above.
	}

	return nil
}

// removeMember takes the member of the decision out of etcd through the node of
// another one, which follows the leader.
func (r *Reconciler) removeMember(ctx context.Context, s *scope) error {
	// The cache may lack the Machine whose member it is.
	live := &scope{cluster: s.cluster, controlPlane: s.controlPlane}
	if err := listMachines(ctx, r.APIReader, live); err != nil {
		return err
	}
	if !slices.Equal(machineNames(live), machineNames(s)) {
		return nil // Its event starts another pass.
	}
	id, judged := s.decision.MemberID, s.facts.Etcd
	for _, machine := range s.machines {
		own, listed := ownMember(s.nodes[machine.Name])
		if !listed || own.ID == id || !judged.Answers(own.ID) {
			continue
		}
		node, err := r.connectAsAdmin(ctx, s, machine)
		if err != nil {
			return fmt.Errorf("removing an etcd member through the node of Machine %s: %w", machine.Name, err)
		}
		defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
		if err := node.EtcdRemoveMember(ctx, id); err != nil && !errors.Is(err, talosclient.ErrMemberNotFound) {
			return fmt.Errorf("removing an etcd member through the node of Machine %s: %w", machine.Name, err)
		}
		ctrl.LoggerFrom(ctx).Info(s.decision.Message, "member", etcd.FormatID(id), "through", machine.Name)
		r.event(s, warning, "EtcdMemberRemoved", "RemoveMember", "%s, through the node of Machine %s", s.decision.Message, machine.Name)

		return nil
	}

	return fmt.Errorf("removing etcd member %s: %w", etcd.FormatID(id), errNotAsked)
}

// connectAsAdmin opens a connection to the node of a Machine on which it can be
// changed. The caller closes it.
func (r *Reconciler) connectAsAdmin(ctx context.Context, s *scope, machine *clusterv1.Machine) (talosclient.Node, error) {
	credentials, err := r.certificates.For(s.clusterKey(), s.bundle, secrets.RoleAdmin)
	if err != nil {
		return nil, fmt.Errorf("making a client certificate for the Talos API: %w", err)
	}

	return talosclient.Reach(ctx, r.Dialer, credentials, r.target(machine))
}
