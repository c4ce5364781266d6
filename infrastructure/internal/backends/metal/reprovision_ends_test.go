package metal_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineIsDeletedWhileItIsReprovisioned(t *testing.T) {
	tests := map[string]struct {
		until  func(*harness.Environment, *harness.Manager, *harness.BareMetal)
		resets int
	}{
		"before the wipe": {func(w *harness.Environment, m *harness.Manager, metal *harness.BareMetal) {
			metal.SetSilent(true)
			w.Settle(m)
			metal.SetSilent(false)
		}, 1},
		"during the wipe":   {func(w *harness.Environment, m *harness.Manager, metal *harness.BareMetal) { w.UntilWiping(m, metal) }, 1},
		"after the wipe":    {func(w *harness.Environment, m *harness.Manager, _ *harness.BareMetal) { w.UntilWiped(m) }, 1},
		"once it runs anew": {func(w *harness.Environment, m *harness.Manager, _ *harness.BareMetal) { w.Settle(m) }, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			providerID := w.Machine("a").Spec.ProviderID
			w.Wish("a", "")
			tt.until(w, m, metal)
			w.Remove(w.Machine("a"))
			for range 3 {
				w.Settle(m)
			}
			g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
			harness.ExpectFree(w, "h1")
			g.Expect(w.Host("h1").Spec.Reprovision).To(BeZero())
			g.Expect(metal.Resets()).To(HaveLen(tt.resets))
			g.Expect(w.Host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
		})
	}
}

func TestADeletedMachineThatIsReprovisionedWaitsNoLongerThanOthers(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Wish("a", "")
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeTrue())
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	metal.SetSilent(false)
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

func TestADeletedMachineThatKeepsItsDataIsNotToldAgainAtOnce(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.KeepsData = true
	w.Wish("a", "")
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
}

func TestAMachineThatIsReprovisionedIsLeftAlone(t *testing.T) {
	deleteForMove := func(o metav1.Object) { o.SetAnnotations(map[string]string{infrav1.DeleteForMoveAnnotation: ""}) }
	tests := map[string]func(*harness.Environment){
		"once its TalosMachine was moved": func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) })
		},
		"once its host was moved": func(w *harness.Environment) {
			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) })
		},
		"once its TalosMachine vanishes": func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.Finalizers = nil })
			w.Remove(w.Machine("a"))
		},
		"while its Cluster is paused": func(w *harness.Environment) {
			harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		},
	}
	for name, act := range tests {
		t.Run(name+" before the wipe", func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			metal.SetSilent(true)
			w.Wish("a", "")
			w.Round(m)
			g.Expect(w.Host("h1").Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem))
			act(w)
			metal.SetSilent(false)
			w.Wait(24 * time.Hour)
			w.Settle(m)
			g.Expect(metal.Resets()).To(BeEmpty())
		})
		t.Run(name+" after the wipe", func(t *testing.T) {
			w, m, metal := harness.Provisioned(t)
			w.Wish("a", "")
			w.UntilWiped(m)
			act(w)
			w.Wait(24 * time.Hour)
			w.Settle(m)
			NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
		})
	}
}

func TestAPausedMachineGoesOnToBeReprovisioned(t *testing.T) {
	w, m, metal := harness.Provisioned(t)
	before := w.Machine("a")
	pause := func(paused bool) {
		harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(paused) })
	}
	w.Wish("a", "")
	w.UntilWiping(m, metal)
	pause(true)
	w.Settle(m)
	NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
	pause(false)
	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
}
