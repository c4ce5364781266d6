package talossim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// EtcdRemoveMemberByID takes a member out of the cluster.
func (a *api) EtcdRemoveMemberByID(ctx context.Context, req *machine.EtcdRemoveMemberByIDRequest) (*machine.EtcdRemoveMemberByIDResponse, error) {
	if err := a.controlPlane("etcd remove member"); err != nil {
		return nil, err
	}
	var err error
	a.boot.sim.update(func() {
		var cluster *etcdmodel.Cluster
		if cluster, err = a.cluster(); err == nil && a.boot.machine.faults.StoppingEtcd {
			err = etcdmodel.ErrStopped
		}
		if err == nil {
			err = a.boot.sim.judge.Change(etcdmodel.CallRemove, a.boot.machine.spec.Name, cluster, req.GetMemberId(), func() error {
				return cluster.Remove(req.GetMemberId())
			})
		}
	})
	switch {
	case errors.Is(err, etcdmodel.ErrMemberNotFound):
		return nil, status.Errorf(codes.NotFound, "failed to remove member %d: %v", req.GetMemberId(), err)
	case err != nil:
		return nil, answered(ctx, fmt.Sprintf("failed to remove member: failed to remove member %d", req.GetMemberId()), err)
	}
	return &machine.EtcdRemoveMemberByIDResponse{Messages: []*machine.EtcdRemoveMemberByID{{}}}, nil
}

// EtcdLeaveCluster takes the machine's own member out, stops etcd and wipes its
// data. Etcd is not started again in this boot. Where etcd finds its cluster
// unhealthy, or is ending, Talos tries again for leaveTimeout. A caller who gives up
// after the member is out leaves the data behind, and an etcd that ends as often as it
// is started (internal/pkg/etcd/etcd.go, LeaveCluster).
func (a *api) EtcdLeaveCluster(ctx context.Context, _ *machine.EtcdLeaveClusterRequest) (*machine.EtcdLeaveClusterResponse, error) {
	if err := a.controlPlane("etcd leave"); err != nil {
		return nil, err
	}
	if err := a.awaitMember(ctx); err != nil {
		return nil, err
	}
	var failure error
	var id uint64
	err := a.boot.sim.awaitFor(ctx, leaveTimeout, func() bool {
		var data etcdmodel.Data
		if data, failure = a.local(); failure != nil {
			return true
		}
		id = data.ID
		failure = a.leave(data)
		return !errors.Is(failure, etcdmodel.ErrUnhealthy) && !errors.Is(failure, etcdmodel.ErrStopped)
	})
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, fmt.Errorf("failed to leave cluster: 2 error(s) occurred:\n\tfailed to remove member %d: %w\n\ttimeout", id, failure)
	case failure != nil:
		return nil, answered(ctx, fmt.Sprintf("failed to leave cluster: 1 error(s) occurred:\n\tfailed to remove member %d", id), failure)
	}
	a.boot.sim.pause(ctx, a.boot.sim.options.Delays.Leave)
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	a.boot.sim.update(func() {
		a.boot.sim.etcd.Wipe(a.boot.machine.spec.Name)
		a.boot.machine.etcd = etcdFinished
	})
	return &machine.EtcdLeaveClusterResponse{Messages: []*machine.EtcdLeaveCluster{{}}}, nil
}

const (
	// memberTimeout is how long Talos waits until its etcd is healthy, before it can tell
	// which member is to leave: a learner never is (internal/pkg/etcd/local.go).
	memberTimeout = 3 * time.Minute
	// leaveTimeout is how long it tries to take that member out.
	leaveTimeout = 5 * time.Minute
)

// awaitMember waits until the machine knows which member is its own.
func (a *api) awaitMember(ctx context.Context) error {
	if err := a.boot.sim.awaitFor(ctx, memberTimeout, a.boot.healthy); err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return errors.New("failed to leave cluster: 1 error(s) occurred:\n\tfailed to get local etcd member ID: context deadline exceeded")
}

// leave takes the machine's member out; one that is out already is no error. The
// lock is held.
func (a *api) leave(data etcdmodel.Data) error {
	m := a.boot.machine
	switch {
	case m.faults.Parted:
		return etcdmodel.ErrNoLeader
	case m.faults.StoppingEtcd:
		return etcdmodel.ErrStopped
	}
	return m.sim.judge.Change(etcdmodel.CallLeave, m.spec.Name, data.Cluster, data.ID, func() error {
		if err := data.Cluster.Remove(data.ID); !errors.Is(err, etcdmodel.ErrMemberNotFound) {
			return err
		}
		return nil
	})
}

// EtcdForfeitLeadership hands the leadership to the first other member of the
// list; it tells to which, or nothing when the machine does not lead.
func (a *api) EtcdForfeitLeadership(ctx context.Context, _ *machine.EtcdForfeitLeadershipRequest) (*machine.EtcdForfeitLeadershipResponse, error) {
	if err := a.controlPlane("etcd forfeit leadership"); err != nil {
		return nil, err
	}
	answer := &machine.EtcdForfeitLeadership{}
	var err error
	a.boot.sim.update(func() { answer.Member, err = a.forfeit() })
	if err != nil {
		return nil, answered(ctx, "failed to forfeit leadership", err)
	}
	return &machine.EtcdForfeitLeadershipResponse{Messages: []*machine.EtcdForfeitLeadership{answer}}, nil
}

// forfeit returns the name of the new leader. The lock is held.
func (a *api) forfeit() (string, error) {
	data, err := a.local()
	if err != nil {
		return "", err
	}
	cluster, err := a.cluster()
	if err != nil {
		return "", fmt.Errorf("failed to list etcd members: %w", err)
	}
	members := cluster.Members()
	if len(members) == 1 {
		return "", errors.New("cannot forfeit leadership, only one member")
	}
	if cluster.Leader() != data.ID {
		return "", nil
	}
	other := members[0]
	if other.ID == data.ID {
		other = members[1]
	}
	switch {
	case other.Learner:
		return "", errors.New("etcdserver: bad leader transferee")
	case !other.Up:
		// It waits for the other one.
		return "", errNoAnswer
	}
	return other.Name, cluster.MoveLeader(other.ID)
}
