package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
)

// wish asks for a machine to be re-provisioned, as a person would.
func (w *world) wish(name, value string) {
	w.t.Helper()
	change(w, w.machine(name), func(m *infrav1.TalosMachine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, infrav1.ReprovisionAnnotation, value)
	})
}

func (w *world) reprovisioning(name string) *metav1.Condition {
	w.t.Helper()

	return conditions.Get(w.machine(name), infrav1.ReprovisioningCondition)
}

// untilWiping lets a manager work until the machine was told to wipe itself.
func (w *world) untilWiping(m *manager, metal *bareMetal) {
	w.t.Helper()
	for range rounds {
		if len(metal.Resets()) > 0 {
			return
		}
		w.round(m)
	}
	NewWithT(w.t).Expect(metal.Resets()).To(HaveLen(1))
}

// untilWiped lets a manager work until the machine is proven wiped, and is not
// configured again yet.
func (w *world) untilWiped(m *manager) {
	w.t.Helper()
	isWiped := func() bool {
		spec := w.host("h1").Spec
		return spec.Reprovision.ClusterName != "" && spec.Handover.ProviderID == ""
	}
	for range 4 * rounds {
		if isWiped() {
			return
		}
		for _, host := range w.hosts() {
			w.pass(m.hosts.Reconcile, &host, func(error) bool { return false })
		}
		if !isWiped() {
			for _, machine := range w.machines() {
				w.pass(m.machines.Reconcile, &machine, func(error) bool { return false })
			}
		}
		w.clock.SetTime(w.clock.Now().Add(tick))
	}
	NewWithT(w.t).Expect(isWiped()).To(BeTrue())
}

// expectReprovisioned reports whether nothing but another boot is left of it.
func expectReprovisioned(w *world, before *infrav1.TalosMachine, name, host string) {
	w.t.Helper()
	g := NewWithT(w.t)
	machine, found := w.machine(name), w.host(host)
	g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(machine.Spec).To(Equal(before.Spec))
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.IsTrue(machine, infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(conditions.Get(machine, infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.NotReprovisioningReason))
	g.Expect(found.Status.State).To(Equal(infrav1.HostProvisioned))
	g.Expect(found.Spec.ConsumerRef.ProviderID).To(Equal(before.Spec.ProviderID))
	g.Expect(found.Spec.Handover.ProviderID).To(Equal(before.Spec.ProviderID))
	g.Expect(found.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
	g.Expect(found.Spec.Release).To(BeZero())
	g.Expect(found.Spec.Reprovision).To(BeZero())
	g.Expect(found.Spec.Wiped).To(BeEmpty(), "it is not wiped any more")
	g.Expect(found.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
}

func TestAMachineIsReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	before, first := w.machine("a"), metal.Applied()[0]
	admin := get(w, &corev1.Secret{}, credentials.AdminName("h1"))
	w.wish("a", "")
	w.untilWiping(m, metal)
	w.round(m)

	machine, host := w.machine("a"), w.host("h1")
	g.Expect(conditions.IsTrue(machine, infrav1.ReprovisioningCondition)).To(BeTrue())
	g.Expect(conditions.IsFalse(machine, infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(machine.Annotations).To(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(conditions.IsFalse(host, infrav1.AvailableCondition)).To(BeTrue())
	g.Expect(conditions.Get(host, infrav1.AvailableCondition).Message).To(ContainSubstring("gets its configuration again"))
	g.Expect(host.Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))

	w.settle(m)
	expectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Resets()[0].SystemLabels).To(Equal([]string{"EPHEMERAL", "STATE"}))
	g.Expect(metal.Applied()).To(HaveLen(2))
	g.Expect(metal.Applied()[1]).To(Equal(first))
	g.Expect(get(w, &corev1.Secret{}, credentials.AdminName("h1")).UID).To(Equal(admin.UID))

	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1), "the annotation is used up")
}

// TestTheManagerDiesAnywhereWhileItReprovisions kills the manager at each of its
// effects, one after the other, and expects the next one to go on.
func TestTheManagerDiesAnywhereWhileItReprovisions(t *testing.T) {
	effects := reprovisionAndDie(t, 0)
	NewWithT(t).Expect(effects).To(BeNumerically(">", 12))
	for killAt := 1; killAt <= effects; killAt++ {
		t.Run(fmt.Sprintf("at effect %d", killAt), func(t *testing.T) {
			t.Parallel()
			reprovisionAndDie(t, killAt)
		})
	}
}

func reprovisionAndDie(t *testing.T, killAt int) int {
	t.Helper()
	g := NewWithT(t)
	w, _, metal := provisioned(t)
	before := w.machine("a")
	w.wish("a", "")
	effects := w.life.Effects()
	w.life.DieAt(killAt)
	died := w.liveUntil(func() bool {
		return len(metal.Applied()) == 2 && w.host("h1").Spec.Reprovision.ClusterName == "" && w.host("h1").Status.State == infrav1.HostProvisioned &&
			w.machine("a").Annotations[infrav1.ReprovisionAnnotation] == "" && conditions.IsTrue(w.machine("a"), infrav1.ReadyCondition)
	})
	effects = w.life.Effects() - effects
	w.life.Restart()
	w.settle(w.manager())
	expectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Applied()).To(HaveLen(2))
	g.Expect(died).To(Equal(killAt > 0))

	return effects
}

func TestReprovisioningNeedsNoStatus(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	before := w.machine("a")
	w.wish("a", "")
	const every = 4
	for range rounds {
		for range every {
			w.round(m)
		}
		g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		w.loseStatus()
	}
	w.settle(m)
	expectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Applied()).To(HaveLen(2))
}

func TestAMachineThatIsReprovisionedStaysProvisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.SetSilent(true)
	w.wish("a", "")
	w.round(m)
	w.loseStatus()
	w.settle(m)
	machine := w.machine("a")
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.Get(machine, infrav1.ReadyCondition).Reason).To(Equal(infrav1.WipingReason))
	g.Expect(w.reprovisioning("a").Message).To(ContainSubstring("does not answer"))
}

func TestAMovedMachineGoesOnToBeReprovisioned(t *testing.T) {
	w, m, metal := provisioned(t)
	before := w.machine("a")
	w.wish("a", "")
	w.untilWiping(m, metal)
	change(w, w.machine("a"), func(m *infrav1.TalosMachine) { m.UID = "another-uid" })
	w.loseStatus()
	w.settle(w.manager())
	expectReprovisioned(w, before, "a", "h1")
	NewWithT(t).Expect(w.host("h1").Spec.ConsumerRef.UID).To(Equal("another-uid"))
}

// two is a world in which TalosMachines "a" and "b" run.
func two(t *testing.T) (*world, *manager, map[string]*bareMetal) {
	t.Helper()
	w := newWorld(t, append(append(newMachine(t, "a"), newMachine(t, "b")...), newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"))...)
	metals := map[string]*bareMetal{"h1": w.addMachine("10.0.0.1"), "h2": w.addMachine("10.0.0.2")}
	m := w.manager()
	w.settle(m)

	return w, m, map[string]*bareMetal{"a": metals[w.machine("a").Spec.HostRef.Name], "b": metals[w.machine("b").Spec.HostRef.Name]}
}

func TestOneMachineOfAClusterIsReprovisionedAtATime(t *testing.T) {
	g := NewWithT(t)
	w, m, metals := two(t)
	w.wish("a", "")
	metals["a"].SetSilent(true)
	w.round(m)
	w.wish("b", "true")
	w.settle(m)

	refused := w.reprovisioning("b")
	g.Expect(refused.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(refused.Reason).To(Equal(infrav1.ReprovisioningBlockedReason))
	g.Expect(refused.Message).To(And(ContainSubstring(w.machine("a").Spec.HostRef.Name), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
	g.Expect(metals["b"].Resets()).To(BeEmpty())
	g.Expect(conditions.IsTrue(w.machine("b"), infrav1.ReadyCondition)).To(BeTrue(), "nothing was done to it")
	g.Expect(w.host(w.machine("b").Spec.HostRef.Name).Spec.Release).To(BeZero())
	g.Expect(w.recorded()).To(ContainElement(ContainSubstring(infrav1.ReprovisioningBlockedReason)))

	metals["a"].SetSilent(false)
	w.wait(time.Minute)
	w.settle(m)
	w.wait(time.Minute)
	w.settle(m)
	for _, metal := range metals {
		g.Expect(metal.Resets()).To(HaveLen(1))
		g.Expect(metal.Applied()).To(HaveLen(2))
	}
	expectReprovisioned(w, w.machine("b"), "b", w.machine("b").Spec.HostRef.Name)
}

func TestTwoWishesInOneMomentAreCarriedOutOneAfterTheOther(t *testing.T) {
	g := NewWithT(t)
	w, m, metals := two(t)
	w.wish("a", "")
	w.wish("b", "")
	for range 4 * rounds {
		w.round(m)
		underWay := 0
		for _, host := range w.hosts() {
			if host.Spec.Reprovision.ClusterName != "" {
				underWay++
			}
		}
		g.Expect(underWay).To(BeNumerically("<=", 1))
	}
	for _, metal := range metals {
		g.Expect(metal.Resets()).To(HaveLen(1))
	}
}

func TestAPersonLetsMachinesBeReprovisionedDespiteOthers(t *testing.T) {
	g := NewWithT(t)
	w, m, metals := two(t)
	metals["a"].SetSilent(true)
	w.wish("a", "")
	w.round(m)
	w.wish("b", infrav1.ReprovisionDespiteOthers)
	w.settle(m)
	w.settle(m)
	g.Expect(metals["b"].Resets()).To(HaveLen(1))
	g.Expect(metals["b"].Applied()).To(HaveLen(2))
	g.Expect(metals["a"].Resets()).To(BeEmpty())
}

func TestWhatKeepsAMachineFromBeingReprovisioned(t *testing.T) {
	deleteForMove := func(o metav1.Object) {
		o.SetAnnotations(map[string]string{infrav1.DeleteForMoveAnnotation: "", infrav1.ReprovisionAnnotation: ""})
	}
	tests := map[string]struct {
		act    func(*world)
		reason string
	}{
		"the machine configuration is missing": {func(w *world) { w.remove(get(w, &corev1.Secret{}, "a")) }, infrav1.ReprovisionDataMissingReason},
		"the annotation comes from a template": {func(w *world) {
			change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Annotations = map[string]string{infrav1.ReprovisionAnnotation: ""} })
		}, infrav1.ReprovisionFromTemplateReason},
		"the TalosMachine was moved": {func(w *world) { change(w, w.machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) }) }, infrav1.ReprovisionGoingReason},
		"the host was moved":         {func(w *world) { change(w, w.host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) }) }, infrav1.ReprovisionGoingReason},
		"the host is being deleted":  {func(w *world) { w.remove(w.host("h1")) }, infrav1.ReprovisionGoingReason},
		"the Cluster is paused": {func(w *world) {
			change(w, get(w, &clusterv1.Cluster{}, testCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		}, infrav1.NotReprovisioningReason},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := provisioned(t)
			tt.act(w)
			w.wish("a", "")
			w.settle(m)
			g.Expect(w.reprovisioning("a").Reason).To(Equal(tt.reason))
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.host("h1").Spec.Release).To(BeZero())
			g.Expect(w.host("h1").Spec.Reprovision).To(BeZero())
			g.Expect(w.machine("a").Annotations).To(HaveKey(infrav1.ReprovisionAnnotation))
		})
	}
}

func TestAWishThatIsTakenBackInTimeIsNotCarriedOut(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	data := get(w, &corev1.Secret{}, "a")
	w.remove(data)
	w.wish("a", "")
	w.settle(m)
	change(w, w.machine("a"), func(m *infrav1.TalosMachine) { delete(m.Annotations, infrav1.ReprovisionAnnotation) })
	data.ResourceVersion = ""
	g.Expect(w.client.Create(t.Context(), data)).To(Succeed())
	w.settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(w.reprovisioning("a").Reason).To(Equal(infrav1.NotReprovisioningReason))
}

func TestAWishForAMachineWithoutConfigurationIsUsedUp(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a", func(m *infrav1.TalosMachine) {
		m.Annotations = map[string]string{infrav1.ReprovisionAnnotation: ""}
	}), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	w.settle(w.manager())
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(w.machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
}

func TestAWishIsNotCarriedOutTwiceWhenTheCacheIsBehind(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	w.wish("a", "")
	old := w.machine("a")
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	m.machines.Client = behind[*infrav1.TalosMachine]{Client: w.life.Client(w.client), old: old}
	for range rounds {
		w.roundWith(m, apierrors.IsConflict)
	}
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(w.host("h1").Spec.Release).To(BeZero())
}

func TestAMachineBackInMaintenanceIsReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	before := w.machine("a")
	metal.boot(true, nil)
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	w.wish("a", "")
	w.settle(m)
	expectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(BeEmpty(), "another boot and no content are the proof")
	g.Expect(metal.Applied()).To(HaveLen(2))
}

func TestAMachineThatKeepsItsDataIsNotConfiguredAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	before := w.machine("a")
	metal.keepsData = true
	w.wish("a", "")
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(conditions.Get(w.host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.NotWipedReason))
	g.Expect(w.host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.reprovisioning("a").Reason).To(Equal(infrav1.WipingReason))
	g.Expect(w.reprovisioning("a").Message).To(ContainSubstring(infrav1.HostRetryAnnotation))
	g.Expect(conditions.IsFalse(w.machine("a"), infrav1.ReadyCondition)).To(BeTrue())

	metal.keepsData = false
	change(w, w.host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.settle(m)
	expectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(2))
}

func TestAnotherMachineIsNotConfiguredInPlaceOfAWipedOne(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	w.wish("a", "")
	w.untilWiped(m)
	other := w.addMachine("10.0.0.2")
	metal.SetSilent(true)
	w.dialer.Add("10.0.0.1", other.Machine)
	w.loseStatus()
	w.settle(m)
	g.Expect(other.Applied()).To(BeEmpty())
	g.Expect(conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.HostIdentityMismatchReason))
}
