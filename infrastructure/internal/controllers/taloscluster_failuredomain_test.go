package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestFailureDomainsDoNotChangeWithClaims(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", harness.InFailureDomain("b")), harness.NewHost("h2", "10.0.0.2", harness.InFailureDomain("a")), harness.NewHost("h3", "10.0.0.3", harness.InFailureDomain("c")))...)
	w.AddMachine("10.0.0.1")
	m := w.Manager()
	names := func() []string {
		var found []string
		for _, one := range harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster).Status.FailureDomains {
			found = append(found, one.Name)
		}
		return found
	}
	for range 3 { // Finalizers and conditions come first.
		w.Round(m)
	}
	for range harness.Rounds {
		w.Round(m)
		g.Expect(names()).To(Equal([]string{"a", "b", "c"}), "claimed, free and silent hosts alike, in order")
	}
	g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h1"))
	w.Remove(w.Host("h3"))
	w.Settle(m)
	g.Expect(names()).To(Equal([]string{"a", "b"}))
}
