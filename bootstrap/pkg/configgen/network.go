package configgen

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/meta"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// StaticNetwork is the static configuration of one link.
type StaticNetwork struct {
	// Interface is the name of the link, or HardwareAddress its address.
	Interface, HardwareAddress string
	// Addresses are in CIDR notation.
	Addresses []string
	// Gateway is the default gateway; empty for none.
	Gateway string
	// Nameservers are DNS servers; empty for none.
	Nameservers []string
}

// hostLink is the alias of the link that a host names by hardware address.
const hostLink = "host0"

// setNetwork states the static network of the host. Links and name servers that
// the configuration states in its v1alpha1 document are stated there.
func setNetwork(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.Network == nil {
		return cfg, nil
	}
	static, err := host.Network.parse()
	if err != nil {
		return nil, err
	}
	legacy := cfg.RawV1Alpha1().MachineConfig.MachineNetwork        //nolint:staticcheck // Users still state it.
	inSection := legacy != nil && len(legacy.NetworkInterfaces) > 0 //nolint:staticcheck // As above.
	if inSection {
		cfg, err = cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
			return static.addDevice(document.MachineConfig.MachineNetwork) //nolint:staticcheck // As above.
		})
	} else {
		cfg, err = static.addLink(cfg)
	}
	if err != nil || len(static.servers) == 0 {
		return cfg, err
	}
	if statesResolvers(legacy) {
		return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
			document.MachineConfig.MachineNetwork.NameServers = host.Network.Nameservers //nolint:staticcheck // As above.
			return nil
		})
	}
	return setNameservers(cfg, static.servers)
}

// statesResolvers reports whether the section states what ResolverConfig does.
func statesResolvers(section *v1alpha1.NetworkConfig) bool { //nolint:staticcheck // Users still state it.
	return section != nil && (len(section.NameServers) > 0 || len(section.Searches) > 0 || section.NetworkDisableSearchDomain != nil) //nolint:staticcheck // As above.
}

// staticNetwork is a StaticNetwork that was read.
type staticNetwork struct {
	*StaticNetwork

	prefixes []netip.Prefix
	// gateway is not valid where there is none.
	gateway netip.Addr
	servers []netip.Addr
}

func (n *StaticNetwork) parse() (*staticNetwork, error) {
	static := &staticNetwork{StaticNetwork: n}
	for _, text := range n.Addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("reading the static address: %w", err)
		}
		static.prefixes = append(static.prefixes, prefix)
	}
	for _, text := range n.Nameservers {
		server, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("reading the name server: %w", err)
		}
		static.servers = append(static.servers, server)
	}
	if n.Gateway == "" {
		return static, nil
	}
	var err error
	if static.gateway, err = netip.ParseAddr(n.Gateway); err != nil {
		return nil, fmt.Errorf("reading the gateway: %w", err)
	}
	return static, nil
}

var errInterfaces = errors.New("the host has a static network, but machine.network.interfaces of the v1alpha1 document states addresses, routes or DHCP of the same link: leave them out there, or state the link as a LinkConfig document without addresses")

// addDevice states the network as an entry of machine.network.interfaces.
func (n *staticNetwork) addDevice(section *v1alpha1.NetworkConfig) error { //nolint:staticcheck // Users still state it.
	device := n.device(section)
	if device.DeviceDHCP != nil && *device.DeviceDHCP || len(device.DeviceAddresses) > 0 || device.DeviceCIDR != "" || len(device.DeviceRoutes) > 0 {
		return errInterfaces
	}
	device.DeviceAddresses = n.Addresses
	if n.gateway.IsValid() {
		device.DeviceRoutes = []*v1alpha1.Route{{RouteNetwork: every(n.gateway), RouteGateway: n.Gateway}}
	}
	return nil
}

// device is the entry of the host's link; it is added where there is none.
func (n *staticNetwork) device(section *v1alpha1.NetworkConfig) *v1alpha1.Device { //nolint:staticcheck // As above.
	for _, device := range section.NetworkInterfaces { //nolint:staticcheck // As above.
		selector := device.DeviceSelector
		switch {
		case n.Interface != "" && device.DeviceInterface == n.Interface,
			n.HardwareAddress != "" && selector != nil && strings.EqualFold(selector.NetworkDeviceHardwareAddress, n.HardwareAddress),
			n.HardwareAddress != "" && selector != nil && strings.EqualFold(selector.NetworkDevicePermanentAddress, n.HardwareAddress):
			return device
		}
	}
	device := &v1alpha1.Device{DeviceInterface: n.Interface}
	if n.Interface == "" {
		device.DeviceSelector = &v1alpha1.NetworkDeviceSelector{NetworkDevicePermanentAddress: strings.ToLower(n.HardwareAddress)}
	}
	section.NetworkInterfaces = append(section.NetworkInterfaces, device) //nolint:staticcheck // As above.
	return device
}

var errLinkConfig = errors.New("the host has a static network, but the document LinkConfig of the same link in the configuration states addresses or routes: leave them out there, or the network out of the host")

// addLink states the network as the document of its link, which may be there
// without addresses.
func (n *staticNetwork) addLink(cfg coreconfig.Provider) (coreconfig.Provider, error) {
	documents := cfg.Clone().Documents()
	name := n.Interface
	if name == "" {
		alias, err := n.alias()
		if err != nil {
			return nil, err
		}
		name, documents = hostLink, append(documents, alias)
	}
	var link *network.LinkConfigV1Alpha1
	for _, document := range documents {
		if stated, isLink := document.(*network.LinkConfigV1Alpha1); isLink && stated.MetaName == name {
			link = stated
		}
	}
	if link == nil {
		link = network.NewLinkConfigV1Alpha1(name)
		documents = append(documents, link)
	}
	if len(link.LinkAddresses) > 0 || len(link.LinkRoutes) > 0 {
		return nil, errLinkConfig
	}
	for _, prefix := range n.prefixes {
		link.LinkAddresses = append(link.LinkAddresses, network.AddressConfig{AddressAddress: prefix})
	}
	if n.gateway.IsValid() {
		link.LinkRoutes = append(link.LinkRoutes, network.RouteConfig{RouteGateway: meta.Addr{Addr: n.gateway}})
	}
	return container.New(documents...)
}

// alias gives the link of a hardware address a name.
func (n *staticNetwork) alias() (coreconfigDocument, error) {
	alias := network.NewLinkAliasConfigV1Alpha1(hostLink)
	match, err := cel.ParseBooleanExpression(fmt.Sprintf("mac(link.permanent_addr) == %q", strings.ToLower(n.HardwareAddress)), celenv.LinkLocator())
	if err != nil {
		return nil, fmt.Errorf("building the link selector: %w", err)
	}
	alias.Selector.Match = match
	return alias, nil
}

func setNameservers(cfg coreconfig.Provider, addresses []netip.Addr) (coreconfig.Provider, error) {
	var servers []network.NameserverConfig
	for _, address := range addresses {
		servers = append(servers, network.NameserverConfig{Address: meta.Addr{Addr: address}})
	}
	if !has[*network.ResolverConfigV1Alpha1](cfg) {
		extended, err := container.New(append(cfg.Clone().Documents(), network.NewResolverConfigV1Alpha1())...)
		if err != nil {
			return nil, err
		}
		cfg = extended
	}
	return container.PatchDocument(cfg, func(document *network.ResolverConfigV1Alpha1) error {
		document.ResolverNameservers = servers
		return nil
	})
}
