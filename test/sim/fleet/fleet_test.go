package fleet_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

func TestHostsAreSpreadOverFailureDomains(t *testing.T) {
	g := NewWithT(t)
	hosts := []fleet.Host{{Name: "host-1"}, {Name: "host-2"}, {Name: "host-3"}}
	spread := fleet.Spread(hosts, "a", "b")
	var domains []string
	for _, host := range spread {
		domains = append(domains, host.Manifest("default", map[string]string{"rack": "r1"}).Spec.FailureDomain)
	}
	g.Expect(domains).To(Equal([]string{"a", "b", "a"}))
	g.Expect(hosts).To(HaveEach(HaveField("FailureDomain", BeEmpty())), "what was given stays as it is")
	g.Expect(fleet.Spread(hosts)).To(Equal(hosts))
}
