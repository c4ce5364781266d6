package configgen

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"go.yaml.in/yaml/v4"
)

// newer lists the documents, and the fields of older documents, that came after
// Talos v1.12, with the minor release that brought them. Our machinery knows
// them all, a machine of an older release refuses the whole configuration for
// one of them. The modules in test/suites/machinery prove the list.
var newer = map[string]int{
	"BGPInstanceConfig":                            14,
	"BlackholeRouteConfig":                         13,
	"CRIBaseRuntimeSpecConfig":                     14,
	"CRICustomizationConfig":                       14,
	"ContainerConfig":                              14,
	"DHCPv4Config:ignoreRoutes":                    14,
	"DiscoveryIdentityConfig":                      14,
	"DiscoveryServiceConfig":                       14,
	"EnvironmentConfig":                            13,
	"EtcFileConfig":                                14,
	"ExistingVolumeConfig:mount.disableAccessTime": 13,
	"ExistingVolumeConfig:mount.secure":            13,
	"ExistingVolumeConfig:scrub":                   14,
	"ExistingVolumeConfig:trim":                    14,
	"ExternalVolumeConfig":                         13,
	"FilesystemScrubConfig":                        14,
	"FilesystemTrimConfig":                         14,
	"HTTPProbeConfig":                              14,
	"ImageCacheConfig":                             14,
	"ImageVerificationConfig":                      13,
	"KernelModuleConfig":                           14,
	"KubeAPIServerCAConfig":                        14,
	"KubeAPIServerConfig":                          14,
	"KubeAdmissionControlConfig":                   14,
	"KubeAggregatorCAConfig":                       14,
	"KubeAuditPolicyConfig":                        14,
	"KubeAuthenticationConfig":                     14,
	"KubeAuthorizerConfig":                         14,
	"KubeClusterConfig":                            14,
	"KubeControllerManagerConfig":                  14,
	"KubeCoreDNSConfig":                            14,
	"KubeCredentialProviderConfig":                 14,
	"KubeEtcdEncryptionConfig":                     14,
	"KubeExternalManifestConfig":                   14,
	"KubeFlannelCNIConfig":                         14,
	"KubeInlineManifestConfig":                     14,
	"KubeNetworkConfig":                            14,
	"KubeNodeConfig":                               14,
	"KubePrismConfig":                              14,
	"KubeProxyConfig":                              14,
	"KubeSchedulerConfig":                          14,
	"KubeServiceAccountConfig":                     14,
	"KubeSpanConfig":                               13,
	"KubeStaticPodConfig":                          14,
	"KubeTalosAPIAccessConfig":                     14,
	"KubeletConfig":                                14,
	"LVMLogicalVolumeConfig":                       14,
	"LVMVolumeGroupConfig":                         14,
	"OOMConfig:strictCgroupClassOrdering":          13,
	"RAIDArrayConfig":                              14,
	"RawVolumeConfig:encryption.allowDiscards":     14,
	"ResolverConfig:hostDNS":                       14,
	"ResolverConfig:nameservers[].protocol":        14,
	"ResolverConfig:nameservers[].tlsServerName":   14,
	"RoutingRuleConfig":                            13,
	"SecurityProfileConfig":                        14,
	"SwapVolumeConfig:encryption.allowDiscards":    14,
	"SysctlConfig":                                 14,
	"SysfsConfig":                                  14,
	"TCPProbeConfig":                               13,
	"TimeSyncConfig:ntp.useNTS":                    14,
	"UdevRulesConfig":                              14,
	"UnattendedInstallConfig":                      14,
	"UserVolumeConfig:encryption.allowDiscards":    14,
	"UserVolumeConfig:filesystem.xfs":              14,
	"UserVolumeConfig:mount":                       13,
	"UserVolumeConfig:scrub":                       14,
	"UserVolumeConfig:trim":                        14,
	"VRFConfig":                                    13,
	"VethConfig":                                   14,
	"VolumeConfig:encryption.allowDiscards":        14,
	"VolumeConfig:filesystem":                      14,
	"VolumeConfig:mount":                           13,
	"VolumeConfig:mount.disableAccessTime":         14,
	"VolumeConfig:scrub":                           14,
	"VolumeConfig:trim":                            14,
	"v1alpha1:cluster.network.cni.flannel.kubeNetworkPoliciesEnabled": 13,
}

// release is a minor release of Talos v1; 0 is one that is not known.
type release int

func releaseOf(version string) (release, error) {
	if version == "" {
		return 0, nil
	}
	contract, err := coreconfig.ParseContractFromVersion(version)
	if err != nil || contract.Major != 1 {
		return 0, fmt.Errorf("%q is no release of Talos v1", version)
	}
	return release(contract.Minor), nil
}

// knows refuses what a release does not know of an encoded configuration.
func (r release) knows(configuration []byte) error {
	if r == 0 {
		return nil
	}
	var errs []error
	decoder := yaml.NewDecoder(bytes.NewReader(configuration))
	for {
		var document yaml.Node
		if err := decoder.Decode(&document); err != nil {
			if errors.Is(err, io.EOF) {
				return errors.Join(errs...)
			}
			return fmt.Errorf("reading the configuration: %w", err)
		}
		for _, root := range document.Content {
			errs = append(errs, r.knowsDocument(root)...)
		}
	}
}

func (r release) knowsDocument(root *yaml.Node) []error {
	kind := "v1alpha1"
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "kind" {
			kind = root.Content[i+1].Value
		}
	}
	if since := release(newer[kind]); since > r {
		return []error{fmt.Errorf("the document %s is not known to Talos v1.%d, it came with v1.%d", kind, r, since)}
	}
	var errs []error
	eachField(root, "", func(path string) {
		if since := release(newer[kind+":"+path]); since > r {
			errs = append(errs, fmt.Errorf("the field %s of the document %s is not known to Talos v1.%d, it came with v1.%d", path, kind, r, since))
		}
	})
	return errs
}

// eachField calls visit with the path of each field below a node: names joined
// by dots, [] after a list.
func eachField(node *yaml.Node, prefix string, visit func(path string)) {
	switch node.Kind {
	case yaml.MappingNode:
		if prefix != "" {
			prefix += "."
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			path := prefix + node.Content[i].Value
			visit(path)
			eachField(node.Content[i+1], path, visit)
		}
	case yaml.SequenceNode:
		for _, item := range node.Content {
			eachField(item, prefix+"[]", visit)
		}
	default:
	}
}
