package talossim

import (
	"context"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/test/etcdmodel"
)

// controlPlane refuses what only a control plane node can do
// (internal/app/internal/machinehelper/machinehelper.go).
func (a *api) controlPlane(name string) error {
	switch {
	case a.settings == nil:
		return status.Errorf(codes.Unimplemented, "machine type is not set, cannot use %s API", name)
	case !a.settings.controlPlane:
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", name)
	}
	return nil
}

// Bootstrap makes the machine the first member of a new etcd cluster. As in
// Talos, only data on this very machine stands in the way.
func (a *api) Bootstrap(context.Context, *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	if err := a.controlPlane("bootstrap"); err != nil {
		return nil, err
	}
	b := a.boot
	var err error
	b.sim.update(func() {
		if b.machine.etcd == "" || b.machine.etcd == etcdFinished || b.machine.faults.StuckBooting {
			err = status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
			return
		}
		if err = b.sim.etcd.Bootstrap(a.settings.etcd, b.machine.spec.Name, a.settings.hostname, b.machine.url(peerPort)); err == nil {
			// The member runs once the process does.
			b.sim.etcd.Stop(b.machine.spec.Name)
		}
	})
	switch {
	case errors.Is(err, etcdmodel.ErrDataExists):
		return nil, status.Error(codes.AlreadyExists, err.Error())
	case err != nil:
		return nil, err
	}
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
}

// errEtcdDown is what a client of etcd says when nothing listens.
var errEtcdDown = status.Error(codes.Unavailable, "connection error: desc = \"transport: Error while dialing: connect: connection refused\"") //nolint:gochecknoglobals // A constant.

// refusal gives an error of etcd its code.
func refusal(err error) error {
	code := codes.FailedPrecondition
	switch {
	case errors.Is(err, etcdmodel.ErrNoLeader), errors.Is(err, etcdmodel.ErrUnhealthy):
		code = codes.Unavailable
	case errors.Is(err, etcdmodel.ErrMemberNotFound):
		code = codes.NotFound
	}
	return status.Error(code, err.Error())
}

// local is the etcd of the machine. The lock is held.
func (a *api) local() (etcdmodel.Data, error) {
	data, found := a.boot.sim.etcd.Data(a.boot.machine.spec.Name)
	if !found || !a.boot.member().Up {
		return etcdmodel.Data{}, errEtcdDown
	}
	return data, nil
}

// cluster is the etcd cluster that answers at the control plane nodes: that of
// the machine, if it has one. The lock is held.
func (a *api) cluster() (*etcdmodel.Cluster, error) {
	cluster := a.boot.sim.etcd.Answering(a.settings.etcd)
	if data, found := a.boot.sim.etcd.Data(a.boot.machine.spec.Name); found {
		cluster = data.Cluster
	}
	if cluster == nil {
		return nil, errEtcdDown
	}
	if cluster.Leader() == 0 {
		return nil, refusal(etcdmodel.ErrNoLeader)
	}
	return cluster, nil
}

// EtcdMemberList tells the members. Unless it is asked for the local view, any
// control plane node may answer, as in Talos.
func (a *api) EtcdMemberList(_ context.Context, req *machine.EtcdMemberListRequest) (*machine.EtcdMemberListResponse, error) {
	if err := a.controlPlane("member list"); err != nil {
		return nil, err
	}
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	if req.GetQueryLocal() {
		if _, err := a.local(); err != nil {
			return nil, err
		}
	}
	cluster, err := a.cluster()
	if err != nil {
		return nil, err
	}
	list := &machine.EtcdMembers{}
	for _, member := range cluster.Members() {
		list.LegacyMembers = append(list.LegacyMembers, member.Name)
		list.Members = append(list.Members, &machine.EtcdMember{
			Id: member.ID, Hostname: member.Name, PeerUrls: []string{member.PeerURL}, ClientUrls: a.boot.sim.clientURLs(member.ID), IsLearner: member.Learner,
		})
	}
	return &machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{list}}, nil
}

// clientURLs are where a member is reached; none when its node has no data any
// more. The lock is held.
func (s *Sim) clientURLs(id uint64) []string {
	for _, machine := range s.machines {
		if data, found := s.etcd.Data(machine.spec.Name); found && data.ID == id {
			return []string{machine.url(clientPort)}
		}
	}
	return nil
}

// EtcdStatus tells the state of the machine's own member.
func (a *api) EtcdStatus(context.Context, *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	if err := a.controlPlane("etcd status"); err != nil {
		return nil, err
	}
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	data, err := a.local()
	if err != nil {
		return nil, fmt.Errorf("failed to query etcd status: %w", err)
	}
	const size, index = 20 << 20, 1000
	member := &machine.EtcdMemberStatus{
		MemberId: data.ID, Leader: data.Cluster.Leader(), DbSize: size, DbSizeInUse: size / 2, IsLearner: a.boot.member().Learner,
		RaftTerm: data.Cluster.Term() + 1, RaftIndex: index, RaftAppliedIndex: index, ProtocolVersion: "3.6.12", StorageVersion: "3.6.0",
	}
	if member.GetLeader() == 0 {
		member.Errors = append(member.Errors, "etcdserver: no leader")
	}
	return &machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: member}}}, nil
}

// EtcdAlarmList tells the alarms of all members of the machine's cluster.
func (a *api) EtcdAlarmList(context.Context, *emptypb.Empty) (*machine.EtcdAlarmListResponse, error) {
	if err := a.controlPlane("etcd alarm list"); err != nil {
		return nil, err
	}
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	local, err := a.local()
	if err != nil {
		return nil, fmt.Errorf("failed to list etcd alarms: %w", err)
	}
	list := &machine.EtcdAlarm{}
	for _, other := range a.boot.sim.machines {
		data, found := a.boot.sim.etcd.Data(other.spec.Name)
		if alarm := machine.EtcdMemberAlarm_AlarmType_value[other.faults.Alarm]; found && data.Cluster == local.Cluster && alarm != 0 {
			list.MemberAlarms = append(list.MemberAlarms, &machine.EtcdMemberAlarm{MemberId: data.ID, Alarm: machine.EtcdMemberAlarm_AlarmType(alarm)})
		}
	}
	return &machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{list}}, nil
}

// EtcdRemoveMemberByID takes a member out of the cluster.
func (a *api) EtcdRemoveMemberByID(_ context.Context, req *machine.EtcdRemoveMemberByIDRequest) (*machine.EtcdRemoveMemberByIDResponse, error) {
	if err := a.controlPlane("etcd remove member"); err != nil {
		return nil, err
	}
	var err error
	a.boot.sim.update(func() {
		var cluster *etcdmodel.Cluster
		if cluster, err = a.cluster(); err == nil {
			if err = cluster.Remove(req.GetMemberId()); err != nil {
				err = refusal(err)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdRemoveMemberByIDResponse{Messages: []*machine.EtcdRemoveMemberByID{{}}}, nil
}

// EtcdLeaveCluster takes the machine's own member out, stops etcd and wipes its
// data. Etcd is not started again in this boot.
func (a *api) EtcdLeaveCluster(context.Context, *machine.EtcdLeaveClusterRequest) (*machine.EtcdLeaveClusterResponse, error) {
	if err := a.controlPlane("etcd leave"); err != nil {
		return nil, err
	}
	var err error
	a.boot.sim.update(func() {
		if _, err = a.local(); err != nil {
			return
		}
		if err = a.boot.sim.etcd.Leave(a.boot.machine.spec.Name); err != nil {
			err = refusal(err)
			return
		}
		a.boot.machine.etcd = etcdFinished
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdLeaveClusterResponse{Messages: []*machine.EtcdLeaveCluster{{}}}, nil
}

// EtcdForfeitLeadership hands the leadership to another member; it tells to
// which, or nothing when the machine does not lead.
func (a *api) EtcdForfeitLeadership(context.Context, *machine.EtcdForfeitLeadershipRequest) (*machine.EtcdForfeitLeadershipResponse, error) {
	if err := a.controlPlane("etcd forfeit leadership"); err != nil {
		return nil, err
	}
	var err error
	answer := &machine.EtcdForfeitLeadership{}
	a.boot.sim.update(func() {
		var data etcdmodel.Data
		if data, err = a.local(); err != nil || data.Cluster.Leader() != data.ID {
			return
		}
		err = refusal(etcdmodel.ErrUnhealthy)
		for _, member := range data.Cluster.Members() {
			if member.ID != data.ID && data.Cluster.MoveLeader(member.ID) == nil {
				answer.Member, err = member.Name, nil
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return &machine.EtcdForfeitLeadershipResponse{Messages: []*machine.EtcdForfeitLeadership{answer}}, nil
}
