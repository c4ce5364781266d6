package probe

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

func TestLogRemembersAnswers(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	log, dialer, key := NewLog(clock), talosfake.NewDialer(), client.ObjectKey{Namespace: "a", Name: "h1"}
	machine := talosfake.NewMachine(talosfake.State{
		Maintenance: true, Hardware: talosclient.Hardware{SystemUUID: "4c4c4544-0042-3510-8053-b4c04f4d4e01"},
	})
	dialer.Add("10.0.0.1", machine)
	ask := func() { log.Reach(t.Context(), dialer, key, Target{Addresses: []string{"10.0.0.1"}}).Close() }

	machine.SetSilent(true)
	ask()
	_, known := log.Last(key)
	g.Expect(known).To(BeFalse(), "silence is no answer")

	machine.SetSilent(false)
	ask()
	at, _ := log.Last(key)
	g.Expect(at).To(Equal(time.Unix(1000, 0)))

	clock.SetTime(time.Unix(2000, 0))
	machine.SetSilent(true)
	ask()
	at, _ = log.Last(key)
	g.Expect(at).To(Equal(time.Unix(1000, 0)), "silence takes nothing back")

	log.Forget(key)
	_, known = log.Last(key)
	g.Expect(known).To(BeFalse())
}
