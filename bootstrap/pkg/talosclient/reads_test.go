package talosclient

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// having is a state with these resources.
func having(t *testing.T, resources ...resource.Resource) state.CoreState {
	t.Helper()
	kept := namespaced.NewState(inmem.Build)
	for _, res := range resources {
		NewWithT(t).Expect(kept.Create(t.Context(), res)).To(Succeed())
	}
	return kept
}

func TestHardwareIsToldAsItIs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	platform := talosruntime.NewPlatformMetadataSpec(talosruntime.NamespaceName, "")
	platform.TypedSpec().Platform = "nocloud"
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	*system.TypedSpec() = hardware.SystemInformationSpec{UUID: "4C4C4544-0042", SerialNumber: "S1", Manufacturer: "M", ProductName: "P"}
	one, two := hardware.NewProcessorInfo("1"), hardware.NewProcessorInfo("2")
	one.TypedSpec().CoreCount, two.TypedSpec().CoreCount = 4, 1<<31
	low, high := hardware.NewMemoryModuleInfo("1"), hardware.NewMemoryModuleInfo("2")
	low.TypedSpec().Size, high.TypedSpec().Size = 1024, 512
	disk := block.NewDisk(block.NamespaceName, "sda")
	*disk.TypedSpec() = block.DiskSpec{
		DevPath: "/dev/sda", Size: 1e9, Model: "m", Serial: "s", WWID: "w", BusPath: "/pci", Transport: "sata", Rotational: true, Readonly: true, CDROM: true, Symlinks: []string{"/dev/disk/by-id/x"},
	}
	version := &answers{reply: &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Arch: "arm64"}}}}}
	g.Expect(answering(version, having(t, platform, system, one, two, low, high, disk)).Hardware(t.Context())).To(Equal(Hardware{
		Platform: "nocloud", Mode: "metal", Architecture: "arm64", SystemUUID: "4c4c4544-0042", SerialNumber: "S1", Manufacturer: "M", ProductName: "P",
		CPUs: 4 + 1<<16, MemoryBytes: 1536 << 20,
		Disks: []Disk{{
			DevPath: "/dev/sda", SizeBytes: 1e9, Model: "m", Serial: "s", WWID: "w", BusPath: "/pci", Transport: "sata", Rotational: true, ReadOnly: true, CDROM: true,
			Symlinks: []string{"/dev/disk/by-id/x"},
		}},
	}))

	platform.TypedSpec().Platform = "container"
	g.Expect(answering(version, having(t, platform)).Hardware(t.Context())).To(Equal(Hardware{Platform: "container", Mode: "container", Architecture: "arm64"}))
}

func TestAddressesAreRead(t *testing.T) {
	t.Parallel()
	nodeIP := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	nodeIP.TypedSpec().Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	list := func(id string, addresses ...string) resource.Resource {
		res := network.NewNodeAddress(network.NamespaceName, id)
		for _, address := range addresses {
			res.TypedSpec().Addresses = append(res.TypedSpec().Addresses, netip.MustParsePrefix(address+"/24"))
		}
		return res
	}
	spec := func(id, address string, announced bool) resource.Resource {
		res := network.NewAddressSpec(network.NamespaceName, id)
		res.TypedSpec().Address, res.TypedSpec().AnnounceWithARP = netip.MustParsePrefix(address+"/32"), announced
		return res
	}
	linked := func(link, address string) resource.Resource {
		res := network.NewAddressStatus(network.NamespaceName, link)
		res.TypedSpec().LinkName, res.TypedSpec().Address = link, netip.MustParsePrefix(address+"/24")
		return res
	}
	resources := having(t, nodeIP,
		list(network.NodeAddressRoutedID, "10.0.0.1", "10.1.0.1", "10.0.0.100", "10.96.0.1"), list(network.NodeAddressCurrentID, "10.0.0.1", "10.1.0.1", "192.0.2.1", "10.0.0.100"),
		spec("static", "10.1.0.1", false), spec("vip", "10.0.0.100", true), linked("kube-ipvs0", "10.96.0.1"), linked("eth1", "10.1.0.1"))
	NewWithT(t).Expect(answering(&answers{}, resources).Addresses(t.Context())).To(Equal(Addresses{
		Node: []string{"10.0.0.1"}, Internal: []string{"10.1.0.1"}, External: []string{"192.0.2.1"},
	}))
}

func TestOneHostIsWrittenInSeveralWays(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		a, b string
		want bool
	}{
		"one address": {"10.0.0.1", "10.0.0.1", true}, "two addresses": {"10.0.0.1", "10.0.0.2", false}, "IPv6": {"fd00::1", "FD00:0:0::1", true},
		"IPv4 as IPv6": {"::ffff:10.0.0.1", "10.0.0.1", true}, "one name": {"a", "a", true}, "two names": {"a", "b", false}, "a name and an address": {"a", "10.0.0.1", false},
	} {
		NewWithT(t).Expect(SameHost(tt.a, tt.b)).To(Equal(tt.want), name)
		NewWithT(t).Expect(SameHost(tt.b, tt.a)).To(Equal(tt.want), name)
	}
}

func TestWhatANodeRunsIsTold(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	hostname := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	hostname.TypedSpec().Hostname = "cp-a"
	g.Expect(answering(&answers{}, having(t, hostname)).Hostname(t.Context())).To(Equal("cp-a"))

	kubelet := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	kubelet.TypedSpec().Args = []string{"--a=b", "--provider-id=talos://1"}
	g.Expect(answering(&answers{}, having(t, kubelet)).ProviderID(t.Context())).To(Equal("talos://1"))
	etcdSpec := etcd.NewSpec(etcd.NamespaceName, etcd.SpecID)
	etcdSpec.TypedSpec().Name, etcdSpec.TypedSpec().AdvertisedAddresses = "cp-a", []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	g.Expect(answering(&answers{}, having(t, etcdSpec)).EtcdSpec(t.Context())).To(Equal(EtcdSpec{Hostname: "cp-a", AdvertisedAddresses: []string{"10.0.0.1"}, QuotaBytes: DefaultEtcdQuota}))

	pod := func(id string, status map[string]any) resource.Resource {
		res := k8s.NewStaticPodStatus(k8s.NamespaceName, id)
		res.TypedSpec().PodStatus = status
		return res
	}
	conditions := func(ready, other string) []any {
		return []any{map[string]any{"type": "Ready", "status": ready}, map[string]any{"type": "Initialized", "status": other}, "nonsense"}
	}
	g.Expect(answering(&answers{}, having(t,
		pod("kube-system/a", map[string]any{"phase": "Running", "conditions": conditions("True", "False")}),
		pod("kube-system/b", map[string]any{"phase": "Pending", "conditions": conditions("False", "True")}), pod("c", nil),
	)).StaticPods(t.Context())).To(ConsistOf(StaticPod{Name: "a", Phase: "Running", Ready: true}, StaticPod{Name: "b", Phase: "Pending"}, StaticPod{Name: "c"}))

	manifest := func(id string, kinds ...string) *k8s.Manifest {
		res := k8s.NewManifest(k8s.ControlPlaneNamespaceName, id)
		for _, kind := range kinds {
			res.TypedSpec().Items = append(res.TypedSpec().Items, k8s.SingleManifest{Object: map[string]any{"kind": kind}})
		}
		return res
	}
	ours := manifest("00", "DaemonSet", "Secret", "ConfigMap")
	g.Expect(ours.Metadata().SetOwner(manifestController)).To(Succeed())
	resources := namespaced.NewState(inmem.Build)
	g.Expect(resources.Create(t.Context(), ours, state.WithCreateOwner(manifestController))).To(Succeed())
	g.Expect(resources.Create(t.Context(), manifest("99", "Deployment"))).To(Succeed())
	g.Expect(answering(&answers{}, resources).Manifests(t.Context())).To(Equal([]map[string]any{{"kind": "DaemonSet"}, {"kind": "ConfigMap"}}))
}

func TestServicesAreTold(t *testing.T) {
	t.Parallel()
	at := func(seconds int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(seconds, 0)) }
	event := func(state string, seconds int64) *machine.ServiceEvent {
		return &machine.ServiceEvent{State: state, Msg: state + "!", Ts: at(seconds)}
	}
	told := answering(&answers{reply: &machine.ServiceListResponse{Messages: []*machine.ServiceList{{Services: []*machine.ServiceInfo{
		{Id: "etcd", State: "Running", Health: &machine.ServiceHealth{Healthy: true}, Events: &machine.ServiceEvents{Events: []*machine.ServiceEvent{
			event("Starting", 1), event("Running", 2), event("Starting", 3), event("Running", 4),
		}}},
		{Id: "old", State: "Running", Health: &machine.ServiceHealth{Unknown: true}, Events: &machine.ServiceEvents{Events: []*machine.ServiceEvent{event("Running", 5), event("Running", 6)}}},
		{Id: "timeless", State: "Preparing", Events: &machine.ServiceEvents{Events: []*machine.ServiceEvent{{State: "Starting"}}}},
		{Id: "new", State: "Waiting"},
	}}}}}, having(t))
	NewWithT(t).Expect(told.Services(t.Context())).To(Equal([]Service{
		{ID: "etcd", State: "Running", HealthKnown: true, Healthy: true, LastMessage: "Running!", Started: time.Unix(3, 0).UTC()},
		{ID: "old", State: "Running", LastMessage: "Running!", Started: time.Unix(5, 0).UTC()},
		{ID: "timeless", State: "Preparing", HealthKnown: true},
		{ID: "new", State: "Waiting", HealthKnown: true},
	}))
}

// TestARestartWipesNothing: it is a reboot, and in a container the reset of no disk.
func TestARestartWipesNothing(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	restart := func(mode string) any {
		calls := &answers{reply: &machine.VersionResponse{Messages: []*machine.Version{{Platform: &machine.PlatformInfo{Mode: mode}}}}}
		g.Expect(answering(calls, having(t)).Restart(t.Context())).To(Succeed())

		return calls.asked
	}
	g.Expect(restart("metal")).To(BeAssignableToTypeOf(&machine.RebootRequest{}))
	g.Expect(restart("container")).To(And(
		HaveField("Graceful", false), HaveField("Reboot", true), HaveField("Mode", machine.ResetRequest_USER_DISKS), HaveField("UserDisksToWipe", BeEmpty()), HaveField("SystemPartitionsToWipe", BeEmpty()),
	))
}
