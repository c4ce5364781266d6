package nodes

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// TestMemoryKeepsForAWhile: what a node said is given for so long, and not once it is
// forgotten.
func TestMemoryKeepsForAWhile(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(testStart)
	memory := NewMemory(clock, time.Minute)
	known := func() bool {
		_, found := memory.Recall(testKey)
		return found
	}
	g.Expect(known()).To(BeFalse())
	memory.Remember(testKey, health.Facts{Address: "10.0.0.1"})
	clock.SetTime(testStart.Add(time.Minute - 1))
	facts, found := memory.Recall(testKey)
	g.Expect(found).To(BeTrue())
	g.Expect(facts.Address).To(Equal("10.0.0.1"))
	clock.SetTime(testStart.Add(time.Minute))
	g.Expect(known()).To(BeFalse())
	memory.Remember(testKey, health.Facts{})
	g.Expect(known()).To(BeTrue())
	memory.Forget(testKey)
	g.Expect(known()).To(BeFalse())
}

// TestMemoryGrowsWithWhatIsThereOnly: what is not known any more takes no place.
func TestMemoryGrowsWithWhatIsThereOnly(t *testing.T) {
	g := NewWithT(t)
	memory := NewMemory(clocktesting.NewFakePassiveClock(testStart), time.Minute)
	memory.Reach(testKey, "10.0.0.1")
	memory.Answered(testKey, health.APIServerReady)
	g.Expect(memory.Reached(testKey)).To(Equal("10.0.0.1"))
	g.Expect(memory.Endpoint(testKey)).To(Equal(health.APIServerReady))
	memory.Reach(testKey, "")
	memory.Answered(testKey, health.APIServerUnknown)
	g.Expect(memory.addresses).To(BeEmpty())
	g.Expect(memory.endpoints).To(BeEmpty())
}

// TestAddressesOfAMachine: internal ones come first and names last, none twice, and what
// only names a host is none.
func TestAddressesOfAMachine(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{}
	g.Expect(Addresses(machine)).To(BeEmpty())
	machine.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineHostName, Address: "a"}, {Type: clusterv1.MachineExternalDNS, Address: "a.example.com"},
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.1"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.2"},
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}, {Type: clusterv1.MachineExternalIP, Address: "10.0.0.1"},
	}
	g.Expect(Addresses(machine)).To(Equal([]string{"10.0.0.2", "10.0.0.1", "192.0.2.1", "a.example.com"}))
	g.Expect(IsProvisioned(machine)).To(BeFalse())
	machine.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(IsProvisioned(machine)).To(BeTrue())
	machine.Status.Addresses = nil
	g.Expect(IsProvisioned(machine)).To(BeFalse())
}
