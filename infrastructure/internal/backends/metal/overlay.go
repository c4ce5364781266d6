package metal

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// told is what a machine has told about itself at the hand-over.
type told struct {
	// release is the Talos release that it runs; empty when not known.
	release string
	// container reports whether it is a container.
	container bool
	// disks are its disks.
	disks []infrav1.HostDisk
	// installed reports whether Talos is installed on one of them, or may be.
	installed bool
	// platform, schematic and secureBoot are those of what it has booted; each is
	// empty when not known.
	platform, schematic string
	// factory is the Image Factory that its installer comes from; empty for the
	// usual one.
	factory    string
	secureBoot bool
}

// toldBy is what is to be known of a machine of the given release. factory, where it
// is named, goes before the Image Factory that has made what the machine has booted.
func toldBy(found talosclient.Hardware, release, factory string) told {
	return told{
		release: release, container: taloshost.IsContainer(found), disks: taloshost.DisksOf(found), installed: found.Installed,
		platform: found.Platform, schematic: found.Schematic, factory: cmp.Or(factory, found.ImageFactory), secureBoot: found.SecureBoot,
	}
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
	named, err := installerOf(overlaid)
	if err != nil || named != "" {
		return overlaid, err
	}
	overlay.InstallImage, err = defaultInstaller(cmp.Or(talos.Version, told.release), told)
	switch {
	case told.installed && errors.Is(err, errNoSigner):
		return overlaid, nil // It is not needed.
	case err != nil:
		return nil, err
	}

	return configgen.Overlay(configuration, overlay)
}

func overlayOf(host *infrav1.TalosHost, machine *infrav1.TalosMachine, told told) configgen.HostOverlay {
	return configgen.HostOverlay{
		StrategicPatches:    host.Spec.StrategicPatches,
		ProviderID:          machine.Spec.ProviderID,
		Network:             networkOf(host.Spec.Network),
		ContactNames:        taloshost.AddressesOf(host),
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

func networkOf(network infrav1.HostNetwork) *configgen.StaticNetwork {
	if len(network.Addresses) == 0 {
		return nil
	}

	return &configgen.StaticNetwork{
		Interface: network.Interface, HardwareAddress: network.MACAddress,
		Addresses: network.Addresses, Gateway: network.Gateway, Nameservers: network.Nameservers,
	}
}
