package nodes

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

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
