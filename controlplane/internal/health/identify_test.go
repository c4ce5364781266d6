package health

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestWhoANodeIs: what etcd is started with has the host name, too, and saves asking for
// it; but only the host name itself can tell that a node is another one.
func TestWhoANodeIs(t *testing.T) {
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
			NewWithT(t).Expect(inspect(t, tc.edit).Err != nil).To(Equal(tc.other))
		})
	}
}

func TestWhereEtcdOfANodeIs(t *testing.T) {
	g := NewWithT(t)
	facts := inspect(t, func(m *fake.Machine) {
		m.Update(func(s *fake.State) {
			s.EtcdSpec = talosclient.EtcdSpec{AdvertisedAddresses: []string{"10.9.0.1"}, QuotaBytes: 10}
		})
	})
	g.Expect(facts.EtcdAddresses).To(Equal([]string{"10.9.0.1"}))
	g.Expect(facts.Etcd.DBQuotaBytes).To(BeEquivalentTo(10))

	facts = inspect(t, func(m *fake.Machine) { m.Fail("EtcdSpec", errDenied) })
	g.Expect(facts.Err).NotTo(HaveOccurred())
	g.Expect(facts.EtcdAddresses).To(BeEmpty())
	g.Expect(facts.Etcd.DBQuotaBytes).To(BeZero(), "all else is known")
}
