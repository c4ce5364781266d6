package talosclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// etcdMemberDirectory has content as soon as etcd ran once on a node.
const etcdMemberDirectory = "/var/lib/etcd/member"

type node struct {
	*conn
	release func()
}

var _ Node = &node{}

// Fingerprint implements Node.
func (n *node) Fingerprint() string { return n.pin.get() }

// Close implements Node.
func (n *node) Close() error {
	n.release()
	return nil
}

// bounded gives a unary call its deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, DefaultCallTimeout)
}

// Version implements Node.
func (n *node) Version(ctx context.Context) (string, error) {
	info, err := n.version(ctx)
	if err != nil {
		return "", err
	}
	return info.GetVersion().GetTag(), nil
}

func (n *node) version(ctx context.Context) (*machine.Version, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	response, err := n.Client.Version(ctx)
	if status.Code(err) == codes.Unimplemented {
		// Talos 1.12 in maintenance mode (internal/app/maintenance/server.go).
		return n.versionResource(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Talos version: %w", err)
	}
	return first(response.GetMessages(), "version")
}

// versionResource is the version as a resource, which has no more than the release.
func (n *node) versionResource(ctx context.Context) (*machine.Version, error) {
	res, err := safe.StateGetByID[*talosruntime.Version](ctx, n.COSI, talosruntime.NewVersion().Metadata().ID())
	if err != nil {
		return nil, fmt.Errorf("reading the Talos version: %w", err)
	}
	return &machine.Version{Version: &machine.VersionInfo{Tag: res.TypedSpec().Version}}, nil
}

// first is the single answer of a call that reaches one node.
func first[T any](messages []T, what string) (T, error) {
	if len(messages) != 1 {
		var none T
		return none, fmt.Errorf("reading the %s: %d answers instead of one", what, len(messages))
	}
	return messages[0], nil
}

// ApplyConfiguration implements Node.
func (n *node) ApplyConfiguration(ctx context.Context, configuration []byte) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := n.Client.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{
		Data: configuration,
		Mode: machine.ApplyConfigurationRequest_AUTO,
	})
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("%w: %s", ErrInvalidConfiguration, status.Convert(err).Message())
	}
	if err != nil {
		return fmt.Errorf("applying the machine configuration: %w", err)
	}
	return nil
}

// Reset implements Node.
func (n *node) Reset(ctx context.Context, options ResetOptions) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	request := &machine.ResetRequest{Graceful: false, Reboot: true}
	request.UserDisksToWipe = options.UserDisks
	for _, label := range options.SystemLabels {
		request.SystemPartitionsToWipe = append(request.SystemPartitionsToWipe, &machine.ResetPartitionSpec{Label: label, Wipe: true})
	}
	if err := n.ResetGeneric(ctx, request); err != nil {
		return fmt.Errorf("resetting the node: %w", refusal(err))
	}
	return nil
}

// WipeDevices implements Node.
func (n *node) WipeDevices(ctx context.Context, devices []string) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	request := &storage.BlockDeviceWipeRequest{}
	for _, device := range devices {
		request.Devices = append(request.Devices, &storage.BlockDeviceWipeDescriptor{
			Device: strings.TrimPrefix(device, "/dev/"), Method: storage.BlockDeviceWipeDescriptor_FAST, DropPartition: true,
		})
	}
	if err := n.BlockDeviceWipe(ctx, request); err != nil {
		return fmt.Errorf("wiping devices: %w", refusal(err))
	}
	return nil
}

// refusal tells an error with which Talos has answered from one that says that no
// answer came.
func refusal(err error) error {
	answered, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch answered.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return err
	default:
		return fmt.Errorf("%w: %s", ErrRefused, answered.Message())
	}
}

// EtcdDataExists implements Node.
func (n *node) EtcdDataExists(ctx context.Context) (bool, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	stream, err := n.LS(ctx, &machine.ListRequest{Root: etcdMemberDirectory})
	if err != nil {
		return false, fmt.Errorf("listing etcd's data directory: %w", err)
	}
	for {
		file, err := stream.Recv()
		if err == nil && file.GetError() != "" {
			err = errors.New(file.GetError())
		}
		switch {
		case errors.Is(err, io.EOF), isNoSuchFile(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("listing etcd's data directory: %w", err)
		case isEntry(file):
			return true, nil
		}
	}
}

// isNoSuchFile reads ENOENT out of the text: Talos passes the walk's error
// through without a code of its own. What answers instead of Talos when the
// socket of its API is missing has the same words, and a code.
func isNoSuchFile(err error) bool {
	return err != nil && status.Code(err) != codes.Unavailable && strings.Contains(err.Error(), "no such file or directory")
}

// isEntry tells a file below the directory from the directory itself, which
// the listing begins with.
func isEntry(file *machine.FileInfo) bool {
	return file.GetRelativeName() != "" && file.GetRelativeName() != "." && file.GetName() != etcdMemberDirectory
}

// EtcdMembers implements Node.
func (n *node) EtcdMembers(ctx context.Context) ([]EtcdMember, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	response, err := n.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: true})
	if err != nil {
		return nil, fmt.Errorf("listing etcd members: %w", err)
	}
	message, err := first(response.GetMessages(), "etcd member list")
	if err != nil {
		return nil, err
	}
	members := make([]EtcdMember, 0, len(message.GetMembers()))
	for _, m := range message.GetMembers() {
		members = append(members, EtcdMember{
			ID: m.GetId(), Hostname: m.GetHostname(), PeerURLs: m.GetPeerUrls(), ClientURLs: m.GetClientUrls(), Learner: m.GetIsLearner(),
		})
	}
	slices.SortFunc(members, func(a, b EtcdMember) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	})
	return members, nil
}

// EtcdStatus implements Node.
func (n *node) EtcdStatus(ctx context.Context) (EtcdStatus, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	response, err := n.Client.EtcdStatus(ctx)
	if err != nil {
		return EtcdStatus{}, fmt.Errorf("reading the etcd status: %w", err)
	}
	message, err := first(response.GetMessages(), "etcd status")
	if err != nil {
		return EtcdStatus{}, err
	}
	s := message.GetMemberStatus()
	return EtcdStatus{
		MemberID: s.GetMemberId(), Leader: s.GetLeader(), RaftTerm: s.GetRaftTerm(), RaftIndex: s.GetRaftIndex(),
		RaftAppliedIndex: s.GetRaftAppliedIndex(), DBSizeBytes: s.GetDbSize(), DBSizeInUseBytes: s.GetDbSizeInUse(),
		Learner: s.GetIsLearner(), Errors: s.GetErrors(), Version: s.GetProtocolVersion(),
	}, nil
}

// LeaveTimeout bounds EtcdLeave: a little more than the five minutes for which
// Talos tries.
const LeaveTimeout = 5*time.Minute + 15*time.Second

// EtcdForfeitLeadership implements Node.
func (n *node) EtcdForfeitLeadership(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := n.Client.EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{}); err != nil {
		return fmt.Errorf("forfeiting the leadership of etcd: %w", err)
	}
	return nil
}

// EtcdLeave implements Node.
func (n *node) EtcdLeave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, LeaveTimeout)
	defer cancel()
	if err := n.EtcdLeaveCluster(ctx, &machine.EtcdLeaveClusterRequest{}); err != nil {
		return fmt.Errorf("leaving etcd: %w", err)
	}
	return nil
}

// EtcdRemoveMember implements Node.
func (n *node) EtcdRemoveMember(ctx context.Context, id uint64) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := n.EtcdRemoveMemberByID(ctx, &machine.EtcdRemoveMemberByIDRequest{MemberId: id})
	if status.Code(err) == codes.NotFound {
		return ErrMemberNotFound
	}
	if err != nil {
		return fmt.Errorf("removing an etcd member: %w", err)
	}
	return nil
}

// EtcdAlarms implements Node.
func (n *node) EtcdAlarms(ctx context.Context) ([]EtcdAlarm, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	response, err := n.EtcdAlarmList(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing etcd alarms: %w", err)
	}
	message, err := first(response.GetMessages(), "etcd alarm list")
	if err != nil {
		return nil, err
	}
	var alarms []EtcdAlarm
	for _, a := range message.GetMemberAlarms() {
		if a.GetAlarm() != machine.EtcdMemberAlarm_NONE {
			alarms = append(alarms, EtcdAlarm{MemberID: a.GetMemberId(), Alarm: a.GetAlarm().String()})
		}
	}
	return alarms, nil
}

// Services implements Node.
func (n *node) Services(ctx context.Context) ([]Service, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	response, err := n.MachineClient.ServiceList(ctx, &emptypb.Empty{})
	if err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	message, err := first(response.GetMessages(), "service list")
	if err != nil {
		return nil, err
	}
	services := make([]Service, 0, len(message.GetServices()))
	for _, s := range message.GetServices() {
		service := Service{
			ID: s.GetId(), State: s.GetState(),
			HealthKnown: !s.GetHealth().GetUnknown(), Healthy: s.GetHealth().GetHealthy(),
		}
		if events := s.GetEvents().GetEvents(); len(events) > 0 {
			service.LastMessage = events[len(events)-1].GetMsg()
			service.Started = started(events)
		}
		services = append(services, service)
	}
	return services, nil
}
