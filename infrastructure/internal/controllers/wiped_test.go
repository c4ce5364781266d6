package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestWhatWasWipedIsRemembered(t *testing.T) {
	g := NewWithT(t)
	w, m, _ := provisioned(t)
	providerID := w.machine("a").Spec.ProviderID
	g.Expect(w.host("h1").Spec.Wiped).To(BeEmpty())
	w.remove(w.machine("a"))
	w.settle(m)
	expectFree(w, "h1")
	g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
	g.Expect(w.host("h1").Spec.Wiped[0].ProvenAt.IsZero()).To(BeFalse())

	// It is remembered without a status, and while the host is used by others.
	w.loseStatus()
	for _, object := range newMachine(t, "b") {
		g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	}
	w.settle(m)
	w.settle(m)
	g.Expect(conditions.IsTrue(w.machine("b"), infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))

	other := w.machine("b").Spec.ProviderID
	w.remove(w.machine("b"))
	w.settle(m)
	g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", other), HaveField("ProviderID", providerID)))
}

func TestNothingIsRememberedWithoutProof(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	providerID := w.machine("a").Spec.ProviderID
	metal.keepsData = true
	w.remove(w.machine("a"))
	w.settle(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.host("h1").Spec.Handover.ProviderID).To(Equal(providerID), "it says what is still there")

	metal.keepsData = false
	w.wait(time.Hour)
	w.settle(m)
	g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
}

// TestAProviderIDOfAHostIsWipedUntilItIsUsedAgain: a host that names its provider
// ID itself has the same one in each claim.
func TestAProviderIDOfAHostIsWipedUntilItIsUsedAgain(t *testing.T) {
	g := NewWithT(t)
	const providerID = "cloud://1"
	w, m, _ := provisioned(t, func(h *infrav1.TalosHost) { h.Spec.ProviderID = providerID })
	w.remove(w.machine("a"))
	w.settle(m)
	g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
	for _, object := range newMachine(t, "b") {
		g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	}
	w.settle(m)
	g.Expect(w.host("h1").Spec.Handover.ProviderID).To(Equal(providerID))
	g.Expect(w.host("h1").Spec.Wiped).To(BeEmpty())
}
