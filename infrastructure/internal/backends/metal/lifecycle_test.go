package metal_test

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
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineIsClaimedConfiguredAndFollowed(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.FailureDomain = "rack-1" }))...)
	metal := w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())

	machine, host := w.Machine("a"), w.Host("h1")
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

	admin := harness.Get(w, &corev1.Secret{}, credentials.AdminName("h1"))
	_, _, err := bootstrapsecrets.ParseTalosconfig(admin.Data[infrav1.AdminSecretKey])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(admin.Finalizers).To(ContainElement(infrav1.TalosHostFinalizer))
}

func TestAHostIsWipedAndFreeAgain(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)

	harness.ExpectFree(w, "h1")
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Resets()[0].SystemLabels).To(Equal([]string{"EPHEMERAL", "STATE"}))
	g.Expect(w.Host("h1").Spec.Quarantine.Since.IsZero()).To(BeTrue())
}

func TestNothingIsWrittenOnceAllIsWell(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))...)
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.2")
	m := w.Manager()
	w.Settle(m)
	versions := func() []string {
		var found []string
		for _, object := range []client.Object{w.Machine("a"), w.Host("h1"), w.Host("h2"), &w.TalosClusters()[0]} {
			found = append(found, object.GetResourceVersion())
		}
		return found
	}
	before := versions()
	w.Settle(m)
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
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))...)
	metals := []*harness.BareMetal{w.AddMachine("10.0.0.1"), w.AddMachine("10.0.0.2")}
	w.Life.DieAt(killAt)
	died := w.LiveUntil(func() bool { return ptr.Deref(w.Machine("a").Status.Initialization.Provisioned, false) })

	machine := w.Machine("a")
	g.Expect(w.Host(machine.Spec.HostRef.Name).Spec.ConsumerRef.ProviderID).To(Equal(machine.Spec.ProviderID))
	g.Expect(len(metals[0].Applied()) + len(metals[1].Applied())).To(Equal(1))

	w.Remove(machine)
	died = w.LiveUntil(func() bool {
		return !w.Exists(&infrav1.TalosMachine{}, "a") &&
			w.Host("h1").Status.State == infrav1.HostAvailable && w.Host("h2").Status.State == infrav1.HostAvailable
	}) || died
	harness.ExpectFree(w, "h1")
	harness.ExpectFree(w, "h2")
	g.Expect(len(metals[0].Resets()) + len(metals[1].Resets())).To(Equal(1))
	g.Expect(died).To(Equal(killAt > 0))

	return w.Life.Effects()
}

func TestStatusIsNoMemory(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	const every = 4 // A controller needs some passes to write a status that others read.
	loseStatus := func() {
		for range harness.Rounds {
			for range every {
				w.Round(m)
			}
			w.LoseStatus()
		}
	}
	loseStatus()
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.Host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))

	w.Settle(m)
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))

	w.Remove(w.Machine("a"))
	loseStatus()
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
}
