package configgen

import (
	"errors"
	"maps"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/meta"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
)

const (
	// providerIDArgument is the kubelet's flag that puts the provider ID on the
	// Node.
	providerIDArgument = "provider-id"
	// systemReservedField is the field of the kubelet's configuration.
	systemReservedField = "systemReserved"
)

// patchKubelet changes arguments and configuration of the kubelet.
func patchKubelet(cfg coreconfig.Provider, change func(arguments *meta.Args, configuration *meta.Unstructured) error) (coreconfig.Provider, error) {
	if has[*k8s.KubeletConfigV1Alpha1](cfg) {
		return container.PatchDocument(cfg, func(document *k8s.KubeletConfigV1Alpha1) error {
			return change(&document.KubeletArgs, &document.KubeletConfig)
		})
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		kubelet := kubeletSection(document)
		return change(&kubelet.KubeletExtraArgs, &kubelet.KubeletExtraConfig) //nolint:staticcheck // The form before 1.14.
	})
}

// kubeletSection is machine.kubelet; it is added where there is none.
func kubeletSection(document *v1alpha1.Config) *v1alpha1.KubeletConfig { //nolint:staticcheck // The form before 1.14.
	if document.MachineConfig.MachineKubelet == nil { //nolint:staticcheck // As above.
		document.MachineConfig.MachineKubelet = &v1alpha1.KubeletConfig{} //nolint:staticcheck // As above.
	}
	return document.MachineConfig.MachineKubelet //nolint:staticcheck // As above.
}

func setProviderID(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.ProviderID == "" {
		return cfg, nil
	}
	return patchKubelet(cfg, func(arguments *meta.Args, _ *meta.Unstructured) error {
		if *arguments == nil {
			*arguments = meta.Args{}
		}
		(*arguments)[providerIDArgument] = meta.NewArgValue(host.ProviderID, nil)
		return nil
	})
}

// errSystemReserved: the kubelet would not start.
var errSystemReserved = errors.New("systemReserved of the kubelet's configuration (KubeletConfig, or machine.kubelet.extraConfig) is no map of resources")

func setSystemReserved(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if len(host.SystemReserved) == 0 {
		return cfg, nil
	}
	role := roleOf(cfg)
	return patchKubelet(cfg, func(_ *meta.Args, configuration *meta.Unstructured) error {
		stated, isMap := configuration.Object[systemReservedField].(map[string]any)
		if !isMap && configuration.Object[systemReservedField] != nil {
			return errSystemReserved
		}
		reserved := map[string]any{}
		if len(stated) == 0 {
			reserved = reservedByTalos(role)
		}
		for name, quantity := range host.SystemReserved {
			reserved[string(name)] = quantity.String()
		}
		maps.Copy(reserved, stated)
		if configuration.Object == nil {
			configuration.Object = map[string]any{}
		}
		configuration.Object[systemReservedField] = reserved
		return nil
	})
}

// reservedByTalos is what Talos reserves when a configuration reserves nothing.
// As soon as anything is stated it adds none of it.
func reservedByTalos(role Role) map[string]any {
	memory := constants.KubeletSystemReservedMemoryWorker
	if role == RoleControlPlane {
		memory = constants.KubeletSystemReservedMemoryControlPlane
	}
	return map[string]any{
		string(corev1.ResourceCPU):              constants.KubeletSystemReservedCPU,
		string(corev1.ResourceMemory):           memory,
		string(corev1.ResourceEphemeralStorage): constants.KubeletSystemReservedEphemeralStorage,
		"pid":                                   constants.KubeletSystemReservedPid,
	}
}
