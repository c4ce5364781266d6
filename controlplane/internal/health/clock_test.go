package health

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestAWrongClockIsNamed: also where the node does not answer at another address.
func TestAWrongClockIsNamed(t *testing.T) {
	g := NewWithT(t)
	dialer := fake.NewDialer()
	dialer.Add("10.0.0.2", fake.NewMachine(fake.State{WrongClock: true}))
	facts := Inspector{Dialer: dialer}.Inspect(t.Context(), talosclient.Credentials{}, talosclient.Target{Addresses: []string{"10.0.0.1", "10.0.0.2"}})
	g.Expect(facts.Err).To(MatchError(talosclient.ErrClock))
	found := Conditions(facts)
	g.Expect(found).To(HaveLen(len(MachineConditionTypes())))
	for _, condition := range found {
		g.Expect(string(condition.Status)).To(Equal("Unknown"))
		g.Expect(condition.Message).To(And(ContainSubstring("clock"), ContainSubstring("time servers")))
	}
}
