// Package capimachine reads Machines of Cluster API.
package capimachine

import (
	"slices"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

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
