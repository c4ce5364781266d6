package talosclient

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// answers is a connection on which every call has the same answer.
type answers struct {
	reply proto.Message
	end   error
	// asked is what was asked last, besides the version.
	asked any
}

// Invoke implements grpc.ClientConnInterface.
func (a *answers) Invoke(_ context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	if method != machine.MachineService_Version_FullMethodName {
		a.asked = request
	}
	if into, is := reply.(proto.Message); is && a.reply != nil && into.ProtoReflect().Descriptor() == a.reply.ProtoReflect().Descriptor() {
		proto.Merge(into, a.reply)
	}
	return a.end
}

// NewStream implements grpc.ClientConnInterface.
func (a *answers) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, a.end
}

// partly is a state of which one kind of resources cannot be read.
type partly struct {
	state.CoreState
	broken resource.Type
	// breaks breaks each watch.
	breaks bool
}

var errBroken = errors.New("it cannot be read")

// Get implements state.CoreState.
func (p *partly) Get(ctx context.Context, of resource.Pointer, options ...state.GetOption) (resource.Resource, error) {
	if of.Type() == p.broken {
		return nil, errBroken
	}
	return p.CoreState.Get(ctx, of, options...)
}

// List implements state.CoreState.
func (p *partly) List(ctx context.Context, of resource.Kind, options ...state.ListOption) (resource.List, error) {
	if of.Type() == p.broken {
		return resource.List{}, errBroken
	}
	return p.CoreState.List(ctx, of, options...)
}

// Watch implements state.CoreState.
func (p *partly) Watch(ctx context.Context, of resource.Pointer, events chan<- state.Event, options ...state.WatchOption) error {
	if of.Type() == p.broken {
		return errBroken
	}
	if p.breaks {
		go func() { events <- state.Event{Type: state.Errored, Error: errBroken} }()
		return nil
	}
	return p.CoreState.Watch(ctx, of, events, options...)
}

// answering is a node with these answers and resources.
func answering(calls *answers, resources state.CoreState) *node {
	return &node{conn: &conn{Client: &client.Client{MachineClient: machine.NewMachineServiceClient(calls), COSI: state.WrapCore(resources)}}}
}

// calls are the calls of a node, by name, as far as they have an error.
func calls(n *node) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"WatchMachineStatus": func(ctx context.Context) error { return n.WatchMachineStatus(ctx, func(MachineStatus) {}) },
		"Version":            func(ctx context.Context) error { _, err := n.Version(ctx); return err },
		"MachineStatus":      func(ctx context.Context) error { _, err := n.MachineStatus(ctx); return err },
		"Hardware":           func(ctx context.Context) error { _, err := n.Hardware(ctx); return err },
		"Volumes":            func(ctx context.Context) error { _, err := n.Volumes(ctx); return err },
		"Addresses":          func(ctx context.Context) error { _, err := n.Addresses(ctx); return err },
		"Hostname":           func(ctx context.Context) error { _, err := n.Hostname(ctx); return err },
		"StaticPods":         func(ctx context.Context) error { _, err := n.StaticPods(ctx); return err },
		"Manifests":          func(ctx context.Context) error { _, err := n.Manifests(ctx); return err },
		"ProviderID":         func(ctx context.Context) error { _, err := n.ProviderID(ctx); return err },
		"EtcdSpec":           func(ctx context.Context) error { _, err := n.EtcdSpec(ctx); return err },
		"EtcdDataExists":     func(ctx context.Context) error { _, err := n.EtcdDataExists(ctx); return err },
		"EtcdMembers":        func(ctx context.Context) error { _, err := n.EtcdMembers(ctx); return err },
		"EtcdStatus":         func(ctx context.Context) error { _, err := n.EtcdStatus(ctx); return err },
		"EtcdAlarms":         func(ctx context.Context) error { _, err := n.EtcdAlarms(ctx); return err },
		"EtcdSnapshot": func(ctx context.Context) error {
			snapshot, err := n.EtcdSnapshot(ctx)
			if err != nil {
				return err
			}
			_, err = io.ReadAll(snapshot)
			return errors.Join(err, snapshot.Close())
		},
		"Services":              func(ctx context.Context) error { _, err := n.Services(ctx); return err },
		"ApplyConfiguration":    func(ctx context.Context) error { return n.ApplyConfiguration(ctx, nil) },
		"Bootstrap":             n.Bootstrap,
		"BootstrapFromSnapshot": n.BootstrapFromSnapshot,
		"EtcdRecover":           func(ctx context.Context) error { return n.EtcdRecover(ctx, strings.NewReader("")) },
		"Restart":               n.Restart,
		"EtcdLeave":             n.EtcdLeave,
		"EtcdForfeitLeadership": n.EtcdForfeitLeadership,
		"EtcdRemoveMember":      func(ctx context.Context) error { return n.EtcdRemoveMember(ctx, 1) },
	}
}

// TestACallThatFailsIsNoAnswer: what is not known is never taken for what is not there.
func TestACallThatFailsIsNoAnswer(t *testing.T) {
	t.Parallel()
	silent := calls(answering(&answers{end: status.Error(codes.Unavailable, "gone")}, namespaced.NewState(inmem.Build)))
	for name := range strings.FieldsSeq(`Version Hardware EtcdDataExists EtcdMembers EtcdStatus EtcdAlarms EtcdSnapshot Services
		ApplyConfiguration Bootstrap BootstrapFromSnapshot EtcdRecover Restart EtcdLeave EtcdForfeitLeadership EtcdRemoveMember`) {
		NewWithT(t).Expect(silent[name](t.Context())).To(MatchError(ContainSubstring("gone")), name)
	}
	empty := calls(answering(&answers{}, namespaced.NewState(inmem.Build)))
	for name := range strings.FieldsSeq("Version Hardware EtcdMembers EtcdStatus EtcdAlarms Services Restart") {
		NewWithT(t).Expect(empty[name](t.Context())).To(MatchError(ContainSubstring("0 answers instead of one")), name)
	}
	for name := range strings.FieldsSeq("ApplyConfiguration Bootstrap BootstrapFromSnapshot EtcdLeave EtcdForfeitLeadership EtcdRemoveMember") {
		NewWithT(t).Expect(empty[name](t.Context())).To(Succeed(), name)
	}
	gone := calls(answering(&answers{end: status.Error(codes.NotFound, "no such member")}, namespaced.NewState(inmem.Build)))
	NewWithT(t).Expect(gone["EtcdRemoveMember"](t.Context())).To(MatchError(ErrMemberNotFound))
}

// TestAResourceThatCannotBeReadIsNoAnswer is the same for resources. One that is not
// there is: the node has none.
func TestAResourceThatCannotBeReadIsNoAnswer(t *testing.T) {
	t.Parallel()
	replies := &answers{reply: &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.9"}}}}}
	for broken, name := range map[resource.Type]string{
		talosruntime.MachineStatusType: "MachineStatus", network.HostnameStatusType: "Hostname", k8s.StaticPodStatusType: "StaticPods", k8s.ManifestType: "Manifests",
		k8s.KubeletSpecType: "ProviderID", etcd.SpecType: "EtcdSpec", block.DiscoveredVolumeType: "Volumes", block.VolumeStatusType: "Volumes",
		talosruntime.PlatformMetadataType: "Hardware", hardware.SystemInformationType: "Hardware", hardware.ProcessorType: "Hardware",
		hardware.MemoryModuleType: "Hardware", block.DiskType: "Hardware", network.LinkStatusType: "Hardware",
		k8s.NodeIPType: "Addresses", network.NodeAddressType: "Addresses", network.AddressSpecType: "Addresses", network.AddressStatusType: "Addresses",
		talosruntime.ExtensionStatusType: "Hardware", talosruntime.SecurityStateType: "Hardware",
	} {
		resources := &partly{CoreState: namespaced.NewState(inmem.Build), broken: broken}
		call := calls(answering(replies, resources))[name]
		NewWithT(t).Expect(call(t.Context())).To(MatchError(errBroken), "%s of %s", name, broken)
		resources.broken = ""
		NewWithT(t).Expect(call(t.Context())).To(Succeed(), "%s without %s", name, broken)
	}
	for _, resources := range []*partly{{broken: talosruntime.MachineStatusType}, {breaks: true}} {
		resources.CoreState = namespaced.NewState(inmem.Build)
		NewWithT(t).Expect(calls(answering(replies, resources))["WatchMachineStatus"](t.Context())).To(MatchError(errBroken))
	}
	old := &answers{end: status.Error(codes.Unimplemented, "not in maintenance mode")}
	NewWithT(t).Expect(calls(answering(old, namespaced.NewState(inmem.Build)))["Version"](t.Context())).NotTo(Succeed(), "nor is it told as a resource")
	installation := calls(answering(replies, &partly{CoreState: namespaced.NewState(inmem.Build), broken: block.VolumeStatusType}))
	NewWithT(t).Expect(installation["Hardware"](t.Context())).To(MatchError(errBroken), "whether Talos is installed")
}

func TestAnswersAreToldAsTheyAre(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	told := func(reply proto.Message) *node {
		return answering(&answers{reply: reply}, namespaced.NewState(inmem.Build))
	}

	g.Expect(told(&machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{{Members: []*machine.EtcdMember{
		{Id: 3, Hostname: "c", IsLearner: true}, {Id: 1, Hostname: "a", PeerUrls: []string{"https://10.0.0.1:2380"}, ClientUrls: []string{"https://10.0.0.1:2379"}}, {Id: 2, Hostname: "b"},
	}}}}).EtcdMembers(t.Context())).To(Equal([]EtcdMember{
		{ID: 1, Hostname: "a", PeerURLs: []string{"https://10.0.0.1:2380"}, ClientURLs: []string{"https://10.0.0.1:2379"}}, {ID: 2, Hostname: "b"}, {ID: 3, Hostname: "c", Learner: true},
	}))
	g.Expect(told(&machine.EtcdStatusResponse{Messages: []*machine.EtcdStatus{{MemberStatus: &machine.EtcdMemberStatus{
		MemberId: 1, Leader: 2, RaftTerm: 3, RaftIndex: 4, RaftAppliedIndex: 5, DbSize: 6, DbSizeInUse: 7, IsLearner: true, Errors: []string{"e"}, ProtocolVersion: "3.6.12",
	}}}}).EtcdStatus(t.Context())).To(Equal(EtcdStatus{
		MemberID: 1, Leader: 2, RaftTerm: 3, RaftIndex: 4, RaftAppliedIndex: 5, DBSizeBytes: 6, DBSizeInUseBytes: 7, Learner: true, Errors: []string{"e"}, Version: "3.6.12",
	}))
	g.Expect(told(&machine.EtcdAlarmListResponse{Messages: []*machine.EtcdAlarm{{MemberAlarms: []*machine.EtcdMemberAlarm{
		{MemberId: 1}, {MemberId: 2, Alarm: machine.EtcdMemberAlarm_CORRUPT}, {MemberId: 3, Alarm: machine.EtcdMemberAlarm_NOSPACE},
	}}}}).EtcdAlarms(t.Context())).To(Equal([]EtcdAlarm{{MemberID: 2, Alarm: "CORRUPT"}, {MemberID: 3, Alarm: "NOSPACE"}}))
	_, err := told(&machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{{}, {}}}).EtcdMembers(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("2 answers")))
	_, err = told(&machine.EtcdMemberListResponse{Messages: []*machine.EtcdMembers{{Metadata: &common.Metadata{Error: "of a proxy"}}}}).EtcdMembers(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("of a proxy")))
}

func TestLinksAreThoseByWhichAMachineIsKnown(t *testing.T) {
	t.Parallel()
	const permanent, present = "52:54:00:AA:00:01", "52:54:00:aa:00:02"
	physical := func(s *network.LinkStatusSpec) { s.Type = nethelpers.LinkEther }
	with := func(kind string, master uint32) func(*network.LinkStatusSpec) {
		return func(s *network.LinkStatusSpec) { s.Type, s.Kind, s.MasterIndex = nethelpers.LinkEther, kind, master }
	}
	for name, tt := range map[string]struct {
		link    func(*network.LinkStatusSpec)
		address string
	}{
		"a physical one":                       {physical, present},
		"one with an address of its own":       {func(s *network.LinkStatusSpec) { physical(s); s.PermanentAddr = address(t, permanent) }, strings.ToLower(permanent)},
		"one of a bond":                        {with("", 7), present},
		"one without an address":               {func(s *network.LinkStatusSpec) { physical(s); s.HardwareAddr = nil }, ""},
		"the link of a container":              {with("veth", 0), present},
		"the other end of a Pod's":             {with("veth", 7), ""},
		"a bond":                               {with("bond", 0), ""},
		"a link of a bridge that is a dummy":   {with("dummy", 7), ""},
		"a tunnel":                             {func(s *network.LinkStatusSpec) { s.Type = nethelpers.LinkTunnel }, ""},
		"the loopback link, which has none":    {func(s *network.LinkStatusSpec) { s.Type, s.HardwareAddr = nethelpers.LinkLoopbck, nil }, ""},
		"a virtual one that would be physical": {with("vlan", 0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			resources := namespaced.NewState(inmem.Build)
			link := network.NewLinkStatus(network.NamespaceName, "eth0")
			link.TypedSpec().HardwareAddr, link.TypedSpec().LinkState = address(t, present), true
			tt.link(link.TypedSpec())
			g.Expect(resources.Create(t.Context(), link)).To(Succeed())
			found := Hardware{}
			g.Expect(answering(&answers{}, resources).readLinks(t.Context(), &found)).To(Succeed())
			if tt.address == "" {
				g.Expect(found.Links).To(BeEmpty())
				return
			}
			g.Expect(found.Links).To(Equal([]Link{{Name: "eth0", HardwareAddress: tt.address, Up: true}}))
		})
	}
}

func address(t *testing.T, text string) nethelpers.HardwareAddr {
	t.Helper()
	parsed, err := net.ParseMAC(text)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return nethelpers.HardwareAddr(parsed)
}
