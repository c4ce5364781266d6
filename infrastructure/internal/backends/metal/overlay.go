package metal

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/config"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/contact"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
)

// officialInstaller is the repository of Talos' own installer images.
const officialInstaller = "ghcr.io/siderolabs/installer"

var errNoRelease = errors.New("the Talos release of the machine is not known, so neither is its installer image: set install.image")

// told is what a machine has told about itself at the hand-over.
type told struct {
	// release is the Talos release that it runs; empty when not known.
	release string
	// container tells that it is a container.
	container bool
	// disks are its disks.
	disks []infrav1.HostDisk
}

// configure adds to a machine configuration what only the host knows. The
// installer image is that of the host, else of the TalosMachine, else of the
// configuration with the patches of the host, else that of the release.
func configure(configuration []byte, host *infrav1.TalosHost, machine *infrav1.TalosMachine, told told) ([]byte, error) {
	talos := metalSpec(machine).Talos
	overlay := overlayOf(host, machine, told)
	overlay.InstallImage = cmp.Or(host.Spec.Install.Image, talos.Image)
	overlaid, err := configgen.Overlay(configuration, overlay)
	if err != nil || overlay.Container || overlay.InstallImage != "" {
		return overlaid, err
	}
	named, err := namesInstaller(overlaid)
	if err != nil || named {
		return overlaid, err
	}
	release := cmp.Or(talos.Version, told.release)
	if release == "" {
		return nil, errNoRelease
	}
	overlay.InstallImage = officialInstaller + ":" + release

	return configgen.Overlay(configuration, overlay)
}

func overlayOf(host *infrav1.TalosHost, machine *infrav1.TalosMachine, told told) configgen.HostOverlay {
	return configgen.HostOverlay{
		StrategicPatches:    host.Spec.StrategicPatches,
		ProviderID:          machine.Spec.ProviderID,
		Network:             networkOf(host.Spec.Network),
		ContactNames:        contact.Addresses(host),
		Container:           told.container,
		Release:             readerOf(told.release, metalSpec(machine).Talos.Version),
		InstallDisk:         host.Spec.Install.Disk,
		InstallDiskSelector: installdisk.SelectorOf(host.Spec.Install.DiskSelector),
	}
}

// unfitDisk says why the disk that an overlaid configuration names cannot be
// installed on; empty when it can, or when nothing is installed.
func unfitDisk(configuration []byte, told told) (string, error) {
	if told.container || len(told.disks) == 0 {
		return "", nil
	}
	wish, err := installdisk.OfConfiguration(configuration)
	if err != nil {
		return "", err
	}
	fitting, err := wish.Among(told.disks)
	if err != nil || len(fitting) == 1 {
		return "", err
	}
	found := "none"
	if len(fitting) > 1 {
		found = installdisk.List(fitting)
	}

	return fmt.Sprintf("must name exactly one disk to install on, and names %s; the machine has %s", found, installdisk.List(told.disks)), nil
}

// readerOf is the oldest of the releases that will read a configuration: the one
// that takes it, and the one that is installed. What cannot be read judges
// nothing.
func readerOf(releases ...string) string {
	var oldest *config.VersionContract
	var reader string
	for _, release := range releases {
		contract, err := config.ParseContractFromVersion(release)
		if err == nil && (oldest == nil || oldest.Greater(contract)) {
			oldest, reader = contract, release
		}
	}

	return reader
}

// namesInstaller tells whether a configuration names an installer image.
func namesInstaller(configuration []byte) (bool, error) {
	provider, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return false, fmt.Errorf("reading the machine configuration: %w", err)
	}
	for _, document := range provider.Documents() {
		if install, ok := document.(coreconfig.UnattendedInstallConfig); ok && install.InstallerImage() != "" {
			return true, nil
		}
	}
	legacy := provider.RawV1Alpha1()
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
