package talosclient_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestWhoANodeIs: what etcd is started with has the host name, too, and saves asking for
// it; but only the host name itself can tell that a node is another one.
func TestWhoANodeIs(t *testing.T) {
	errDenied := errors.New("denied")
	for name, tc := range map[string]struct {
		edit  func(*fake.Machine)
		other bool
	}{
		"etcd is started with its name, and nothing else is asked": {edit: func(m *fake.Machine) {
			m.Update(func(s *fake.State) { s.EtcdSpec.Hostname = "cp-a" })
			m.Fail("Hostname", errDenied)
		}},
		"it has been renamed":                       {edit: func(m *fake.Machine) { m.Update(func(s *fake.State) { s.EtcdSpec.Hostname = "before" }) }},
		"it starts no etcd (yet)":                   {edit: func(*fake.Machine) {}},
		"it does not say what etcd is started with": {edit: func(m *fake.Machine) { m.Fail("EtcdSpec", errDenied) }},
		"it is another one": {edit: func(m *fake.Machine) {
			m.Update(func(s *fake.State) { s.Hostname, s.EtcdSpec.Hostname = "cp-b", "cp-b" })
		}, other: true},
		"it says nothing": {edit: func(m *fake.Machine) { m.Fail("EtcdSpec", errDenied); m.Fail("Hostname", errDenied) }, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			machine := fake.NewMachine(fake.State{Hostname: "cp-a"})
			tc.edit(machine)
			dialer := fake.NewDialer()
			dialer.Add("10.0.0.2", machine)
			target := talosclient.Target{Addresses: []string{"10.0.0.1", "10.0.0.2"}, Hostname: "cp-a"}

			node, err := talosclient.Reach(t.Context(), dialer, talosclient.Credentials{}, target)
			if tc.other {
				g.Expect(err).To(HaveOccurred())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(node.Address).To(Equal("10.0.0.2"))
			g.Expect(node.Close()).To(Succeed())
		})
	}
}
