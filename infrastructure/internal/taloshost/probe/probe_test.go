package probe

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

const (
	uuid  = "4c4c4544-0042-3510-8053-b4c04f4d4e31"
	other = "4c4c4544-0042-3510-8053-b4c04f4d4e32"
)

func machine(maintenance bool, systemUUID string) *talosfake.Machine {
	return talosfake.NewMachine(talosfake.State{
		Maintenance: maintenance, Fingerprint: "boot-1", CA: []byte("ours"), Hardware: talosclient.Hardware{SystemUUID: systemUUID},
	})
}

func TestReach(t *testing.T) {
	ours, theirs := &talosclient.Credentials{CA: []byte("ours")}, &talosclient.Credentials{CA: []byte("theirs")}
	early := machine(false, uuid)
	early.Update(func(s *talosfake.State) { s.WrongClock = true })
	broken := machine(true, uuid)
	broken.Fail("Hardware", errors.New("connection reset"))
	tests := map[string]struct {
		first, second *talosfake.Machine
		credentials   *talosclient.Credentials
		fingerprint   string
		outcome       Outcome
		address       string
	}{
		"a machine in maintenance mode":                     {first: machine(true, uuid), outcome: InMaintenance, address: "192.0.2.1"},
		"a machine in maintenance mode, asked as a node":    {first: machine(true, uuid), credentials: ours, outcome: InMaintenance, address: "192.0.2.1"},
		"a node of ours":                                    {first: machine(false, uuid), credentials: ours, outcome: Configured, address: "192.0.2.1"},
		"a node of somebody else":                           {first: machine(false, uuid), credentials: theirs, outcome: Foreign, address: "192.0.2.1"},
		"a node, without credentials":                       {first: machine(false, uuid), outcome: Foreign, address: "192.0.2.1"},
		"a node of ours whose clock is wrong":               {first: early, credentials: ours, outcome: WrongClock, address: "192.0.2.1"},
		"a node of somebody else whose clock is wrong":      {first: early, credentials: theirs, outcome: Foreign, address: "192.0.2.1"},
		"a wrong clock tells more than silence":             {second: early, credentials: ours, outcome: WrongClock, address: "192.0.2.2"},
		"another machine":                                   {first: machine(true, other), outcome: WrongMachine, address: "192.0.2.1"},
		"another certificate":                               {first: machine(true, uuid), fingerprint: "boot-0", outcome: WrongFingerprint, address: "192.0.2.1"},
		"nobody":                                            {outcome: Silent, address: "192.0.2.1"},
		"somebody who does not say who it is":               {first: broken, outcome: Silent, address: "192.0.2.1"},
		"the right machine at the second address":           {second: machine(true, uuid), outcome: InMaintenance, address: "192.0.2.2"},
		"the right machine behind another one":              {first: machine(true, other), second: machine(true, uuid), outcome: InMaintenance, address: "192.0.2.2"},
		"another machine tells more than silence after it":  {first: machine(true, other), outcome: WrongMachine, address: "192.0.2.1"},
		"another machine tells more than silence before it": {second: machine(true, other), outcome: WrongMachine, address: "192.0.2.2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dialer := talosfake.NewDialer()
			for address, machine := range map[string]*talosfake.Machine{"192.0.2.1": tt.first, "192.0.2.2": tt.second} {
				if machine != nil {
					dialer.Add(address, machine)
				}
			}
			answer := Reach(t.Context(), dialer, Target{
				Addresses: []string{"192.0.2.1", "192.0.2.2"}, Identity: infrav1.HostIdentity{UUID: uuid},
				Fingerprint: tt.fingerprint, Credentials: tt.credentials,
			})
			defer answer.Close()
			g.Expect(answer.Outcome).To(Equal(tt.outcome))
			g.Expect(answer.Address).To(Equal(tt.address))
			isThere := tt.outcome == InMaintenance || tt.outcome == Configured
			g.Expect(answer.Node != nil).To(Equal(isThere))
			g.Expect(answer.Err == nil).To(Equal(isThere))
			g.Expect(answer.Verdict == taloshost.IdentityMatches).To(Equal(isThere))
		})
	}
	t.Run("a host without address", func(t *testing.T) {
		g := NewWithT(t)
		answer := Reach(t.Context(), talosfake.NewDialer(), Target{})
		g.Expect(answer.Outcome).To(Equal(Silent))
		g.Expect(answer.Err).To(HaveOccurred())
	})
}

// waiting is a dialer at one address of which nobody answers until another one was
// dialled.
type waiting struct {
	*talosfake.Dialer
	t       *testing.T
	mute    string
	another chan struct{}
}

func (w waiting) Maintenance(ctx context.Context, address, fingerprint string) (talosclient.Node, error) {
	if address != w.mute {
		close(w.another)
		return w.Dialer.Maintenance(ctx, address, fingerprint)
	}
	<-ctx.Done()
	select {
	case <-w.another:
	default:
		w.t.Error("no other address was dialled in the meantime")
	}

	return nil, ctx.Err()
}

// TestAnAddressThatTakesCallsAndNeverAnswersHoldsUpNoOther: a machine has several
// networks, of which the managers may reach one.
func TestAnAddressThatTakesCallsAndNeverAnswersHoldsUpNoOther(t *testing.T) {
	for name, addresses := range map[string][]string{"before it": {"192.0.2.1", "192.0.2.2"}, "twice before it": {"192.0.2.1", "192.0.2.1", "192.0.2.2"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dialer := waiting{Dialer: talosfake.NewDialer(), t: t, mute: "192.0.2.1", another: make(chan struct{})}
			dialer.Add("192.0.2.2", machine(true, uuid))
			answer := Reach(t.Context(), dialer, Target{Addresses: addresses, Identity: infrav1.HostIdentity{UUID: uuid}})
			defer answer.Close()
			g.Expect(answer.Outcome).To(Equal(InMaintenance), "%v", answer.Err)
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		g := NewWithT(t)
		dialer := waiting{Dialer: talosfake.NewDialer(), t: t, mute: "192.0.2.1", another: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-dialer.another
			cancel()
		}()
		answer := Reach(ctx, dialer, Target{Addresses: []string{"192.0.2.1", "192.0.2.2"}})
		g.Expect(answer.Outcome).To(Equal(Silent))
	})
}
