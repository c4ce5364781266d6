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
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/meta"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/runtime"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// providerIDArgument is the kubelet's flag that puts the provider ID on the
// Node.
const providerIDArgument = "provider-id"

// HostOverlay is what only the host knows.
type HostOverlay struct {
	// StrategicPatches are the host's own patches, applied first.
	StrategicPatches []string
	// ProviderID is given to the kubelet.
	ProviderID string
	// InstallDisk is a device path, InstallDiskSelector what a disk must be
	// like; at most one of them. With neither the configuration's own stays.
	InstallDisk         string
	InstallDiskSelector *DiskSelector
	// InstallImage is the installer image; empty keeps the configuration's own.
	InstallImage string
	// Network is the host's static network; nil keeps the configuration's own.
	Network *StaticNetwork
	// Container tells that Talos runs in a container: nothing is installed.
	Container bool
}

// DiskSelector says what the install disk must be like; all that is set must
// hold.
type DiskSelector struct {
	MinSizeBytes, MaxSizeBytes         int64
	Model, Serial, WWID, UUID, BusPath string
	// Type is ssd, hdd, nvme or sd.
	Type string
}

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

// Overlay adds what only the host knows to a rendered configuration, in the
// form that the configuration already uses: a section of the v1alpha1 document
// or a document of its own, because Talos refuses both at once. Errors as of
// Render.
func Overlay(configuration []byte, host HostOverlay) ([]byte, error) {
	cfg, err := load(configuration)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	for i, patch := range host.StrategicPatches {
		if cfg, err = applyStrategic(cfg, KindHostPatch, i, patch); err != nil {
			return nil, err
		}
	}
	for _, step := range []func(coreconfig.Provider, HostOverlay) (coreconfig.Provider, error){setProviderID, setInstall, setNetwork} {
		if cfg, err = step(cfg, host); err != nil {
			return nil, &InvalidError{Err: err}
		}
	}
	if host.Container {
		return finish(cfg, platformContainer{})
	}
	return finish(cfg, platformAny{})
}

func setProviderID(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.ProviderID == "" {
		return cfg, nil
	}
	value := meta.NewArgValue(host.ProviderID, nil)
	if has[*k8s.KubeletConfigV1Alpha1](cfg) {
		return container.PatchDocument(cfg, func(document *k8s.KubeletConfigV1Alpha1) error {
			if document.KubeletArgs == nil {
				document.KubeletArgs = meta.Args{}
			}
			document.KubeletArgs[providerIDArgument] = value
			return nil
		})
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		if document.MachineConfig.MachineKubelet == nil { //nolint:staticcheck // The form before 1.14.
			document.MachineConfig.MachineKubelet = &v1alpha1.KubeletConfig{} //nolint:staticcheck // As above.
		}
		kubelet := document.MachineConfig.MachineKubelet //nolint:staticcheck // As above.
		if kubelet.KubeletExtraArgs == nil {             //nolint:staticcheck // As above.
			kubelet.KubeletExtraArgs = meta.Args{} //nolint:staticcheck // As above.
		}
		kubelet.KubeletExtraArgs[providerIDArgument] = value //nolint:staticcheck // As above.
		return nil
	})
}

func has[D coreconfigDocument](cfg coreconfig.Provider) bool {
	for _, document := range cfg.Documents() {
		if _, found := document.(D); found {
			return true
		}
	}
	return false
}

// usesDocuments tells that a configuration states the install as a document:
// it does so from contract 1.14 on.
func usesDocuments(cfg coreconfig.Provider) bool {
	if has[*runtime.UnattendedInstallConfigV1Alpha1](cfg) {
		return true
	}
	return cfg.RawV1Alpha1().MachineConfig.MachineInstall == nil && has[*k8s.KubeletConfigV1Alpha1](cfg) //nolint:staticcheck // The form before 1.14.
}

func setInstall(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.Container || (host.InstallDisk == "" && host.InstallDiskSelector == nil && host.InstallImage == "") {
		return cfg, nil
	}
	if host.InstallDisk != "" && host.InstallDiskSelector != nil {
		return nil, errors.New("the host states both an install disk and a disk selector")
	}
	if usesDocuments(cfg) {
		return setInstallDocument(cfg, host)
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		if document.MachineConfig.MachineInstall == nil { //nolint:staticcheck // The form before 1.14.
			document.MachineConfig.MachineInstall = &v1alpha1.InstallConfig{} //nolint:staticcheck // As above.
		}
		install := document.MachineConfig.MachineInstall //nolint:staticcheck // As above.
		if host.InstallImage != "" {
			install.InstallImage = host.InstallImage
		}
		switch {
		case host.InstallDisk != "":
			install.InstallDisk, install.InstallDiskSelector = host.InstallDisk, nil
		case host.InstallDiskSelector != nil:
			selector, err := host.InstallDiskSelector.section()
			if err != nil {
				return err
			}
			install.InstallDisk, install.InstallDiskSelector = "", selector
		}
		return nil
	})
}

func setInstallDocument(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if !has[*runtime.UnattendedInstallConfigV1Alpha1](cfg) {
		extended, err := container.New(append(cfg.Clone().Documents(), runtime.NewUnattendedInstallConfigV1Alpha1())...)
		if err != nil {
			return nil, err
		}
		cfg = extended
	}
	return container.PatchDocument(cfg, func(document *runtime.UnattendedInstallConfigV1Alpha1) error {
		if host.InstallImage != "" {
			document.Installer.Image = host.InstallImage
		}
		expression := ""
		switch {
		case host.InstallDisk != "":
			expression = fmt.Sprintf("disk.dev_path == %q || %q in disk.symlinks", host.InstallDisk, host.InstallDisk)
		case host.InstallDiskSelector != nil:
			expression = host.InstallDiskSelector.expression()
		default:
			return nil
		}
		match, err := cel.ParseBooleanExpression(expression, celenv.DiskLocator())
		if err != nil {
			return fmt.Errorf("building the disk selector: %w", err)
		}
		document.ProvisioningSpec.DiskSelector.Match = match
		return nil
	})
}

// section is the selector in the form of the v1alpha1 document.
func (s *DiskSelector) section() (*v1alpha1.InstallDiskSelector, error) {
	selector := &v1alpha1.InstallDiskSelector{
		Model: s.Model, Serial: s.Serial, WWID: s.WWID, UUID: s.UUID, BusPath: s.BusPath,
		Type: v1alpha1.InstallDiskType(s.Type),
	}
	switch {
	case s.MinSizeBytes > 0 && s.MaxSizeBytes > 0:
		return nil, errors.New("a disk selector of this contract takes one bound of the size, not two")
	case s.MinSizeBytes > 0:
		return selector, sized(selector, fmt.Sprintf(">= %d", s.MinSizeBytes))
	case s.MaxSizeBytes > 0:
		return selector, sized(selector, fmt.Sprintf("<= %d", s.MaxSizeBytes))
	}
	return selector, nil
}

func sized(selector *v1alpha1.InstallDiskSelector, condition string) error {
	selector.Size = &v1alpha1.InstallDiskSizeMatcher{}
	return selector.Size.UnmarshalYAML(func(into any) error { *into.(*string) = condition; return nil }) //nolint:forcetypeassert // It decodes a string.
}

// expression is the selector as CEL over a disk.
func (s *DiskSelector) expression() string {
	terms := []string{"!disk.readonly", "!disk.cdrom"}
	for _, term := range []struct{ field, value string }{
		{"model", s.Model}, {"serial", s.Serial}, {"wwid", s.WWID}, {"uuid", s.UUID}, {"bus_path", s.BusPath},
	} {
		if term.value != "" {
			terms = append(terms, fmt.Sprintf("glob(%q, disk.%s)", term.value, term.field))
		}
	}
	if s.MinSizeBytes > 0 {
		terms = append(terms, fmt.Sprintf("disk.size >= %du", s.MinSizeBytes))
	}
	if s.MaxSizeBytes > 0 {
		terms = append(terms, fmt.Sprintf("disk.size <= %du", s.MaxSizeBytes))
	}
	switch s.Type {
	case "ssd":
		terms = append(terms, "!disk.rotational", `disk.transport != "nvme"`, `disk.transport != "mmc"`)
	case "hdd":
		terms = append(terms, "disk.rotational")
	case "nvme":
		terms = append(terms, `disk.transport == "nvme"`)
	case "sd":
		terms = append(terms, `disk.transport == "mmc"`)
	}
	return strings.Join(terms, " && ")
}

// hostLink is the alias of the link that a host names by hardware address.
const hostLink = "host0"

func setNetwork(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.Network == nil {
		return cfg, nil
	}
	if legacy := cfg.RawV1Alpha1().MachineConfig.MachineNetwork; legacy != nil && len(legacy.NetworkInterfaces) > 0 { //nolint:staticcheck // Users still state it.
		return nil, errors.New("the host has a static network, but the configuration states machine.network.interfaces: use LinkConfig documents there")
	}
	documents, err := host.Network.documents()
	if err != nil {
		return nil, err
	}
	extended, err := container.New(append(cfg.Clone().Documents(), documents...)...)
	if err != nil || len(host.Network.Nameservers) == 0 {
		return extended, err
	}
	return setNameservers(extended, host.Network.Nameservers)
}

func setNameservers(cfg coreconfig.Provider, texts []string) (coreconfig.Provider, error) {
	var servers []network.NameserverConfig
	for _, text := range texts {
		server, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("reading the name server: %w", err)
		}
		servers = append(servers, network.NameserverConfig{Address: meta.Addr{Addr: server}})
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

// documents are the link and, where it is known by its hardware address, its
// alias.
func (n *StaticNetwork) documents() ([]coreconfigDocument, error) {
	name := n.Interface
	var documents []coreconfigDocument
	if name == "" {
		name = hostLink
		alias := network.NewLinkAliasConfigV1Alpha1(name)
		match, err := cel.ParseBooleanExpression(fmt.Sprintf("mac(link.permanent_addr) == %q", strings.ToLower(n.HardwareAddress)), celenv.LinkLocator())
		if err != nil {
			return nil, fmt.Errorf("building the link selector: %w", err)
		}
		alias.Selector.Match = match
		documents = append(documents, alias)
	}
	link := network.NewLinkConfigV1Alpha1(name)
	for _, text := range n.Addresses {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("reading the static address: %w", err)
		}
		link.LinkAddresses = append(link.LinkAddresses, network.AddressConfig{AddressAddress: prefix})
	}
	if n.Gateway != "" {
		gateway, err := netip.ParseAddr(n.Gateway)
		if err != nil {
			return nil, fmt.Errorf("reading the gateway: %w", err)
		}
		link.LinkRoutes = append(link.LinkRoutes, network.RouteConfig{RouteGateway: meta.Addr{Addr: gateway}})
	}
	return append(documents, link), nil
}
