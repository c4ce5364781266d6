package talossim

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// resources are the COSI resources of one boot, as far as clients look at them.
type resources struct {
	state state.State
}

// newResources makes those that a machine has from the start of a boot.
func newResources(ctx context.Context, b *boot) (*resources, error) {
	r := &resources{state: state.WrapCore(namespaced.NewState(inmem.Build))}
	spec, personality := b.machine.spec, b.sim.options.Personality
	b.sim.mu.Lock()
	other, configured := b.machine.faults.OtherMachine, b.settings != nil
	b.sim.mu.Unlock()
	if other {
		spec.MAC, spec.UUID = "0e:0f:0f:0f:0f:0f", "0f0f0f0f-1111-4222-8333-444444444444"
	}

	platform := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	platform.TypedSpec().Platform = string(personality)
	processor := hardware.NewProcessorInfo("CPU-0")
	processor.TypedSpec().CoreCount = 4
	memory := hardware.NewMemoryModuleInfo("DIMM-0")
	memory.TypedSpec().Size = 8192
	made := []resource.Resource{platform, processor, memory, link(spec.MAC, personality)}
	if personality == Metal {
		made = append(made, metalResources(spec, configured)...)
	}
	for _, res := range made {
		if err := r.state.Create(ctx, res); err != nil {
			return nil, fmt.Errorf("making the resources of %s: %w", spec.Name, err)
		}
	}
	return r, nil
}

func link(mac string, personality Personality) resource.Resource {
	res := network.NewLinkStatus(network.NamespaceName, "eth0")
	address, err := net.ParseMAC(mac)
	if err == nil {
		res.TypedSpec().HardwareAddr = nethelpers.HardwareAddr(address)
	}
	res.TypedSpec().Type = nethelpers.LinkEther
	res.TypedSpec().LinkState = true
	if personality == Container {
		res.TypedSpec().Kind = "veth"
	}
	return res
}

func metalResources(spec MachineSpec, configured bool) []resource.Resource {
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	system.TypedSpec().UUID = strings.ToLower(spec.UUID)
	system.TypedSpec().Manufacturer, system.TypedSpec().ProductName = "talossim", "Metal"
	disk := block.NewDisk(block.NamespaceName, "vda")
	const size = 100 << 30
	disk.TypedSpec().DevPath, disk.TypedSpec().Size, disk.TypedSpec().Transport = "/dev/vda", size, "virtio"
	made := []resource.Resource{system, disk}
	for i, label := range []string{"META", "STATE", "EPHEMERAL"} {
		volume := block.NewVolumeStatus(block.NamespaceName, label)
		volume.TypedSpec().Phase = block.VolumePhaseMissing
		if configured || label == "META" {
			volume.TypedSpec().Phase = block.VolumePhaseReady
			volume.TypedSpec().Location = fmt.Sprintf("/dev/vda%d", i+4)
		}
		if configured && label != "META" {
			volume.TypedSpec().Filesystem = block.FilesystemTypeXFS
		}
		made = append(made, volume)
	}
	return made
}

// put makes a resource, or replaces it.
func (r *resources) put(ctx context.Context, res resource.Resource) {
	if err := r.state.Create(ctx, res); err == nil || !state.IsConflictError(err) {
		return
	}
	_, _ = r.state.UpdateWithConflicts(ctx, res.Metadata(), func(present resource.Resource) error { //nolint:errcheck // The boot has ended.
		return copySpec(present, res)
	})
}

// copySpec copies what changes during a boot.
func copySpec(into, from resource.Resource) error {
	switch source := from.(type) {
	case *runtime.MachineStatus:
		target, _ := into.(*runtime.MachineStatus)
		*target.TypedSpec() = *source.TypedSpec()
	case *network.HostnameStatus:
		target, _ := into.(*network.HostnameStatus)
		*target.TypedSpec() = *source.TypedSpec()
	}
	return nil
}

func (r *resources) setStage(ctx context.Context, stage runtime.MachineStage, unmet string) {
	status := runtime.NewMachineStatus()
	status.TypedSpec().Stage = stage
	status.TypedSpec().Status.Ready = unmet == ""
	if name, reason, found := strings.Cut(unmet, ": "); found {
		status.TypedSpec().Status.UnmetConditions = []runtime.UnmetCondition{{Name: name, Reason: reason}}
	}
	r.put(ctx, status)
}

// setNode tells what a node knows once its network is up.
func (r *resources) setNode(ctx context.Context, hostname, address string) {
	name := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	name.TypedSpec().Hostname = hostname
	r.put(ctx, name)
	ip := netip.MustParseAddr(address)
	nodeIP := k8s.NewNodeIP(k8s.NamespaceName, k8s.KubeletID)
	nodeIP.TypedSpec().Addresses = []netip.Addr{ip}
	r.put(ctx, nodeIP)
	addresses := network.NewNodeAddress(network.NamespaceName, network.NodeAddressCurrentID)
	addresses.TypedSpec().Addresses = []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}
	r.put(ctx, addresses)
}

// setStaticPods tells the static Pods of a control plane node.
func (r *resources) setStaticPods(ctx context.Context, hostname string) {
	for _, component := range []string{k8s.APIServerID, k8s.ControllerManagerID, k8s.SchedulerID} {
		pod := k8s.NewStaticPodStatus(k8s.NamespaceName, "kube-system/"+component+"-"+hostname)
		pod.TypedSpec().PodStatus = map[string]any{
			"phase":      "Running",
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		}
		r.put(ctx, pod)
	}
}
