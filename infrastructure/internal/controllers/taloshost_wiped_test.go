package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestWhatWasWipedIsRemembered(t *testing.T) {
	g := NewWithT(t)
	w, m, _ := harness.Provisioned(t)
	providerID := w.Machine("a").Spec.ProviderID
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	w.Remove(w.Machine("a"))
	w.Settle(m)
	harness.ExpectFree(w, "h1")
	g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
	g.Expect(w.Host("h1").Spec.Wiped[0].ProvenAt.IsZero()).To(BeFalse())

	// It is remembered without a status, and while the host is used by others.
	w.LoseStatus()
	for _, object := range harness.NewMachine(t, "b") {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	w.Settle(m)
	g.Expect(conditions.IsTrue(w.Machine("b"), infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))

	other := w.Machine("b").Spec.ProviderID
	w.Remove(w.Machine("b"))
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", other), HaveField("ProviderID", providerID)))
}

func TestNothingIsRememberedWithoutProof(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	providerID := w.Machine("a").Spec.ProviderID
	metal.KeepsData = true
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.Host("h1").Spec.Handover.ProviderID).To(Equal(providerID), "it says what is still there")

	metal.KeepsData = false
	w.Wait(time.Hour)
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
}

// TestAProviderIDOfAHostIsWipedUntilItIsUsedAgain: a host that names its provider
// ID itself has the same one in each claim.
func TestAProviderIDOfAHostIsWipedUntilItIsUsedAgain(t *testing.T) {
	g := NewWithT(t)
	const providerID = "cloud://1"
	w, m, _ := harness.Provisioned(t, func(h *infrav1.TalosHost) { h.Spec.ProviderID = providerID })
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
	for _, object := range harness.NewMachine(t, "b") {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.Handover.ProviderID).To(Equal(providerID))
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
}
