package health

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

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
