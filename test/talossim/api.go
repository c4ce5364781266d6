package talossim

import (
	"context"
	"errors"
	"runtime"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// api is the machine service of one boot. What it lacks is unimplemented.
type api struct {
	machine.UnimplementedMachineServiceServer
	boot *boot
}

// order hands an order to the machine. Only the first one of a boot counts.
func (a *api) order(next order) error {
	select {
	case a.boot.machine.orders <- next:
		return nil
	default:
		return status.Error(codes.FailedPrecondition, "locked: another sequence is running")
	}
}

// ApplyConfiguration takes a configuration in maintenance mode.
func (a *api) ApplyConfiguration(_ context.Context, req *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	if a.boot.settings != nil {
		return nil, status.Error(codes.Unimplemented, "changing the configuration of a running machine is not simulated")
	}
	if _, err := parse(req.GetData(), a.boot.sim.options.Personality); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !req.GetDryRun() {
		if err := a.order(order{apply: req.GetData()}); err != nil {
			return nil, err
		}
	}
	return &machine.ApplyConfigurationResponse{Messages: []*machine.ApplyConfiguration{{Mode: machine.ApplyConfigurationRequest_REBOOT}}}, nil
}

// Reset wipes the machine and boots it.
func (a *api) Reset(_ context.Context, req *machine.ResetRequest) (*machine.ResetResponse, error) {
	next := order{reset: true}
	for _, partition := range req.GetSystemPartitionsToWipe() {
		if partition.GetWipe() {
			next.labels = append(next.labels, partition.GetLabel())
		}
	}
	if len(next.labels) > 0 && a.boot.sim.options.Personality == Container {
		return nil, status.Error(codes.FailedPrecondition, "failed to get system disk: not found")
	}
	if err := a.order(next); err != nil {
		return nil, err
	}
	return &machine.ResetResponse{Messages: []*machine.Reset{{}}}, nil
}

// Version tells the release.
func (a *api) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{
		Version:  &machine.VersionInfo{Tag: a.boot.sim.options.TalosVersion, Os: runtime.GOOS, Arch: runtime.GOARCH},
		Platform: &machine.PlatformInfo{Name: string(a.boot.sim.options.Personality)},
	}}}, nil
}

// ServiceList tells the services, as far as clients look at them.
func (a *api) ServiceList(context.Context, *emptypb.Empty) (*machine.ServiceListResponse, error) {
	service := func(id, state string, healthy bool) *machine.ServiceInfo {
		return &machine.ServiceInfo{
			Id: id, State: state, Events: &machine.ServiceEvents{Events: []*machine.ServiceEvent{{State: state, Msg: "Simulated"}}},
			Health: &machine.ServiceHealth{Unknown: !healthy, Healthy: healthy},
		}
	}
	services := []*machine.ServiceInfo{service("apid", "Running", true), service("machined", "Running", true)}
	if a.boot.settings != nil {
		services = append(services, service("kubelet", "Running", true))
		a.boot.sim.mu.Lock()
		runs := a.boot.machine.etcdRuns
		a.boot.sim.mu.Unlock()
		switch {
		case a.boot.settings.controlPlane && runs:
			services = append(services, service("etcd", "Running", true), service("trustd", "Running", true))
		case a.boot.settings.controlPlane:
			services = append(services, service("etcd", "Preparing", false), service("trustd", "Running", true))
		}
	}
	return &machine.ServiceListResponse{Messages: []*machine.ServiceList{{Services: services}}}, nil
}

// etcdDirectory is where etcd keeps its data.
const etcdDirectory = "/var/lib/etcd/member"

var errNoSuchFile = errors.New("lstat " + etcdDirectory + ": no such file or directory")

// List lists the data directory of etcd.
func (a *api) List(req *machine.ListRequest, stream grpc.ServerStreamingServer[machine.FileInfo]) error {
	a.boot.sim.mu.Lock()
	data := a.boot.machine.disk.etcdMember != 0
	a.boot.sim.mu.Unlock()
	if req.GetRoot() != etcdDirectory || !data {
		return stream.Send(&machine.FileInfo{Metadata: &common.Metadata{}, Name: req.GetRoot(), RelativeName: ".", Error: errNoSuchFile.Error()})
	}
	for _, file := range []*machine.FileInfo{
		{Name: etcdDirectory, RelativeName: ".", IsDir: true},
		{Name: etcdDirectory + "/wal", RelativeName: "wal", IsDir: true},
		{Name: etcdDirectory + "/snap", RelativeName: "snap", IsDir: true},
	} {
		if err := stream.Send(file); err != nil {
			return err
		}
	}
	return nil
}

// Bootstrap makes the machine the first member of a new etcd cluster. As in
// Talos, only data on this very machine stands in the way.
func (a *api) Bootstrap(context.Context, *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	b := a.boot
	if b.settings == nil || !b.settings.controlPlane {
		return nil, status.Error(codes.FailedPrecondition, "bootstrap can only be performed on a control plane node")
	}
	taken := false
	b.sim.update(func() {
		if taken = b.machine.disk.etcdMember != 0; !taken {
			b.machine.disk.etcdMember = b.sim.etcd(b.settings).Bootstrap(b.settings.hostname, b.peerURL())
		}
	})
	if taken {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
}

// errEtcdDown is what machined answers while etcd does not run.
var errEtcdDown = status.Error(codes.FailedPrecondition, "etcd is not running")

// EtcdMemberList tells the members.
func (a *api) EtcdMemberList(context.Context, *machine.EtcdMemberListRequest) (*machine.EtcdMemberListResponse, error) {
	b := a.boot
	b.sim.mu.Lock()
	defer b.sim.mu.Unlock()
	if !b.machine.etcdRuns {
		return nil, errEtcdDown
	}
	list := &machine.EtcdMembers{}
	for _, member := range b.sim.etcd(b.settings).Members() {
		list.Members = append(list.Members, &machine.EtcdMember{Id: member.ID, Hostname: member.Name, PeerUrls: []string{member.PeerURL}, IsLearner: member.Learner})
	}
	return &machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{list}}, nil
}

// EtcdStatus tells the state of the machine's own member.
func (a *api) EtcdStatus(context.Context, *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	b := a.boot
	b.sim.mu.Lock()
	defer b.sim.mu.Unlock()
	if !b.machine.etcdRuns {
		return nil, errEtcdDown
	}
	const size = 1 << 20
	return &machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: &machine.EtcdMemberStatus{
		MemberId: b.machine.disk.etcdMember, Leader: b.sim.etcd(b.settings).Leader(), DbSize: size, DbSizeInUse: size / 2,
		RaftTerm: 2, RaftIndex: 100, RaftAppliedIndex: 100, ProtocolVersion: "3.6.0",
	}}}}, nil
}

// EtcdAlarmList tells no alarm: none is simulated yet.
func (a *api) EtcdAlarmList(context.Context, *emptypb.Empty) (*machine.EtcdAlarmListResponse, error) {
	return &machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{{}}}, nil
}
