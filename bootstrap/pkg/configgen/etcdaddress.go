package configgen

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

const (
	// loopback is the link that has the etcd address: packets to the address
	// from the machine itself stay there, all others the Service sends to the
	// address that the machine has just now.
	loopback = "lo"

	everyIPv4, everyIPv6 = "0.0.0.0/0", "::/0"
)

// errNoEtcd: etcd needs more than an address.
var errNoEtcd = errors.New("the machine has an etcd address, but cluster.etcd of the configuration of this control plane machine is missing")

// ownAddressArguments are the arguments by which etcd would tell other members
// another address than the one that Talos chooses.
var ownAddressArguments = []string{"advertise-client-urls", "initial-advertise-peer-urls"}

// setEtcdAddress gives etcd an address that stays when those of the machine
// change. Only etcd is told of it: as address of the Node it would be wrong, it
// leads to no other port.
func setEtcdAddress(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if !host.EtcdAddress.IsValid() || roleOf(cfg) != RoleControlPlane {
		return cfg, nil
	}
	address := host.EtcdAddress.Unmap()
	if err := fitsEtcd(cfg, address); err != nil {
		return nil, err
	}
	prefix := netip.PrefixFrom(address, address.BitLen())
	cfg, err := addLoopbackAddress(cfg, prefix)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		return advertise(document, prefix)
	}); err != nil {
		return nil, err
	}
	return excludeFromNodeIP(cfg, prefix)
}

// fitsEtcd refuses an address with which Talos would wait for ever: it offers
// etcd no address that it keeps to the link, nor one of the cluster's networks.
func fitsEtcd(cfg coreconfig.Provider, address netip.Addr) error {
	if !address.IsGlobalUnicast() || address.Zone() != "" {
		return fmt.Errorf("the etcd address %s is not one that other machines reach", address)
	}
	if networks := cfg.K8sNetworkConfig(); networks != nil {
		for _, of := range slices.Concat(networks.PodCIDRs(), networks.ServiceCIDRs()) {
			if of.Contains(address) {
				return fmt.Errorf("the etcd address %s lies in %s, a pod or service network of this cluster, so Talos would not give it to etcd: choose pod and service networks unlike those of the management cluster", address, of)
			}
		}
	}
	return nil
}

// advertise makes the address that of the member. Etcd listens everywhere,
// since packets to the address arrive at one that is not known yet.
func advertise(document *v1alpha1.Config, prefix netip.Prefix) error {
	if document.ClusterConfig == nil || document.ClusterConfig.EtcdConfig == nil {
		return errNoEtcd
	}
	etcd := document.ClusterConfig.EtcdConfig
	for _, argument := range ownAddressArguments {
		if _, stated := etcd.EtcdExtraArgs[argument]; stated {
			return fmt.Errorf("cluster.etcd.extraArgs states %s, but the address of the etcd member is that of the machine's peer Service, %s: leave it out", argument, prefix.Addr())
		}
	}
	etcd.EtcdSubnet = "" //nolint:staticcheck // Users still state it.
	etcd.EtcdAdvertisedSubnets = []string{prefix.String()}
	etcd.EtcdListenSubnets = []string{every(prefix.Addr())}
	return nil
}

// every is the network of all addresses of the family of an address.
func every(address netip.Addr) string {
	if address.Is4() {
		return everyIPv4
	}
	return everyIPv6
}

// addLoopbackAddress adds an address where the configuration states the
// loopback link already, else where it states other links.
func addLoopbackAddress(cfg coreconfig.Provider, prefix netip.Prefix) (coreconfig.Provider, error) {
	section := cfg.RawV1Alpha1().MachineConfig.MachineNetwork //nolint:staticcheck // Users still state it.
	switch {
	case statesLoopback(cfg):
	case section != nil && len(section.NetworkInterfaces) > 0: //nolint:staticcheck // As above.
		return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
			addDeviceAddress(document.MachineConfig.MachineNetwork, prefix) //nolint:staticcheck // As above.
			return nil
		})
	default:
		extended, err := container.New(append(cfg.Clone().Documents(), network.NewLinkConfigV1Alpha1(loopback))...)
		if err != nil {
			return nil, err
		}
		cfg = extended
	}
	return container.PatchDocument(cfg, func(link *network.LinkConfigV1Alpha1) error {
		there := slices.ContainsFunc(link.LinkAddresses, func(stated network.AddressConfig) bool { return stated.AddressAddress == prefix })
		if link.MetaName == loopback && !there {
			link.LinkAddresses = append(link.LinkAddresses, network.AddressConfig{AddressAddress: prefix})
		}
		return nil
	})
}

// statesLoopback reports whether a document states the loopback link.
func statesLoopback(cfg coreconfig.Provider) bool {
	return slices.ContainsFunc(cfg.Documents(), func(document coreconfigDocument) bool {
		link, isLink := document.(*network.LinkConfigV1Alpha1)
		return isLink && link.MetaName == loopback
	})
}

// addDeviceAddress adds an address to the loopback link of
// machine.network.interfaces.
func addDeviceAddress(section *v1alpha1.NetworkConfig, prefix netip.Prefix) { //nolint:staticcheck // Users still state it.
	device := (&staticNetwork{StaticNetwork: &StaticNetwork{Interface: loopback}}).device(section)
	if device.DeviceCIDR != "" {
		// Talos takes the older field alone, or not at all.
		device.DeviceAddresses, device.DeviceCIDR = append(device.DeviceAddresses, device.DeviceCIDR), ""
	}
	if !slices.Contains(device.DeviceAddresses, prefix.String()) {
		device.DeviceAddresses = append(device.DeviceAddresses, prefix.String())
	}
}

// excludeFromNodeIP keeps an address from becoming that of the Node. What the
// user states stays, and where nothing is stated what Talos would choose from.
func excludeFromNodeIP(cfg coreconfig.Provider, prefix netip.Prefix) (coreconfig.Provider, error) {
	without := func(subnets []string) []string {
		if len(subnets) == 0 {
			subnets = nodeSubnets(cfg, prefix.Addr())
		}
		// An exclusion holds for what is stated before it.
		excluded := "!" + prefix.String()
		others := slices.DeleteFunc(slices.Clone(subnets), func(subnet string) bool { return subnet == excluded })
		return append(others, excluded)
	}
	cfg, err := withNodeDocument(cfg)
	if err != nil {
		return nil, err
	}
	if has[*k8s.KubeNodeConfigV1Alpha1](cfg) {
		return container.PatchDocument(cfg, func(node *k8s.KubeNodeConfigV1Alpha1) error {
			node.NodeIPConfig.NodeIPValidSubnets = without(node.NodeIPConfig.NodeIPValidSubnets)
			return nil
		})
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		kubelet := kubeletSection(document)
		if kubelet.KubeletNodeIP == nil { //nolint:staticcheck // The form before 1.14.
			kubelet.KubeletNodeIP = &v1alpha1.KubeletNodeIPConfig{} //nolint:staticcheck // As above.
		}
		stated := kubelet.KubeletNodeIP //nolint:staticcheck // As above.
		stated.KubeletNodeIPValidSubnets = without(stated.KubeletNodeIPValidSubnets)
		return nil
	})
}

// withNodeDocument adds the document of the Node where the section cannot state
// it, as the document KubeletConfig is there. It says what Talos takes from the
// section, since nothing is added to a document.
func withNodeDocument(cfg coreconfig.Provider) (coreconfig.Provider, error) {
	if has[*k8s.KubeNodeConfigV1Alpha1](cfg) || !has[*k8s.KubeletConfigV1Alpha1](cfg) {
		return cfg, nil
	}
	effective := cfg.K8sNodeConfig()
	node := k8s.NewKubeNodeConfigV1Alpha1()
	node.LabelsConfig, node.AnnotationsConfig, node.TaintsConfig = effective.Labels(), effective.Annotations(), effective.Taints()
	return container.New(append(cfg.Clone().Documents(), node)...)
}

// nodeSubnets is what Talos chooses the address of the Node from by itself: the
// families of the service networks.
func nodeSubnets(cfg coreconfig.Provider, etcd netip.Addr) []string {
	networks := cfg.K8sNetworkConfig()
	if networks == nil || len(networks.ServiceCIDRs()) == 0 {
		return []string{every(etcd)}
	}
	var subnets []string
	for _, service := range networks.ServiceCIDRs() {
		if family := every(service.Addr()); !slices.Contains(subnets, family) {
			subnets = append(subnets, family)
		}
	}
	return subnets
}
