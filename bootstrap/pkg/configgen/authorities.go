package configgen

import (
	"errors"

	"github.com/siderolabs/crypto/x509"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

var (
	// errMachineCA: the managers know the CA of the bundle alone.
	errMachineCA = errors.New("it changes machine.ca, which is that of Secret <cluster>-talos: the managers would be locked out, and could not wipe the machine; " +
		"bring your own keys in that Secret (talosctl gen secrets), or add CAs by machine.acceptedCAs")
	// errClusterCA: the kubeconfig of the cluster is made from the CA of the bundle.
	errClusterCA = errors.New("it changes cluster.ca (from contract v1.14 on KubeAPIServerCAConfig), which is that of Secret <cluster>-talos: the machine would belong to another Kubernetes; " +
		"bring your own keys in that Secret (talosctl gen secrets), or add CAs by cluster.acceptedCAs (KubeAPIServerCAConfig: acceptedCAs)")
)

// checkAuthorities refuses other CAs than before. A CA, or its key, counts where there was
// one: workers have no keys.
func checkAuthorities(before, after coreconfig.Provider) error {
	if replaced(machineCA(before), machineCA(after)) {
		return errMachineCA
	}
	if replaced(clusterCA(before), clusterCA(after)) {
		return errClusterCA
	}
	return nil
}

func replaced(before, after x509.PEMEncodedCertificateAndKey) bool {
	return len(before.Crt) > 0 && !secrets.SamePEM(before.Crt, after.Crt) || len(before.Key) > 0 && !secrets.SamePEM(before.Key, after.Key)
}

// machineCA is the CA of the Talos API.
func machineCA(cfg coreconfig.Provider) (ca x509.PEMEncodedCertificateAndKey) {
	if v1 := cfg.RawV1Alpha1(); v1 != nil && v1.MachineConfig != nil && v1.MachineConfig.MachineCA != nil {
		ca = *v1.MachineConfig.MachineCA
	}
	return ca
}

// clusterCA is the CA of Kubernetes. In all forms it is the first of those that are accepted,
// also where the machine has no key of it.
func clusterCA(cfg coreconfig.Provider) (ca x509.PEMEncodedCertificateAndKey) {
	stated := cfg.K8sAPIServerCAConfig()
	if stated == nil {
		return ca
	}
	if accepted := stated.AcceptedCAs(); len(accepted) > 0 && accepted[0] != nil {
		ca.Crt = accepted[0].Crt
	}
	if issuing := stated.IssuingCA(); issuing != nil {
		ca.Key = issuing.Key
	}
	return ca
}
