package talossim

import (
	"fmt"
	"slices"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

// kindsSince114 are the kinds of documents that config.schema.json of machinery
// v1.14.1 has and that of v1.13.9 has not.
func kindsSince114() []string {
	return []string{
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig", "DiscoveryIdentityConfig",
		"DiscoveryServiceConfig", "EtcFileConfig", "FilesystemScrubConfig", "FilesystemTrimConfig", "HTTPProbeConfig",
		"ImageCacheConfig", "KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig",
		"KubeAggregatorCAConfig", "KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeClusterConfig",
		"KubeControllerManagerConfig", "KubeCoreDNSConfig", "KubeCredentialProviderConfig", "KubeEtcdEncryptionConfig",
		"KubeExternalManifestConfig", "KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNetworkConfig", "KubeNodeConfig",
		"KubePrismConfig", "KubeProxyConfig", "KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig",
		"KubeTalosAPIAccessConfig", "KubeletConfig", "LVMLogicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig",
		"SecurityProfileConfig", "SysctlConfig", "SysfsConfig", "UdevRulesConfig", "UnattendedInstallConfig", "VethConfig",
	}
}

// isSince114 reports whether a release is 1.14 or a later one.
func isSince114(release string) bool {
	version, err := semver.ParseTolerant(release)
	return err == nil && version.GE(semver.Version{Major: 1, Minor: 14})
}

// known refuses documents that the machine's release does not know, in Talos'
// words. It does not know about fields: a field of a newer release is taken.
func known(cfg config.Provider, release string) error {
	if _, err := semver.ParseTolerant(release); err != nil {
		return fmt.Errorf("reading the Talos version: %w", err)
	}
	if isSince114(release) {
		return nil
	}
	for _, document := range cfg.Documents() {
		if kind := document.Kind(); slices.Contains(kindsSince114(), kind) {
			return fmt.Errorf("error decoding document %s/%s/: %q %q: not registered", document.APIVersion(), kind, kind, document.APIVersion())
		}
	}
	return nil
}
