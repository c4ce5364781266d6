package talossim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	machinetype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/secrets"
)

// types are the resources that a machine knows. Reading another type is refused,
// as Talos does, even where it has none of a type that is listed.
func types() []meta.ResourceWithRD {
	return []meta.ResourceWithRD{
		&block.Disk{}, &block.DiscoveredVolume{}, &block.SystemDisk{}, &block.VolumeConfig{}, &block.VolumeStatus{},
		&config.MachineConfig{}, &config.MachineType{},
		&etcd.Spec{},
		&hardware.MemoryModule{}, &hardware.Processor{}, &hardware.SystemInformation{},
		&k8s.KubeletSpec{}, &k8s.Manifest{}, &k8s.NodeIP{}, &k8s.Nodename{}, &k8s.NodeStatus{}, &k8s.StaticPodStatus{},
		&network.AddressSpec{}, &network.AddressStatus{}, &network.HostnameStatus{}, &network.LinkStatus{}, &network.NodeAddress{},
		&runtime.ExtensionStatus{}, &runtime.ImageFactorySchematic{}, &runtime.MachineStatus{}, &runtime.PlatformMetadata{}, &runtime.SecurityState{}, &runtime.Version{},
		&secrets.OSRoot{},
	}
}

// namespaces are those that resources are in. Some of these are one and the same.
func namespaces() []string {
	return []string{
		meta.NamespaceName, block.NamespaceName, config.NamespaceName, etcd.NamespaceName, hardware.NamespaceName, k8s.NamespaceName, k8s.ControlPlaneNamespaceName,
		network.NamespaceName, runtime.NamespaceName, secrets.NamespaceName,
	}
}

// resources are the COSI resources of one boot, as far as clients look at them.
type resources struct {
	state state.State
	// mu makes one out of a read and a write.
	mu sync.Mutex
}

// newResources makes those that a machine has from the start of a boot.
func newResources(ctx context.Context, m *Machine, release string) (*resources, error) {
	r := &resources{state: state.WrapCore(namespaced.NewState(inmem.Build))}
	if err := r.register(ctx); err != nil {
		return nil, fmt.Errorf("making the resources of %s: %w", m.spec.Name, err)
	}
	spec, personality := m.spec, m.sim.options.Personality
	var other bool
	m.sim.look(func() { other = m.faults.OtherMachine })
	if other {
		spec.MAC = "0e:0f:0f:0f:0f:0f"
		if spec.UUID != "" {
			spec.UUID, spec.SerialNumber = "0f0f0f0f-1111-4222-8333-444444444444", "OTHER"
		}
	}
	platform := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	platform.TypedSpec().Platform = string(personality)
	made := []resource.Resource{platform, link(spec.MAC, personality)}
	made = append(made, booted(spec, release)...)
	if personality == Container {
		// Who runs the container names it; other machines have no name yet.
		name := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
		name.TypedSpec().Hostname = cmp.Or(m.run.Hostname, spec.Name)
		made = append(made, name)
	}
	made = append(made, addresses(spec)...)
	if personality == Metal {
		made = append(made, metal(spec)...)
	}
	for _, res := range made {
		r.put(ctx, res)
	}
	r.setVolumes(ctx, m)
	return r, nil
}

func (r *resources) register(ctx context.Context) error {
	spaces, kinds := registry.NewNamespaceRegistry(r.state), registry.NewResourceRegistry(r.state)
	if err := spaces.RegisterDefault(ctx); err != nil {
		return err
	}
	if err := kinds.RegisterDefault(ctx); err != nil {
		return err
	}
	for _, namespace := range namespaces() {
		if err := spaces.Register(ctx, namespace, namespace); err != nil && !state.IsConflictError(err) {
			return err
		}
	}
	for _, kind := range types() {
		if err := kinds.Register(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// put makes a resource, or replaces it. It fails only when the boot has ended.
func (r *resources) put(ctx context.Context, res resource.Resource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	present, err := r.state.Get(ctx, res.Metadata())
	if err != nil {
		_ = r.state.Create(ctx, res)
		return
	}
	res.Metadata().SetVersion(present.Metadata().Version())
	_ = r.state.Update(ctx, res)
}

// forget takes those of a kind away that are not there any more.
func (r *resources) forget(ctx context.Context, kind resource.Kind, there map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	present, err := r.state.List(ctx, kind)
	if err != nil {
		return // The boot has ended.
	}
	for _, res := range present.Items {
		if !there[res.Metadata().ID()] {
			_ = r.state.Destroy(ctx, res.Metadata())
		}
	}
}

func link(mac string, personality Personality) resource.Resource {
	res := network.NewLinkStatus(network.NamespaceName, "eth0")
	address, err := net.ParseMAC(mac)
	if err == nil {
		res.TypedSpec().HardwareAddr = nethelpers.HardwareAddr(address)
	}
	res.TypedSpec().Type = nethelpers.LinkEther
	res.TypedSpec().LinkState = true
	res.TypedSpec().OperationalState = nethelpers.OperStateUp
	if personality == Container {
		res.TypedSpec().Kind = "veth"
	} else {
		res.TypedSpec().PermanentAddr = res.TypedSpec().HardwareAddr
	}
	return res
}

// addresses are the machine's, as known in maintenance mode too.
func addresses(spec MachineSpec) []resource.Resource {
	var (
		made     []resource.Resource
		prefixes []netip.Prefix
	)
	for i, address := range append([]string{spec.Address}, spec.OtherAddresses...) {
		const bits = 24
		prefix, link := netip.PrefixFrom(netip.MustParseAddr(address), bits), fmt.Sprintf("eth%d", i)
		status := network.NewAddressStatus(network.NamespaceName, link+"/"+prefix.String())
		status.TypedSpec().Address, status.TypedSpec().LinkName, status.TypedSpec().Family = prefix, link, nethelpers.FamilyInet4
		made, prefixes = append(made, status), append(prefixes, prefix)
	}
	for _, id := range []string{network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressRoutedID, network.NodeAddressAccumulativeID} {
		res := network.NewNodeAddress(network.NamespaceName, id)
		res.TypedSpec().Addresses = prefixes
		if id == network.NodeAddressDefaultID {
			res.TypedSpec().Addresses = prefixes[:1]
		}
		made = append(made, res)
	}
	return made
}

// metal is what a machine that is no container finds about itself.
func metal(spec MachineSpec) []resource.Resource {
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	system.TypedSpec().UUID, system.TypedSpec().SerialNumber = strings.ToLower(spec.UUID), spec.SerialNumber
	system.TypedSpec().Manufacturer, system.TypedSpec().ProductName = "talossim", "Metal"
	processor := hardware.NewProcessorInfo("CPU-0")
	processor.TypedSpec().CoreCount = 4
	memory := hardware.NewMemoryModuleInfo("DIMM-0")
	memory.TypedSpec().Size = 8192
	made := []resource.Resource{system, processor, memory}
	for _, disk := range spec.Disks {
		res := block.NewDisk(block.NamespaceName, strings.TrimPrefix(disk.Path, "/dev/"))
		target := res.TypedSpec()
		target.DevPath, target.Size, target.Model, target.Serial, target.Transport = disk.Path, disk.SizeBytes, disk.Model, disk.Serial, "virtio"
		target.Readonly = disk.ReadOnly
		target.SetSize(disk.SizeBytes)
		made = append(made, res)
	}
	return made
}

// booted is what a machine tells about what it has booted: the release, and the
// schematic as an extension; from 1.14 on also by itself
// (internal/app/machined/pkg/controllers/runtime/image_factory_schematic.go).
func booted(spec MachineSpec, release string) []resource.Resource {
	version := runtime.NewVersion()
	version.TypedSpec().Name, version.TypedSpec().Version = "Talos", release
	security := runtime.NewSecurityStateSpec(runtime.NamespaceName)
	security.TypedSpec().SecureBoot = spec.SecureBoot
	made := []resource.Resource{version, security}
	if spec.Schematic == "" {
		return made
	}
	const factory = "https://factory.talos.dev"
	extension := runtime.NewExtensionStatus(runtime.NamespaceName, "0")
	metadata := &extension.TypedSpec().Metadata
	metadata.Name, metadata.Version, metadata.Author = constants.ImageFactorySchematicExtensionName, spec.Schematic, "Image Factory ("+factory+")"
	made = append(made, extension)
	if isSince114(release) {
		schematic := runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID)
		schematic.TypedSpec().SchematicID, schematic.TypedSpec().Flavor, schematic.TypedSpec().APIURL = spec.Schematic, "Image Factory", factory
		made = append(made, schematic)
	}
	return made
}

// setNode tells what a machine knows once it has its configuration.
func (r *resources) setNode(ctx context.Context, s *settings, address, etcdAddress string) {
	name := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	name.TypedSpec().Hostname = s.hostname
	nodename := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
	nodename.TypedSpec().Nodename = s.hostname
	nodeIP := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	nodeIP.TypedSpec().Addresses = []netip.Addr{netip.MustParseAddr(address)}
	kind := config.NewMachineType()
	kind.SetMachineType(machinetype.TypeWorker)
	if s.controlPlane {
		kind.SetMachineType(machinetype.TypeControlPlane)
	}
	root := secrets.NewOSRoot(secrets.OSRootID)
	root.TypedSpec().IssuingCA, root.TypedSpec().CertSANDNSNames = &s.talosCA, s.talosSANs
	for _, res := range []resource.Resource{name, nodename, nodeIP, kubeletSpec(s), kind, root, config.NewMachineConfig(s.provider)} {
		r.put(ctx, res)
	}
	if s.controlPlane {
		if at, err := netip.ParseAddr(etcdAddress); err == nil {
			r.put(ctx, etcdSpec(s, at))
		}
		r.setManifests(ctx, s.kubelet)
	}
}

// kubeletSpec is what the kubelet is started with, as far as the configuration says it.
func kubeletSpec(s *settings) resource.Resource {
	res := k8s.NewKubeletSpec(k8s.NamespaceName, k8s.KubeletID)
	if kubelet := s.provider.K8sKubeletConfig(); kubelet != nil {
		arguments := kubelet.ExtraArgs()
		for _, argument := range slices.Sorted(maps.Keys(arguments)) {
			for _, value := range arguments[argument] {
				res.TypedSpec().Args = append(res.TypedSpec().Args, "--"+argument+"="+value)
			}
		}
	}
	return res
}

// etcdSpec is what etcd is started with. It listens everywhere, as long as nothing else is
// configured.
func etcdSpec(s *settings, at netip.Addr) resource.Resource {
	res, config := etcd.NewSpec(etcd.NamespaceName, etcd.SpecID), s.provider.Cluster().Etcd()
	spec := res.TypedSpec()
	spec.Name, spec.Image = s.hostname, config.Image()
	if spec.Image == constants.EtcdImage+":"+constants.DefaultEtcdVersion {
		spec.Image = constants.EtcdImage + ":v" + etcdVersion // It was that of the machinery which talossim links.
	}
	all := []netip.Addr{netip.IPv4Unspecified()}
	spec.AdvertisedAddresses, spec.ListenPeerAddresses, spec.ListenClientAddresses = []netip.Addr{at}, all, all
	spec.ExtraArgs = map[string]etcd.ArgValues{}
	for argument, values := range config.ExtraArgs() {
		spec.ExtraArgs[argument] = etcd.ArgValues{Values: values}
	}
	return res
}

// setStaticPods tells the static Pods of a control plane node.
func (r *resources) setStaticPods(ctx context.Context, hostname string, ready bool) {
	condition := "False"
	if ready {
		condition = "True"
	}
	for _, component := range []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID} {
		pod := k8s.NewStaticPodStatus(k8s.NamespaceName, "kube-system/"+component+"-"+hostname)
		pod.TypedSpec().PodStatus = map[string]any{
			"phase":      "Running",
			"conditions": []any{map[string]any{"type": "Ready", "status": condition}},
		}
		r.put(ctx, pod)
	}
}
