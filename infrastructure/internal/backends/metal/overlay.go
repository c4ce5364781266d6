package metal

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// containerPlatform is how Talos in a container names its platform.
const containerPlatform = "container"

// officialInstaller is the repository of Talos' own installer images.
const officialInstaller = "ghcr.io/siderolabs/installer"

var errNoRelease = errors.New("the Talos release of the machine is not known, so neither is its installer image: set install.image")

// IsContainer tells whether the machine of a host is a container: nothing is
// installed there, and it has no volumes of its own.
func IsContainer(host *infrav1.TalosHost) bool {
	return host.Status.Hardware.Platform == containerPlatform
}

// configure adds to a machine configuration what only the host knows. The
// installer image is that of the host, else of the TalosMachine, else of the
// configuration with the patches of the host, else that of the release.
func configure(configuration []byte, host *infrav1.TalosHost, machine *infrav1.TalosMachine) ([]byte, error) {
	talos := metalSpec(machine).Talos
	overlay := overlayOf(host, machine)
	overlay.InstallImage = cmp.Or(host.Spec.Install.Image, talos.Image)
	overlaid, err := configgen.Overlay(configuration, overlay)
	if err != nil || overlay.Container || overlay.InstallImage != "" {
		return overlaid, err
	}
	named, err := namesInstaller(overlaid)
	if err != nil || named {
		return overlaid, err
	}
	release := cmp.Or(talos.Version, host.Status.Hardware.TalosVersion)
	if release == "" {
		return nil, errNoRelease
	}
	overlay.InstallImage = officialInstaller + ":" + release

	return configgen.Overlay(configuration, overlay)
}

func overlayOf(host *infrav1.TalosHost, machine *infrav1.TalosMachine) configgen.HostOverlay {
	return configgen.HostOverlay{
		StrategicPatches:    host.Spec.StrategicPatches,
		ProviderID:          machine.Spec.ProviderID,
		Network:             networkOf(host.Spec.Network),
		Container:           IsContainer(host),
		InstallDisk:         host.Spec.Install.Disk,
		InstallDiskSelector: selectorOf(host.Spec.Install.DiskSelector),
	}
}

// namesInstaller tells whether a configuration names an installer image.
func namesInstaller(configuration []byte) (bool, error) {
	config, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return false, fmt.Errorf("reading the machine configuration: %w", err)
	}
	for _, document := range config.Documents() {
		if install, ok := document.(coreconfig.UnattendedInstallConfig); ok && install.InstallerImage() != "" {
			return true, nil
		}
	}
	legacy := config.RawV1Alpha1()
	if legacy == nil || legacy.MachineConfig == nil || legacy.MachineConfig.MachineInstall == nil { //nolint:staticcheck // The form before 1.14.
		return false, nil
	}

	return legacy.MachineConfig.MachineInstall.InstallImage != "", nil //nolint:staticcheck // As above.
}

func networkOf(network infrav1.HostNetwork) *configgen.StaticNetwork {
	if len(network.Addresses) == 0 {
		return nil
	}

	return &configgen.StaticNetwork{
		Interface: network.Interface, HardwareAddress: network.MACAddress,
		Addresses: network.Addresses, Gateway: network.Gateway, Nameservers: network.Nameservers,
	}
}

func selectorOf(selector infrav1.HostDiskSelector) *configgen.DiskSelector {
	if selector == (infrav1.HostDiskSelector{}) {
		return nil
	}
	const gibibyte = 1 << 30

	return &configgen.DiskSelector{
		MinSizeBytes: int64(ptr.Deref(selector.MinSizeGiB, 0)) * gibibyte,
		MaxSizeBytes: int64(ptr.Deref(selector.MaxSizeGiB, 0)) * gibibyte,
		Model:        selector.Model, Serial: selector.Serial, WWID: selector.WWID, BusPath: selector.BusPath,
		Type: strings.ToLower(string(selector.Type)),
	}
}
