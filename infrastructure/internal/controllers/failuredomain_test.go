package controllers

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func domain(name string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Spec.FailureDomain = name }
}

// wishes makes the Machine of TalosMachine "a" wish for a failure domain.
func (w *world) wishes(name string) {
	w.t.Helper()
	change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.FailureDomain = name })
}

func TestAClaimPrefersTheWishedFailureDomain(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprintf("choice %d", i), func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", domain("rack-1")), newHost("h2", "10.0.0.2", domain("rack-2")), newHost("h3", "10.0.0.3"))...)
			for range i {
				w.random.IntN(2)
			}
			w.wishes("rack-2")
			for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
				w.addMachine(address)
			}
			w.settle(w.manager())
			g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h2"))
			g.Expect(w.machine("a").Status.FailureDomain).To(Equal("rack-2"))
		})
	}
	t.Run("and takes another one where it has none left", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", domain("rack-1")))...)
		w.wishes("rack-2")
		w.addMachine("10.0.0.1")
		w.settle(w.manager())
		g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h1"))
		g.Expect(w.machine("a").Status.FailureDomain).To(Equal("rack-1"), "it says where the machine really is")
	})
}

func TestARequiredFailureDomainIsWaitedFor(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a", func(m *infrav1.TalosMachine) { m.Spec.Metal.FailureDomainPolicy = infrav1.FailureDomainRequired }),
		newHost("h1", "10.0.0.1", domain("rack-1")), newHost("h3", "10.0.0.3"))...)
	w.wishes("rack-2")
	w.addMachine("10.0.0.1")
	w.addMachine("10.0.0.3")
	m := w.manager()
	w.settle(m)
	found := conditions.Get(w.machine("a"), infrav1.AllocatedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(found.Message).To(Equal("No TalosHost of 2 can be claimed: 2 in another failure domain"))
	g.Expect(w.host("h1").Spec.ConsumerRef).To(BeZero())

	g.Expect(w.client.Create(t.Context(), newHost("h2", "10.0.0.2", domain("rack-2")))).To(Succeed())
	w.addMachine("10.0.0.2")
	w.settle(m)
	g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h2"))
}

func TestFailureDomainsDoNotChangeWithClaims(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", domain("b")), newHost("h2", "10.0.0.2", domain("a")), newHost("h3", "10.0.0.3", domain("c")))...)
	w.addMachine("10.0.0.1")
	m := w.manager()
	names := func() []string {
		var found []string
		for _, one := range get(w, &infrav1.TalosCluster{}, testCluster).Status.FailureDomains {
			found = append(found, one.Name)
		}
		return found
	}
	for range 3 { // Finalizers and conditions come first.
		w.round(m)
	}
	for range rounds {
		w.round(m)
		g.Expect(names()).To(Equal([]string{"a", "b", "c"}), "claimed, free and silent hosts alike, in order")
	}
	g.Expect(w.machine("a").Spec.HostRef.Name).To(Equal("h1"))
	w.remove(w.host("h3"))
	w.settle(m)
	g.Expect(names()).To(Equal([]string{"a", "b"}))
}
