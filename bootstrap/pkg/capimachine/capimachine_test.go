package capimachine

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// TestAddressesOfAMachine: internal ones come first and names last, none twice; what only
// names a host is none, nor is what a provider calls an IP and is not.
func TestAddressesOfAMachine(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{}
	g.Expect(Addresses(machine)).To(BeEmpty())
	machine.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineHostName, Address: "a"}, {Type: clusterv1.MachineExternalDNS, Address: "a.example.com"},
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.1"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.2"},
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}, {Type: clusterv1.MachineExternalIP, Address: "10.0.0.1"},
		{Type: clusterv1.MachineExternalIP, Address: "<nil>"}, {Type: clusterv1.MachineInternalIP, Address: "2001:db8::1"},
	}
	g.Expect(Addresses(machine)).To(Equal([]string{"10.0.0.2", "10.0.0.1", "2001:db8::1", "192.0.2.1", "a.example.com"}))
	g.Expect(IsProvisioned(machine)).To(BeFalse())
	machine.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(IsProvisioned(machine)).To(BeTrue())
	machine.Status.Addresses = nil
	g.Expect(IsProvisioned(machine)).To(BeFalse())
}
