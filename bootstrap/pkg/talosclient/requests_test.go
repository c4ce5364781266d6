package talosclient_test

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// received is what a node is asked, and how long the caller waits for the answer.
type received struct {
	mu      sync.Mutex
	request proto.Message
	left    time.Duration
}

func (r *received) take() (proto.Message, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.request, r.left
}

// intercept implements grpc.UnaryServerInterceptor.
func (r *received) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	message, is := request.(proto.Message)
	if deadline, bounded := ctx.Deadline(); is && bounded && info.FullMethod != machine.MachineService_Version_FullMethodName {
		r.mu.Lock()
		r.request, r.left = proto.Clone(message), time.Until(deadline)
		r.mu.Unlock()
	}
	return handler(ctx, request)
}

// listing is what a node is asked for a directory.
type listing struct {
	machine.UnimplementedMachineServiceServer
	asked chan *machine.ListRequest
}

func (l *listing) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.9"}}}}, nil
}

func (l *listing) List(request *machine.ListRequest, _ grpc.ServerStreamingServer[machine.FileInfo]) error {
	l.asked <- request
	return nil
}

// TestRequests: what changes a node says exactly what is meant. A bit that is
// wrong wipes too much, leaves etcd by itself, or powers a host off for good.
func TestRequests(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	got, api := &received{}, &listing{asked: make(chan *machine.ListRequest, 1)}
	serveWith(t, cert, &ca, func(options ...grpc.ServerOption) *grpc.Server {
		server := grpc.NewServer(append(options, grpc.UnaryInterceptor(got.intercept))...)
		machine.RegisterMachineServiceServer(server, api)
		return server
	})
	pool := talosclient.New()
	t.Cleanup(pool.Close)
	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = node.Close() })

	const short = talosclient.DefaultCallTimeout
	for name, c := range map[string]struct {
		call func(ctx context.Context) error
		want proto.Message
		// within is how long the caller waits at most.
		within time.Duration
	}{
		"a reset of some partitions wipes these alone, leaves etcd and Kubernetes alone, and reboots": {
			call: func(ctx context.Context) error {
				return node.Reset(ctx, talosclient.ResetOptions{SystemLabels: []string{"STATE", "u-data"}})
			},
			want: &machine.ResetRequest{
				Graceful: false, Reboot: true, Mode: machine.ResetRequest_ALL, UserDisksToWipe: nil,
				SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "STATE", Wipe: true}, {Label: "u-data", Wipe: true}},
			},
			within: short,
		},
		"a reset of the whole system disk names no partition, and reboots": {
			call:   func(ctx context.Context) error { return node.Reset(ctx, talosclient.ResetOptions{}) },
			want:   &machine.ResetRequest{Graceful: false, Reboot: true, Mode: machine.ResetRequest_ALL},
			within: short,
		},
		"a configuration is applied as Talos finds best, and kept": {
			call: func(ctx context.Context) error { return node.ApplyConfiguration(ctx, []byte("machine: {}")) },
			want: &machine.ApplyConfigurationRequest{Data: []byte("machine: {}"), Mode: machine.ApplyConfigurationRequest_AUTO}, within: short,
		},
		"a bootstrap begins an empty etcd": {
			call: node.Bootstrap, want: &machine.BootstrapRequest{RecoverEtcd: false, RecoverSkipHashCheck: false}, within: short,
		},
		"a bootstrap from a snapshot takes a database without a checksum": {
			call: node.BootstrapFromSnapshot, want: &machine.BootstrapRequest{RecoverEtcd: true, RecoverSkipHashCheck: true}, within: short,
		},
		"the members are those that this very node knows": {
			call: func(ctx context.Context) error { _, err := node.EtcdMembers(ctx); return err },
			want: &machine.EtcdMemberListRequest{QueryLocal: true}, within: short,
		},
		"a node is given five minutes to leave etcd": {
			call: node.EtcdLeave, want: &machine.EtcdLeaveClusterRequest{}, within: talosclient.LeaveTimeout,
		},
		"the leadership is handed over": {call: node.EtcdForfeitLeadership, want: &machine.EtcdForfeitLeadershipRequest{}, within: short},
		"a member is removed by its ID": {
			call: func(ctx context.Context) error { return node.EtcdRemoveMember(ctx, 4711) },
			want: &machine.EtcdRemoveMemberByIDRequest{MemberId: 4711}, within: short,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(c.call(t.Context())).NotTo(Succeed(), "the node only listens")
			request, left := got.take()
			g.Expect(proto.Equal(request, c.want)).To(BeTrue(), "%v instead of %v", request, c.want)
			// Much less would be another bound.
			g.Expect(left).To(And(BeNumerically("<=", c.within), BeNumerically(">", c.within/2)))
		})
	}

	g.Expect(node.EtcdDataExists(t.Context())).To(BeFalse())
	g.Expect(proto.Equal(<-api.asked, &machine.ListRequest{Root: "/var/lib/etcd/member"})).To(BeTrue())
	g.Expect(talosclient.LeaveTimeout).To(BeNumerically(">", 5*time.Minute), "Talos tries for so long")
}
