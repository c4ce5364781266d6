package metal

import (
	"errors"
	"strings"

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

// overlayOf is what only the host knows. The installer image follows the host,
// then the TalosMachine, then the release.
func overlayOf(host *infrav1.TalosHost, machine *infrav1.TalosMachine) (configgen.HostOverlay, error) {
	overlay := configgen.HostOverlay{
		StrategicPatches: host.Spec.StrategicPatches,
		ProviderID:       machine.Spec.ProviderID,
		Network:          networkOf(host.Spec.Network),
		Container:        IsContainer(host),
	}
	if overlay.Container {
		return overlay, nil
	}
	overlay.InstallDisk = host.Spec.Install.Disk
	overlay.InstallDiskSelector = selectorOf(host.Spec.Install.DiskSelector)
	var err error
	overlay.InstallImage, err = installImage(host, metalSpec(machine).Talos)

	return overlay, err
}

func installImage(host *infrav1.TalosHost, talos infrav1.TalosReleaseSpec) (string, error) {
	switch {
	case host.Spec.Install.Image != "":
		return host.Spec.Install.Image, nil
	case talos.Image != "":
		return talos.Image, nil
	case talos.Version != "":
		return officialInstaller + ":" + talos.Version, nil
	case host.Status.Hardware.TalosVersion != "":
		return officialInstaller + ":" + host.Status.Hardware.TalosVersion, nil
	}

	return "", errNoRelease
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
