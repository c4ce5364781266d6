package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestAMachineIsDeletedWhileItIsReprovisioned(t *testing.T) {
	tests := map[string]struct {
		until  func(*world, *manager, *bareMetal)
		resets int
	}{
		"before the wipe": {func(w *world, m *manager, metal *bareMetal) {
			metal.SetSilent(true)
			w.settle(m)
			metal.SetSilent(false)
		}, 1},
		"during the wipe":   {func(w *world, m *manager, metal *bareMetal) { w.untilWiping(m, metal) }, 1},
		"after the wipe":    {func(w *world, m *manager, _ *bareMetal) { w.untilWiped(m) }, 1},
		"once it runs anew": {func(w *world, m *manager, _ *bareMetal) { w.settle(m) }, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := provisioned(t)
			providerID := w.machine("a").Spec.ProviderID
			w.wish("a", "")
			tt.until(w, m, metal)
			w.remove(w.machine("a"))
			for range 3 {
				w.settle(m)
			}
			g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
			expectFree(w, "h1")
			g.Expect(w.host("h1").Spec.Reprovision).To(BeZero())
			g.Expect(metal.Resets()).To(HaveLen(tt.resets))
			g.Expect(w.host("h1").Spec.Wiped).To(HaveExactElements(HaveField("ProviderID", providerID)))
		})
	}
}

func TestADeletedMachineThatIsReprovisionedWaitsNoLongerThanOthers(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.SetSilent(true)
	w.wish("a", "")
	w.settle(m)
	w.remove(w.machine("a"))
	w.settle(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeTrue())
	w.wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.settle(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	metal.SetSilent(false)
	w.settle(m)
	expectFree(w, "h1")
}

func TestADeletedMachineThatKeepsItsDataIsNotToldAgainAtOnce(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.keepsData = true
	w.wish("a", "")
	w.settle(m)
	w.remove(w.machine("a"))
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostError))
}

func TestAMachineThatIsReprovisionedIsLeftAlone(t *testing.T) {
	deleteForMove := func(o metav1.Object) { o.SetAnnotations(map[string]string{infrav1.DeleteForMoveAnnotation: ""}) }
	tests := map[string]func(*world){
		"once its TalosMachine was moved": func(w *world) { change(w, w.machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) }) },
		"once its host was moved":         func(w *world) { change(w, w.host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) }) },
		"once its TalosMachine vanishes": func(w *world) {
			change(w, w.machine("a"), func(m *infrav1.TalosMachine) { m.Finalizers = nil })
			w.remove(w.machine("a"))
		},
		"while its Cluster is paused": func(w *world) {
			change(w, get(w, &clusterv1.Cluster{}, testCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		},
	}
	for name, act := range tests {
		t.Run(name+" before the wipe", func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := provisioned(t)
			metal.SetSilent(true)
			w.wish("a", "")
			w.round(m)
			g.Expect(w.host("h1").Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem))
			act(w)
			metal.SetSilent(false)
			w.wait(24 * time.Hour)
			w.settle(m)
			g.Expect(metal.Resets()).To(BeEmpty())
		})
		t.Run(name+" after the wipe", func(t *testing.T) {
			w, m, metal := provisioned(t)
			w.wish("a", "")
			w.untilWiped(m)
			act(w)
			w.wait(24 * time.Hour)
			w.settle(m)
			NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
		})
	}
}

func TestAPausedMachineGoesOnToBeReprovisioned(t *testing.T) {
	w, m, metal := provisioned(t)
	before := w.machine("a")
	pause := func(paused bool) {
		change(w, get(w, &clusterv1.Cluster{}, testCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(paused) })
	}
	w.wish("a", "")
	w.untilWiping(m, metal)
	pause(true)
	w.settle(m)
	NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
	pause(false)
	w.settle(m)
	expectReprovisioned(w, before, "a", "h1")
}
