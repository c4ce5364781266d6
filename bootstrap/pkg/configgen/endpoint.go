package configgen

import (
	"net/netip"
	"slices"
	"strings"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// setEndpointNames adds the names of the endpoint to the certificate of the API
// server. That of the Talos API stays as it is: the endpoint does not lead to
// the Talos API, which is reached at the machine's own addresses, and Talos puts
// those into its certificate by itself.
func setEndpointNames(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if len(host.EndpointNames) == 0 || roleOf(cfg) != RoleControlPlane {
		return cfg, nil
	}
	if has[*k8s.KubeAPIServerConfigV1Alpha1](cfg) {
		return container.PatchDocument(cfg, func(document *k8s.KubeAPIServerConfigV1Alpha1) error {
			document.PodCertExtraSANs = withNames(document.PodCertExtraSANs, host.EndpointNames)
			return nil
		})
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		if document.ClusterConfig == nil {
			document.ClusterConfig = &v1alpha1.ClusterConfig{}
		}
		if document.ClusterConfig.APIServerConfig == nil { //nolint:staticcheck // The form before 1.14.
			document.ClusterConfig.APIServerConfig = &v1alpha1.APIServerConfig{} //nolint:staticcheck // As above.
		}
		server := document.ClusterConfig.APIServerConfig //nolint:staticcheck // As above.
		server.ExtraCertSANs = withNames(server.ExtraCertSANs, host.EndpointNames)
		return nil
	})
}

// setContactNames adds the names of the machine to the certificate of the Talos API.
// That has no document of its own in any contract.
func setContactNames(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if len(host.ContactNames) == 0 {
		return cfg, nil
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		document.MachineConfig.MachineCertSANs = withNames(document.MachineConfig.MachineCertSANs, host.ContactNames)
		return nil
	})
}

// withNames adds the names that are not there.
func withNames(stated, names []string) []string {
	there := map[string]bool{}
	for _, name := range stated {
		there[canonical(name)] = true
	}
	stated = slices.Clone(stated)
	for _, name := range names {
		if !there[canonical(name)] {
			there[canonical(name)] = true
			stated = append(stated, name)
		}
	}
	return stated
}

// canonical is the form by which names and addresses are compared.
func canonical(name string) string {
	if address, err := netip.ParseAddr(name); err == nil {
		return address.String()
	}
	return strings.ToLower(name)
}
