package metal

import (
	"fmt"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/claim"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// keepsOtherRelease says why a machine in maintenance mode is not configured: it
// would go on with another release than the one that is wished. One that is configured
// again gets its configuration all the same: its release was its own before.
func keepsOtherRelease(scope *backends.Scope, host *infrav1.TalosHost, found talosclient.Hardware, release string) string {
	wished := metalSpec(scope.TalosMachine).Talos.Version
	if taloshost.IsReprovisioned(host) || !claim.KeepsOtherRelease(taloshost.HardwareOf(found, release, host.Spec.Install), wished) {
		return ""
	}

	return fmt.Sprintf("TalosHost %s has Talos %s installed, but %s was asked for, and Talos installs nothing over an installation; nothing is sent to it. "+
		"Wipe its system disk with the boot loader, or delete the Machine", host.Name, release, wished)
}

// installedBy is the image with which a machine installs Talos; empty where it does
// not.
func installedBy(configuration []byte, found talosclient.Hardware) (string, error) {
	if found.Installed || taloshost.IsContainer(found) {
		return "", nil
	}

	return installerOf(configuration)
}

// runsOther says how the release that a machine runs differs from the one that is
// wished; empty when it does not, or when either is not known.
func runsOther(machine *infrav1.TalosMachine, host *infrav1.TalosHost, release string) string {
	wished := metalSpec(machine).Talos.Version
	if wished == "" || release == "" || release == wished {
		return ""
	}
	message := fmt.Sprintf("The machine runs Talos %s, but %s was asked for", release, wished)
	if image := host.Spec.Handover.InstallerImage; image != "" {
		message += "; it was installed by " + image
	}

	return message + ". Upgrade it with talosctl, or name the release and the image as they are in a new template"
}
