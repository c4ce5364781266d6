package configgen

import (
	"strings"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/runtime"
)

// Description is what can be read off a configuration without revealing it.
type Description struct {
	// Role is the role of the machine.
	Role Role
	// Hostname is the stated host name, empty if none.
	Hostname string
	// HasInstallDisk reports whether the configuration says where to install.
	HasInstallDisk bool
	// InstallForm is how it says so, or would.
	InstallForm InstallForm
	// KubernetesVersion is that of the kubelet image, with its "v"; empty when
	// the image does not say.
	KubernetesVersion string
}

// Describe reads a complete configuration. Its error is an *InvalidError.
func Describe(configuration []byte) (Description, error) {
	cfg, err := load(configuration)
	if err != nil {
		return Description{}, &InvalidError{Err: err}
	}
	return Description{
		Role:              roleOf(cfg),
		Hostname:          hostnameOf(cfg),
		HasInstallDisk:    hasInstallDisk(cfg),
		InstallForm:       installForm(cfg),
		KubernetesVersion: kubernetesVersion(cfg),
	}, nil
}

func hasInstallDisk(cfg coreconfig.Provider) bool {
	for _, document := range cfg.Documents() {
		if install, ok := document.(*runtime.UnattendedInstallConfigV1Alpha1); ok {
			return !install.ProvisioningSpec.DiskSelector.Match.IsZero()
		}
	}
	install := cfg.RawV1Alpha1().MachineConfig.MachineInstall //nolint:staticcheck // The form before 1.14.
	return install != nil && (install.InstallDisk != "" || install.InstallDiskSelector != nil)
}

func kubernetesVersion(cfg coreconfig.Provider) string {
	kubelet := cfg.K8sKubeletConfig()
	if kubelet == nil {
		return ""
	}
	_, tag, found := strings.Cut(lastSegment(kubelet.Image()), ":")
	if !found {
		return ""
	}
	tag, _, _ = strings.Cut(tag, "@")
	return tag
}

func lastSegment(image string) string {
	return image[strings.LastIndex(image, "/")+1:]
}
