package metal

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/config"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

const (
	// publishedInstaller is the repository of Talos' own installer images. From 1.14
	// on there are none (release notes of 1.14, "Default Installer Image").
	publishedInstaller = "ghcr.io/siderolabs/installer"
	// DefaultImageFactory is where installer images come from otherwise.
	DefaultImageFactory = "factory.talos.dev"
	// emptySchematic is the schematic without extensions or kernel arguments
	// (pkg/images/images.go of Talos 1.14, DefaultInstallerImageSchematic).
	emptySchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
	// defaultPlatform is the platform of machines that do not tell theirs.
	defaultPlatform = "metal"
)

var (
	errNoRelease = errors.New("the Talos release of the machine is not known, so neither is its installer image: set install.image")
	errNoSigner  = errors.New("the machine has booted with SecureBoot an image that names no Image Factory schematic, " +
		"so whose keys must have signed the installer is not known: set install.image")
)

// defaultInstaller is the installer image of a release for a machine: with the
// extensions, the platform and the boot loader of what it has booted.
func defaultInstaller(release string, told told) (string, error) {
	schematic := told.schematic
	switch {
	case release == "":
		return "", errNoRelease
	case schematic != "":
	case told.secureBoot:
		return "", errNoSigner
	case isPublished(release):
		return publishedInstaller + ":" + release, nil
	default:
		schematic = emptySchematic
	}
	installer := cmp.Or(told.platform, defaultPlatform) + "-installer"
	if told.secureBoot {
		installer += "-secureboot"
	}

	return fmt.Sprintf("%s/%s/%s:%s", cmp.Or(told.factory, DefaultImageFactory), installer, schematic, release), nil
}

// isPublished reports whether there is an official installer image of a release.
func isPublished(release string) bool {
	contract, err := config.ParseContractFromVersion(release)

	return err == nil && config.TalosVersion1_14.Greater(contract)
}

// installerOf is the installer image that a configuration names; empty when it names
// none.
func installerOf(configuration []byte) (string, error) {
	provider, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return "", fmt.Errorf("reading the machine configuration: %w", err)
	}
	for _, document := range provider.Documents() {
		if install, ok := document.(coreconfig.UnattendedInstallConfig); ok && install.InstallerImage() != "" {
			return install.InstallerImage(), nil
		}
	}
	legacy := provider.RawV1Alpha1()
	if legacy == nil || legacy.MachineConfig == nil || legacy.MachineConfig.MachineInstall == nil { //nolint:staticcheck // The form before 1.14.
		return "", nil
	}

	return legacy.MachineConfig.MachineInstall.InstallImage, nil //nolint:staticcheck // As above.
}
