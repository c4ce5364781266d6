// Package nodes observes the Talos nodes of control plane Machines, and keeps what a manager
// knows of them while it runs. None of that is needed to be right after a restart.
package nodes

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KeyOf is the key of a Machine.
func KeyOf(machine *clusterv1.Machine) client.ObjectKey {
	return client.ObjectKeyFromObject(machine)
}

// MachineOf is the Machine of a key, for the events of a Watcher.
func MachineOf(key client.ObjectKey) client.Object {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// IsProvisioned reports whether the node of a Machine can be reached: its infrastructure is
// provisioned, and it has an address.
func IsProvisioned(machine *clusterv1.Machine) bool {
	return ptr.Deref(machine.Status.Initialization.InfrastructureProvisioned, false) && len(Addresses(machine)) > 0
}

// Addresses are those at which a Machine's Talos API may answer: which of them lead there
// from here depends on the networks. Internal ones come first, and names last.
func Addresses(machine *clusterv1.Machine) []string {
	var addresses []string
	for _, kind := range []clusterv1.MachineAddressType{
		clusterv1.MachineInternalIP, clusterv1.MachineExternalIP, clusterv1.MachineInternalDNS, clusterv1.MachineExternalDNS,
	} {
		for _, address := range machine.Status.Addresses {
			if address.Type == kind && !slices.Contains(addresses, address.Address) {
				addresses = append(addresses, address.Address)
			}
		}
	}

	return addresses
}
