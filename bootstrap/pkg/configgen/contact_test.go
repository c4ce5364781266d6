package configgen_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

func TestContactNamesAreAddedToThoseOfTheTalosAPI(t *testing.T) {
	for _, contract := range contracts {
		for _, role := range []configgen.Role{configgen.RoleControlPlane, configgen.RoleWorker} {
			t.Run(contract+" "+string(role), func(t *testing.T) {
				g := NewWithT(t)
				host := pod()
				host.ContactNames = []string{"192.0.2.7", "node-7.example.com", "Talos.example", "2001:db8:0::7"}
				cfg := overlaid(g, contract, role, host, "machine: {certSANs: [talos.example, \"2001:db8::7\"]}")
				g.Expect(cfg.Machine().Security().CertSANs()).To(Equal([]string{"talos.example", "2001:db8::7", "192.0.2.7", "node-7.example.com"}))
				host.ContactNames = nil
				g.Expect(overlaid(g, contract, role, host).Machine().Security().CertSANs()).To(BeEmpty())
			})
		}
	}
}
