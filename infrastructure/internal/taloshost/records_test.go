package taloshost

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestWipesAreRemembered(t *testing.T) {
	g, host, at := NewWithT(t), &infrav1.TalosHost{}, time.Unix(1, 0)
	known := func() []string {
		var ids []string
		for _, wiped := range host.Spec.Wiped {
			ids = append(ids, wiped.ProviderID)
		}
		return ids
	}
	rememberWipe(host, "", at)
	g.Expect(host.Spec.Wiped).To(BeNil(), "the machine of somebody else has no provider ID of ours")

	rememberWipe(host, "a", at)
	rememberWipe(host, "b", at)
	g.Expect(known()).To(Equal([]string{"b", "a"}), "the latest is the first")
	rememberWipe(host, "a", at.Add(time.Hour))
	g.Expect(known()).To(Equal([]string{"a", "b"}), "none is there twice")
	g.Expect(host.Spec.Wiped[0].ProvenAt.Time).To(Equal(at.Add(time.Hour)))

	forgetWipe(host, "c")
	g.Expect(known()).To(Equal([]string{"a", "b"}))
	forgetWipe(host, "a")
	forgetWipe(host, "b")
	g.Expect(host.Spec.Wiped).To(BeNil(), "an empty list is none")

	for i := range 2 * infrav1.MaxHostWipes {
		rememberWipe(host, fmt.Sprint(i), at)
	}
	g.Expect(known()).To(HaveLen(infrav1.MaxHostWipes))
	g.Expect(known()[0]).To(Equal(fmt.Sprint(2*infrav1.MaxHostWipes - 1)))
}

func TestAddresses(t *testing.T) {
	host := &infrav1.TalosHost{Spec: infrav1.TalosHostSpec{
		Addresses: []string{"192.0.2.1", "node.example.com"},
		Network:   infrav1.HostNetwork{Addresses: []string{"192.0.2.1/24", "192.0.2.2/24", "none"}},
	}}
	NewWithT(t).Expect(AddressesOf(host)).To(Equal([]string{"192.0.2.1", "node.example.com", "192.0.2.2"}))
}

func TestOrdersToWipeAddUp(t *testing.T) {
	g := NewWithT(t)
	g.Expect(union([]string{"b"}, []string{"a", "b"})).To(Equal([]string{"a", "b"}))
	g.Expect(union(nil, nil)).To(BeEmpty())
}
