package talossim

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// controlPlane refuses what only a control plane node can do
// (internal/app/internal/machinehelper/machinehelper.go).
func (a *api) controlPlane(name string) error {
	if a.settings == nil || !a.settings.controlPlane {
		return status.Errorf(codes.Unimplemented, "%s is only available on control plane nodes", name)
	}
	return nil
}

// Bootstrap makes the machine the first member of a new etcd cluster. As in
// Talos, only data on this very machine stands in the way, and a clock that is not set
// within timeTimeout. Etcd has its first data later, and each call stops what the last
// one has started (internal/app/machined/pkg/system/services/etcd.go, BootstrapEtcd).
func (a *api) Bootstrap(ctx context.Context, req *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	if err := a.controlPlane("bootstrap"); err != nil {
		return nil, err
	}
	var err error
	a.boot.sim.look(func() { err = a.boot.mayBootstrap() })
	if err != nil {
		return nil, err
	}
	// The service etcd waits for the same.
	if a.boot.sim.awaitFor(ctx, timeTimeout, func() bool { return a.boot.machine.etcd != "" }) != nil {
		return nil, status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	a.boot.sim.update(func() { err = a.boot.bootstrap(req.GetRecoverEtcd()) })
	switch {
	case errors.Is(err, etcdmodel.ErrDataExists):
		return nil, status.Error(codes.AlreadyExists, err.Error())
	case err != nil:
		return nil, err
	}
	return &machine.BootstrapResponse{Messages: []*machine.Bootstrap{{}}}, nil
}

// mayBootstrap refuses a bootstrap before the machine is so far that it has etcd. The lock
// is held.
func (b *boot) mayBootstrap() error {
	m := b.machine
	if !b.cri || m.etcd == etcdFinished && !m.hasData() || m.faults.StuckBooting {
		return status.Error(codes.FailedPrecondition, "bootstrap is not available yet")
	}
	return nil
}

// bootstrap starts etcd as the first member of a new cluster, whose data is restored from
// the database that was sent if it recovers. The lock is held.
func (b *boot) bootstrap(recovers bool) error {
	m := b.machine
	if err := b.mayBootstrap(); err != nil {
		return err
	}
	if !m.hasData() {
		// One that has joined and not run is stopped. The others keep it in their list.
		b.sim.etcd.Wipe(m.spec.Name)
		m.etcd, m.etcdFailure, m.etcdStarted = etcdPreparing, "", b.sim.options.Clock.Now()
		if b.sim.options.Delays.Bootstrap > 0 {
			b.bootstrapLater(recovers)
			return nil
		}
	}
	err := b.firstData(recovers)
	if err == nil && m.faults.LateBootstrap && m.hasData() {
		// Talos looks at the directory before and after it has stopped etcd.
		m.etcd, err = etcdFinished, errors.New("etcd data directory is not empty")
	}
	return err
}

// firstData makes the first data of a new cluster. That a database cannot be restored is
// the failure of the service, and no error of the call. The lock is held.
func (b *boot) firstData(recovers bool) error {
	m, begin := b.machine, b.sim.etcd.Bootstrap
	if recovers && !m.hasData() {
		if m.etcdFailure = m.unrestorable(); m.etcdFailure != "" {
			m.etcd = etcdFailed
			return nil
		}
		begin = b.sim.etcd.Recover
	}
	err := b.sim.judge.Bootstrap(b.settings.etcd, m.spec.Name, func() error {
		return begin(b.settings.etcd, m.spec.Name, b.settings.hostname, m.url(peerPort))
	})
	if err != nil {
		return err
	}
	// The member runs once the process does.
	b.sim.etcd.Stop(m.spec.Name)
	if recovers {
		m.disk.database.Restored = true
		b.sim.options.Clusters.Restore(b.settings.kubernetesCA.Crt)
	}
	return nil
}

// bootstrapLater has etcd get its first data after a while, unless it is started anew once
// more. The lock is held.
func (b *boot) bootstrapLater(recovers bool) {
	m := b.machine
	m.bootstrapping, m.bootstrap = true, m.bootstrap+1
	call := m.bootstrap
	b.sim.lives.Go(func() {
		b.sim.pause(b.sim.ctx, b.sim.options.Delays.Bootstrap)
		b.sim.update(func() {
			if m.bootstrap == call && m.bootstrapping && b.sim.ctx.Err() == nil {
				m.bootstrapping = false
				_ = b.firstData(recovers)
			}
		})
	})
}

// errNoAnswer says that no etcd answers: Talos' client of etcd waits until the
// caller gives up.
var errNoAnswer = errors.New("no etcd answers")

// answered is the error of a call of etcd. Etcd's own errors have no code.
func answered(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoAnswer):
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case doing == "":
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// local is the etcd of the machine. The lock is held.
func (a *api) local() (etcdmodel.Data, error) {
	data, found := a.boot.sim.etcd.Data(a.boot.machine.spec.Name)
	if !found || a.boot.machine.etcd != etcdRunning {
		return etcdmodel.Data{}, errNoAnswer
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
		return nil, errNoAnswer
	}
	if cluster.Leader() == 0 || a.boot.machine.faults.Parted {
		return nil, etcdmodel.ErrNoLeader
	}
	return cluster, nil
}

// errLearner is etcd's answer to what a learner cannot do
// (server/etcdserver/api/v3rpc/util.go of etcd v3.6.16, isRPCSupportedForLearner).
var errLearner = errors.New("etcdserver: rpc not supported for learner")

// EtcdMemberList tells the members. Unless it is asked for the local view, any
// control plane node may answer, as in Talos.
func (a *api) EtcdMemberList(ctx context.Context, req *machine.EtcdMemberListRequest) (*machine.EtcdMemberListResponse, error) {
	if err := a.controlPlane("member list"); err != nil {
		return nil, err
	}
	list, err := a.members(req.GetQueryLocal())
	if err != nil {
		return nil, answered(ctx, "", err)
	}
	return &machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{list}}, nil
}

func (a *api) members(local bool) (*machine.EtcdMembers, error) {
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	if local {
		if _, err := a.local(); err != nil {
			return nil, err
		}
		if a.boot.member().Learner {
			return nil, errLearner
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
	return list, nil
}

// clientURLs are where a member is reached; none when it has not run yet, or its node has
// no data any more. The lock is held.
func (s *Sim) clientURLs(id uint64) []string {
	for _, machine := range s.machines {
		if data, _ := s.etcd.Data(machine.spec.Name); data.ID == id && machine.hasData() {
			return []string{machine.url(clientPort)}
		}
	}
	return nil
}

// EtcdStatus tells the state of the machine's own member.
func (a *api) EtcdStatus(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdStatusResponse, error) {
	if err := a.controlPlane("etcd status"); err != nil {
		return nil, err
	}
	member, err := a.memberStatus()
	if err != nil {
		return nil, answered(ctx, "failed to query etcd status", err)
	}
	return &machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: member}}}, nil
}

func (a *api) memberStatus() (*machine.EtcdMemberStatus, error) {
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	data, err := a.local()
	if err != nil {
		return nil, err
	}
	const small, index = 20 << 20, 1000
	size := cmp.Or(a.boot.machine.faults.DatabaseBytes, small)
	member := &machine.EtcdMemberStatus{
		MemberId: data.ID, Leader: data.Cluster.Leader(), DbSize: size, DbSizeInUse: size / 2, IsLearner: a.boot.member().Learner,
		RaftTerm: data.Cluster.Term() + 1, RaftIndex: index, RaftAppliedIndex: index, ProtocolVersion: etcdVersion, StorageVersion: "3.6.0",
	}
	if a.boot.machine.faults.Parted {
		member.Leader = 0
	}
	if member.GetLeader() == 0 {
		member.Errors = append(member.Errors, "etcdserver: no leader")
	}
	// Each member tells the alarms of all (server/etcdserver/api/v3rpc/maintenance.go
	// of etcd v3.6.16, Status).
	for _, alarm := range data.Cluster.Alarms() {
		member.Errors = append(member.Errors, fmt.Sprintf("memberID:%d alarm:%s ", alarm.Member, alarm.Kind))
	}
	return member, nil
}

// EtcdAlarmList tells the alarms of all members of the machine's cluster. Etcd
// tells them with the consent of a quorum only, and waits for it.
func (a *api) EtcdAlarmList(ctx context.Context, _ *emptypb.Empty) (*machine.EtcdAlarmListResponse, error) {
	if err := a.controlPlane("etcd alarm list"); err != nil {
		return nil, err
	}
	list, err := a.alarms()
	if err != nil {
		return nil, answered(ctx, "failed to list etcd alarms", err)
	}
	return &machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{list}}, nil
}

func (a *api) alarms() (*machine.EtcdAlarm, error) {
	a.boot.sim.mu.Lock()
	defer a.boot.sim.mu.Unlock()
	local, err := a.local()
	switch {
	case err != nil:
		return nil, err
	case a.boot.member().Learner:
		return nil, errLearner
	case local.Cluster.Leader() == 0 || a.boot.machine.faults.Parted:
		return nil, errNoAnswer
	}
	list := &machine.EtcdAlarm{}
	for _, alarm := range local.Cluster.Alarms() {
		kind := machine.EtcdMemberAlarm_AlarmType(machine.EtcdMemberAlarm_AlarmType_value[alarm.Kind])
		list.MemberAlarms = append(list.MemberAlarms, &machine.EtcdMemberAlarm{MemberId: alarm.Member, Alarm: kind})
	}
	return list, nil
}
