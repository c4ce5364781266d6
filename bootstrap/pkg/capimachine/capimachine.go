// Package capimachine reads Machines of Cluster API.
package capimachine

import (
	"net/netip"
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
	return append(IPs(machine), addresses(machine, clusterv1.MachineInternalDNS, clusterv1.MachineExternalDNS)...)
}

// IPs are the IP addresses of a Machine, the internal ones first. What an infrastructure
// provider only calls an IP address is none.
func IPs(machine *clusterv1.Machine) []string {
	return slices.DeleteFunc(addresses(machine, clusterv1.MachineInternalIP, clusterv1.MachineExternalIP), func(address string) bool {
		_, err := netip.ParseAddr(address)
		return err != nil
	})
}

// addresses are those of some types, in the order of these, each once.
func addresses(machine *clusterv1.Machine, types ...clusterv1.MachineAddressType) []string {
	var found []string
	for _, kind := range types {
		for _, address := range machine.Status.Addresses {
			if address.Type == kind && !slices.Contains(found, address.Address) {
				found = append(found, address.Address)
			}
		}
	}

	return found
}
