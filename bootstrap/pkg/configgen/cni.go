package configgen

import (
	"slices"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// withoutFlannel leaves the CNI that Talos installs by default out of the configuration
// that was generated for a control plane machine. Where Flannel has a document, it is
// left out by leaving out that; else Talos installs it unless another CNI is named.
func withoutFlannel(cfg coreconfig.Provider) (coreconfig.Provider, error) {
	if has[*k8s.KubeFlannelCNIConfigV1Alpha1](cfg) {
		return container.New(slices.DeleteFunc(cfg.Clone().Documents(), func(document coreconfigDocument) bool {
			_, isFlannel := document.(*k8s.KubeFlannelCNIConfigV1Alpha1)
			return isFlannel
		})...)
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		document.ClusterConfig.ClusterNetwork.CNI = &v1alpha1.CNIConfig{CNIName: constants.NoneCNI} //nolint:staticcheck // The form before 1.14.
		return nil
	})
}
