package backends

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestAllAddressesOfAMachineAreTold: whoever reaches the machine from another network
// than its own finds its address there, and nobody finds one that it shares.
func TestAllAddressesOfAMachineAreTold(t *testing.T) {
	internal := func(address string) clusterv1.MachineAddress {
		return clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: address}
	}
	external := func(address string) clusterv1.MachineAddress {
		return clusterv1.MachineAddress{Type: clusterv1.MachineExternalIP, Address: address}
	}
	hostname := clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: "cp-a"}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	}
	for name, tc := range map[string]struct {
		state fake.State
		inUse string
		want  clusterv1.MachineAddresses
	}{
		"one network": {fake.State{Addresses: []string{"10.0.0.1"}}, "10.0.0.1", clusterv1.MachineAddresses{internal("10.0.0.1"), hostname}},
		"two networks": {
			fake.State{Addresses: []string{"10.0.0.1"}, InternalAddresses: []string{"10.9.0.1"}}, "10.9.0.1",
			clusterv1.MachineAddresses{internal("10.0.0.1"), internal("10.9.0.1"), hostname},
		},
		"behind a translation": {
			fake.State{Addresses: []string{"10.0.0.1"}, ExternalAddresses: []string{"192.0.2.7"}}, "198.51.100.1",
			clusterv1.MachineAddresses{internal("10.0.0.1"), external("192.0.2.7"), external("198.51.100.1"), hostname},
		},
		"the one in use in another form": {
			fake.State{Addresses: []string{"fd00::1"}}, "fd00:0:0::1", clusterv1.MachineAddresses{internal("fd00::1"), hostname},
		},
		"reached by a name": {fake.State{Addresses: []string{"10.0.0.1"}}, "one.example.com", clusterv1.MachineAddresses{
			internal("10.0.0.1"), {Type: clusterv1.MachineExternalDNS, Address: "one.example.com"}, hostname,
		}},
		"with the virtual address of the endpoint": {
			fake.State{Addresses: []string{"10.0.0.1"}, InternalAddresses: []string{"10.0.0.100"}, ExternalAddresses: []string{"10.0.0.100"}}, "10.0.0.100",
			clusterv1.MachineAddresses{internal("10.0.0.1"), hostname},
		},
		"its own address is the endpoint": {fake.State{Addresses: []string{"10.0.0.100"}}, "10.0.0.100", clusterv1.MachineAddresses{internal("10.0.0.100"), hostname}},
		"the network is not up yet":       {fake.State{}, "10.0.0.1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tc.state.Hostname = "cp-a"
			g.Expect(AddressesOf(t.Context(), nodeOf(t, tc.state), tc.inUse, "10.0.0.100")).To(Equal(tc.want))
		})
	}
	t.Run("more than anybody tries", func(t *testing.T) {
		g := NewWithT(t)
		got, err := AddressesOf(t.Context(), nodeOf(t, fake.State{Hostname: "cp-a", Addresses: []string{"10.0.0.1"}, InternalAddresses: many}), "10.0.0.1")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(HaveLen(maxAddresses))
		g.Expect(got).To(ContainElements(internal("10.0.0.1"), hostname))
	})
}

func nodeOf(t *testing.T, state fake.State) talosclient.Node {
	t.Helper()
	dialer := fake.NewDialer()
	dialer.Add("192.0.2.1", fake.NewMachine(state))
	node, err := dialer.Secure(t.Context(), "192.0.2.1", talosclient.Credentials{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return node
}
