package metal_test

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
	metalbackend "github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineIsReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	before, first := w.Machine("a"), metal.Applied()[0]
	admin := harness.Get(w, &corev1.Secret{}, credentials.AdminName("h1"))
	w.Wish("a", "")
	w.UntilWiping(m, metal)
	w.Round(m)

	machine, host := w.Machine("a"), w.Host("h1")
	g.Expect(conditions.IsTrue(machine, infrav1.ReprovisioningCondition)).To(BeTrue())
	g.Expect(conditions.IsFalse(machine, infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(machine.Annotations).To(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(conditions.IsFalse(host, infrav1.AvailableCondition)).To(BeTrue())
	g.Expect(conditions.Get(host, infrav1.AvailableCondition).Message).To(ContainSubstring("gets its configuration again"))
	g.Expect(host.Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))

	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Resets()[0].SystemLabels).To(Equal([]string{"EPHEMERAL", "STATE"}))
	g.Expect(metal.Applied()).To(HaveLen(2))
	g.Expect(metal.Applied()[1]).To(Equal(first))
	g.Expect(harness.Get(w, &corev1.Secret{}, credentials.AdminName("h1")).UID).To(Equal(admin.UID))

	w.Settle(m)
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
	w, _, metal := harness.Provisioned(t)
	before := w.Machine("a")
	w.Wish("a", "")
	effects := w.Life.Effects()
	w.Life.DieAt(killAt)
	died := w.LiveUntil(func() bool {
		return len(metal.Applied()) == 2 && w.Host("h1").Spec.Reprovision.ClusterName == "" && w.Host("h1").Status.State == infrav1.HostProvisioned &&
			w.Machine("a").Annotations[infrav1.ReprovisionAnnotation] == "" && conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)
	})
	effects = w.Life.Effects() - effects
	w.Life.Restart()
	w.Settle(w.Manager())
	harness.ExpectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Applied()).To(HaveLen(2))
	g.Expect(died).To(Equal(killAt > 0))

	return effects
}

func TestReprovisioningNeedsNoStatus(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	before := w.Machine("a")
	w.Wish("a", "")
	const every = 4
	for range harness.Rounds {
		for range every {
			w.Round(m)
		}
		g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		w.LoseStatus()
	}
	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Applied()).To(HaveLen(2))
}

func TestAMachineThatIsReprovisionedStaysProvisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Wish("a", "")
	w.Round(m)
	w.LoseStatus()
	w.Settle(m)
	machine := w.Machine("a")
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.Get(machine, infrav1.ReadyCondition).Reason).To(Equal(infrav1.WipingReason))
	g.Expect(w.Reprovisioning("a").Message).To(ContainSubstring("does not answer"))
}

func TestAMovedMachineGoesOnToBeReprovisioned(t *testing.T) {
	w, m, metal := harness.Provisioned(t)
	before := w.Machine("a")
	w.Wish("a", "")
	w.UntilWiping(m, metal)
	harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.UID = "another-uid" })
	w.LoseStatus()
	w.Settle(w.Manager())
	harness.ExpectReprovisioned(w, before, "a", "h1")
	NewWithT(t).Expect(w.Host("h1").Spec.ConsumerRef.UID).To(Equal("another-uid"))
}

// two is a world in which TalosMachines "a" and "b" run.
func two(t *testing.T) (*harness.Environment, *harness.Manager, map[string]*harness.BareMetal) {
	t.Helper()
	w := harness.New(t, append(append(harness.NewMachine(t, "a"), harness.NewMachine(t, "b")...), harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))...)
	metals := map[string]*harness.BareMetal{"h1": w.AddMachine("10.0.0.1"), "h2": w.AddMachine("10.0.0.2")}
	m := w.Manager()
	w.Settle(m)

	return w, m, map[string]*harness.BareMetal{"a": metals[w.Machine("a").Spec.HostRef.Name], "b": metals[w.Machine("b").Spec.HostRef.Name]}
}

func TestOneMachineOfAClusterIsReprovisionedAtATime(t *testing.T) {
	g := NewWithT(t)
	w, m, metals := two(t)
	w.Wish("a", "")
	metals["a"].SetSilent(true)
	w.Round(m)
	w.Wish("b", "true")
	w.Settle(m)

	refused := w.Reprovisioning("b")
	g.Expect(refused.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(refused.Reason).To(Equal(infrav1.ReprovisioningBlockedReason))
	g.Expect(refused.Message).To(And(ContainSubstring(w.Machine("a").Spec.HostRef.Name), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
	g.Expect(metals["b"].Resets()).To(BeEmpty())
	g.Expect(conditions.IsTrue(w.Machine("b"), infrav1.ReadyCondition)).To(BeTrue(), "nothing was done to it")
	g.Expect(w.Host(w.Machine("b").Spec.HostRef.Name).Spec.Release).To(BeZero())
	g.Expect(w.Recorded()).To(ContainElement(ContainSubstring(infrav1.ReprovisioningBlockedReason)))

	metals["a"].SetSilent(false)
	w.Wait(time.Minute)
	w.Settle(m)
	w.Wait(time.Minute)
	w.Settle(m)
	for _, metal := range metals {
		g.Expect(metal.Resets()).To(HaveLen(1))
		g.Expect(metal.Applied()).To(HaveLen(2))
	}
	harness.ExpectReprovisioned(w, w.Machine("b"), "b", w.Machine("b").Spec.HostRef.Name)
}

func TestTwoWishesInOneMomentAreCarriedOutOneAfterTheOther(t *testing.T) {
	g := NewWithT(t)
	w, m, metals := two(t)
	w.Wish("a", "")
	w.Wish("b", "")
	for range 4 * harness.Rounds {
		w.Round(m)
		underWay := 0
		for _, host := range w.Hosts() {
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
	w.Wish("a", "")
	w.Round(m)
	w.Wish("b", infrav1.ReprovisionDespiteOthers)
	w.Settle(m)
	w.Settle(m)
	g.Expect(metals["b"].Resets()).To(HaveLen(1))
	g.Expect(metals["b"].Applied()).To(HaveLen(2))
	g.Expect(metals["a"].Resets()).To(BeEmpty())
}

func TestWhatKeepsAMachineFromBeingReprovisioned(t *testing.T) {
	deleteForMove := func(o metav1.Object) {
		o.SetAnnotations(map[string]string{infrav1.DeleteForMoveAnnotation: "", infrav1.ReprovisionAnnotation: ""})
	}
	tests := map[string]struct {
		act    func(*harness.Environment)
		reason string
	}{
		"the machine configuration is missing": {func(w *harness.Environment) { w.Remove(harness.Get(w, &corev1.Secret{}, "a")) }, infrav1.ReprovisionDataMissingReason},
		"the annotation comes from a template": {func(w *harness.Environment) {
			harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Annotations = map[string]string{infrav1.ReprovisionAnnotation: ""} })
		}, infrav1.ReprovisionFromTemplateReason},
		"the TalosMachine was moved": {func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) })
		}, infrav1.ReprovisionGoingReason},
		"the host was moved": {func(w *harness.Environment) {
			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) })
		}, infrav1.ReprovisionGoingReason},
		"the host is being deleted": {func(w *harness.Environment) { w.Remove(w.Host("h1")) }, infrav1.ReprovisionGoingReason},
		"the Cluster is paused": {func(w *harness.Environment) {
			harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		}, infrav1.NotReprovisioningReason},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			tt.act(w)
			w.Wish("a", "")
			w.Settle(m)
			g.Expect(w.Reprovisioning("a").Reason).To(Equal(tt.reason))
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.Host("h1").Spec.Release).To(BeZero())
			g.Expect(w.Host("h1").Spec.Reprovision).To(BeZero())
			g.Expect(w.Machine("a").Annotations).To(HaveKey(infrav1.ReprovisionAnnotation))
		})
	}
}

func TestAWishThatIsTakenBackInTimeIsNotCarriedOut(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	data := harness.Get(w, &corev1.Secret{}, "a")
	w.Remove(data)
	w.Wish("a", "")
	w.Settle(m)
	harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { delete(m.Annotations, infrav1.ReprovisionAnnotation) })
	data.ResourceVersion = ""
	g.Expect(w.Client.Create(t.Context(), data)).To(Succeed())
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(w.Reprovisioning("a").Reason).To(Equal(infrav1.NotReprovisioningReason))
}

func TestAWishForAMachineWithoutConfigurationIsUsedUp(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", func(m *infrav1.TalosMachine) {
		m.Annotations = map[string]string{infrav1.ReprovisionAnnotation: ""}
	}), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(w.Machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
}

func TestAWishIsNotCarriedOutTwiceWhenTheCacheIsBehind(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.Wish("a", "")
	old := w.Machine("a")
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	m.Machines.Client = harness.Behind[*infrav1.TalosMachine]{Client: w.Life.Client(w.Client), Old: old}
	for range harness.Rounds {
		w.RoundWith(m, apierrors.IsConflict)
	}
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(w.Host("h1").Spec.Release).To(BeZero())
}

// TestAMachineIsNotLostWhenTheCacheOfHostsIsBehind: the cache has the TalosMachine that was
// written first, and not yet its host.
func TestAMachineIsNotLostWhenTheCacheOfHostsIsBehind(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	before, old := w.Machine("a"), w.Host("h1")
	metal.SetSilent(true)
	w.Wish("a", "")
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem))

	backend, ok := m.Machines.Metal.(*metalbackend.Backend)
	g.Expect(ok).To(BeTrue())
	cache := backend.Client
	backend.Client = harness.Behind[*infrav1.TalosHost]{Client: cache, Old: old}
	w.RoundWith(m, apierrors.IsConflict)
	backend.Client = cache
	g.Expect(w.Machine("a").Spec.HostRef.Progress).To(BeEmpty())
	metal.SetSilent(false)
	w.Wait(time.Minute)
	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
}

func TestAMachineBackInMaintenanceIsReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	before := w.Machine("a")
	metal.Boot(true, nil)
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	w.Wish("a", "")
	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(BeEmpty(), "another boot and no content are the proof")
	g.Expect(metal.Applied()).To(HaveLen(2))
}

func TestAMachineThatKeepsItsDataIsNotConfiguredAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	before := w.Machine("a")
	metal.KeepsData = true
	w.Wish("a", "")
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.NotWipedReason))
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.Reprovisioning("a").Reason).To(Equal(infrav1.WipingReason))
	g.Expect(w.Reprovisioning("a").Message).To(ContainSubstring(infrav1.HostRetryAnnotation))
	g.Expect(conditions.IsFalse(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())

	metal.KeepsData = false
	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	harness.ExpectReprovisioned(w, before, "a", "h1")
	g.Expect(metal.Resets()).To(HaveLen(2))
}

func TestAnotherMachineIsNotConfiguredInPlaceOfAWipedOne(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.Wish("a", "")
	w.UntilWiped(m)
	other := w.AddMachine("10.0.0.2")
	metal.SetSilent(true)
	w.Dialer.Add("10.0.0.1", other.Machine)
	w.LoseStatus()
	w.Settle(m)
	g.Expect(other.Applied()).To(BeEmpty())
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.HostIdentityMismatchReason))
}
