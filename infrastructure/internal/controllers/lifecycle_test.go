package controllers

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapsecrets "github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
)

func TestAMachineIsClaimedConfiguredAndFollowed(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.FailureDomain = "rack-1" }))...)
	metal := w.addMachine("10.0.0.1")
	w.settle(w.manager())

	machine, host := w.machine("a"), w.host("h1")
	g.Expect(machine.Spec.ProviderID).To(MatchRegexp(`^talos://[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`))
	g.Expect(machine.Spec.HostRef).To(Equal(infrav1.TalosMachineHostReference{Name: "h1", Claim: infrav1.HostClaimBound, Progress: infrav1.HostRan}))
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(machine.Status.FailureDomain).To(Equal("rack-1"))
	g.Expect(machine.Status.TalosVersion).To(Equal("v1.13.9"))
	g.Expect(machine.Status.Addresses).To(ConsistOf(HaveField("Address", "10.0.0.1"), HaveField("Address", "node-1")))
	g.Expect(conditions.IsTrue(machine, infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(conditions.IsUnknown(machine, infrav1.IdentityVerifiedCondition)).To(BeTrue())

	g.Expect(host.Status.State).To(Equal(infrav1.HostProvisioned))
	g.Expect(host.Spec.ConsumerRef.ProviderID).To(Equal(machine.Spec.ProviderID))
	g.Expect(host.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
	g.Expect(host.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
	g.Expect(host.Status.Hardware.TalosVersion).To(Equal("v1.13.9"))

	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(string(metal.Applied()[0])).To(And(
		ContainSubstring("provider-id: "+machine.Spec.ProviderID), ContainSubstring("disk: /dev/vda"),
		ContainSubstring("image: ghcr.io/siderolabs/installer:v1.13.9")))

	admin := get(w, &corev1.Secret{}, credentials.AdminName("h1"))
	_, _, err := bootstrapsecrets.ParseTalosconfig(admin.Data[infrav1.AdminSecretKey])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Finalizers).To(ContainElement(infrav1.TalosHostFinalizer))
}

func TestAHostIsWipedAndFreeAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	m := w.manager()
	w.settle(m)
	w.remove(w.machine("a"))
	w.settle(m)

	expectFree(w, "h1")
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Resets()[0].SystemLabels).To(Equal([]string{"EPHEMERAL", "STATE"}))
	g.Expect(w.host("h1").Spec.Quarantine.Since.IsZero()).To(BeTrue())
}

// expectFree reports whether nothing of a claim is left on a host.
func expectFree(w *world, name string) {
	w.t.Helper()
	g := NewWithT(w.t)
	host := w.host(name)
	g.Expect(host.Status.State).To(Equal(infrav1.HostAvailable))
	g.Expect(conditions.IsTrue(host, infrav1.AvailableCondition)).To(BeTrue())
	g.Expect(host.Spec.ConsumerRef).To(BeZero())
	g.Expect(host.Spec.Handover).To(BeZero())
	g.Expect(host.Spec.Release).To(BeZero())
	g.Expect(host.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
	g.Expect(w.exists(&corev1.Secret{}, credentials.AdminName(name))).To(BeFalse())
}

func TestNothingIsWrittenOnceAllIsWell(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"))...)
	w.addMachine("10.0.0.1")
	w.addMachine("10.0.0.2")
	m := w.manager()
	w.settle(m)
	versions := func() []string {
		var found []string
		for _, object := range []client.Object{w.machine("a"), w.host("h1"), w.host("h2"), &w.talosClusters()[0]} {
			found = append(found, object.GetResourceVersion())
		}
		return found
	}
	before := versions()
	w.settle(m)
	g.Expect(versions()).To(Equal(before))
}

// TestTheManagerDiesAnywhere kills the manager at each of its effects, one after
// the other, and expects the next one to go on.
func TestTheManagerDiesAnywhere(t *testing.T) {
	effects := liveAndDie(t, 0)
	NewWithT(t).Expect(effects).To(BeNumerically(">", 20))
	for killAt := 1; killAt <= effects; killAt++ {
		t.Run(fmt.Sprintf("at effect %d", killAt), func(t *testing.T) {
			t.Parallel()
			liveAndDie(t, killAt)
		})
	}
}

// liveAndDie provisions a machine and gives it back, and tells how many effects
// that took.
func liveAndDie(t *testing.T, killAt int) int {
	t.Helper()
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"))...)
	metals := []*bareMetal{w.addMachine("10.0.0.1"), w.addMachine("10.0.0.2")}
	w.life.DieAt(killAt)
	died := w.liveUntil(func() bool { return ptr.Deref(w.machine("a").Status.Initialization.Provisioned, false) })

	machine := w.machine("a")
	g.Expect(w.host(machine.Spec.HostRef.Name).Spec.ConsumerRef.ProviderID).To(Equal(machine.Spec.ProviderID))
	g.Expect(len(metals[0].Applied()) + len(metals[1].Applied())).To(Equal(1))

	w.remove(machine)
	died = w.liveUntil(func() bool {
		return !w.exists(&infrav1.TalosMachine{}, "a") &&
			w.host("h1").Status.State == infrav1.HostAvailable && w.host("h2").Status.State == infrav1.HostAvailable
	}) || died
	expectFree(w, "h1")
	expectFree(w, "h2")
	g.Expect(len(metals[0].Resets()) + len(metals[1].Resets())).To(Equal(1))
	g.Expect(died).To(Equal(killAt > 0))

	return w.life.Effects()
}

// liveUntil lets managers work, a new one whenever one has died, until all is
// done. An order to wipe that was lost with its manager is given again after a
// minute, so that may take some rounds.
func (w *world) liveUntil(done func() bool) (died bool) {
	w.t.Helper()
	m := w.manager()
	for range 4 * rounds {
		w.round(m)
		if w.life.IsOver() {
			died = true
			w.life.Restart()
			m = w.manager()
		}
		if done() {
			return died
		}
	}
	NewWithT(w.t).Expect(done()).To(BeTrue(), "nothing came of it")

	return died
}

func TestStatusIsNoMemory(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	m := w.manager()
	const every = 4 // A controller needs some passes to write a status that others read.
	loseStatus := func() {
		for range rounds {
			for range every {
				w.round(m)
			}
			w.loseStatus()
		}
	}
	loseStatus()
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))

	w.settle(m)
	g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))

	w.remove(w.machine("a"))
	loseStatus()
	w.settle(m)
	g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(metal.Resets()).To(HaveLen(1))
	expectFree(w, "h1")
}

// loseStatus empties every status, as a move does.
func (w *world) loseStatus() {
	w.t.Helper()
	g := NewWithT(w.t)
	for _, host := range w.hosts() {
		host.Status = infrav1.TalosHostStatus{}
		g.Expect(w.client.Status().Update(w.t.Context(), &host)).To(Succeed())
	}
	for _, machine := range w.machines() {
		machine.Status = infrav1.TalosMachineStatus{}
		g.Expect(w.client.Status().Update(w.t.Context(), &machine)).To(Succeed())
	}
}
