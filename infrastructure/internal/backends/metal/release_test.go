package metal_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func wishing(release string) func(*infrav1.TalosMachine) {
	return func(m *infrav1.TalosMachine) { m.Spec.Metal.Talos.Version = release }
}

func TestABlankMachineGetsTheReleaseThatIsWished(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", wishing("v1.13.10")), harness.NewHost("h1", "10.0.0.1"))...)
	w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	g.Expect(w.Machine("a").Status.TalosVersion).To(Equal("v1.13.10"))
	g.Expect(w.Machine("a").Status.InstallerImage).To(Equal("ghcr.io/siderolabs/installer:v1.13.10"))
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())
}

func TestAHostWithAnotherReleaseInstalledIsNotClaimed(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	harness.ExpectFree(w, "h1")

	for _, object := range harness.NewMachine(t, "b", wishing("v1.13.10")) {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	waiting := conditions.Get(w.Machine("b"), infrav1.AllocatedCondition)
	g.Expect(waiting.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(waiting.Message).To(Equal("No TalosHost of 1 can be claimed: 1 with another Talos release installed than wished; " +
		"Talos installs nothing over an installation: wish the release that is installed, or wipe the system disk with the boot loader: h1 has v1.13.9"))
	g.Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())
	g.Expect(metal.Applied()).To(HaveLen(1), "that of the first machine")

	// The way out: nothing is installed any more.
	metal.Update(func(state *talosfake.State) { state.Hardware.Installed = false })
	metal.Boot(true, nil)
	w.Settle(m)
	g.Expect(w.Machine("b").Status.TalosVersion).To(Equal("v1.13.10"))
	g.Expect(conditions.IsTrue(w.Machine("b"), infrav1.ReadyCondition)).To(BeTrue())
}

func TestAMachineThatRunsAnotherReleaseIsNotReady(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", wishing("v1.13.10")), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.Install.Image = "registry.example.com/installer:v1.13.8"
	}))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	machine := w.Machine("a")
	running := conditions.Get(machine, infrav1.RunningCondition)
	g.Expect(running.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(running.Reason).To(Equal(infrav1.WrongReleaseReason))
	g.Expect(running.Message).To(And(ContainSubstring("runs Talos v1.13.8"), ContainSubstring("v1.13.10 was asked for"), ContainSubstring("registry.example.com/installer:v1.13.8")))
	g.Expect(conditions.IsTrue(machine, infrav1.ReadyCondition)).To(BeFalse())
	g.Expect(machine.Status.TalosVersion).To(Equal("v1.13.8"))
	g.Expect(machine.Status.InstallerImage).To(Equal("registry.example.com/installer:v1.13.8"))
	g.Expect(w.Recorded()).To(ContainElement(ContainSubstring("NeedsAttention WrongRelease")))
	// It has joined all the same, and must not be configured a second time.
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(w.Host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))

	metal.Update(func(state *talosfake.State) { state.Version = "v1.13.10" })
	metal.BreakWatches()
	w.Settle(m)
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue(), "somebody has upgraded it")
}

func TestAMachineThatIsUpgradedByHandIsNotReadyEither(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", wishing("v1.13.9")), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	metal.Update(func(state *talosfake.State) { state.Version = "v1.13.11" })
	metal.BreakWatches()
	w.Settle(m)
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ReadyCondition).Reason).To(Equal(infrav1.WrongReleaseReason))
	g.Expect(w.Machine("a").Status.TalosVersion).To(Equal("v1.13.11"))
}

func TestNothingIsHandedOverToAMachineWithAnotherReleaseInstalled(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", wishing("v1.13.10")), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	// The disk is exchanged for one with an installation after the host was looked at.
	w.BeforeUpdate = func(client.Object) {
		metal.Update(func(state *talosfake.State) { state.Hardware.Installed = true })
	}
	w.Settle(m)
	applied := conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition)
	g.Expect(applied.Reason).To(Equal(infrav1.WrongReleaseReason))
	g.Expect(applied.Message).To(And(ContainSubstring("h1"), ContainSubstring("v1.13.9"), ContainSubstring("v1.13.10"), ContainSubstring("delete the Machine")))
	g.Expect(metal.Applied()).To(BeEmpty())
}

// TestASelectorIsJudgedAsItIsRendered: before contract v1.14 Talos counts NVMe disks
// as ssd, and takes one bound of the size.
func TestASelectorIsJudgedAsItIsRendered(t *testing.T) {
	for sentence, tt := range map[string]struct {
		selector infrav1.HostDiskSelector
		message  string
	}{
		"a kind that the rendered form reads otherwise": {
			selector: infrav1.HostDiskSelector{Type: infrav1.HostDiskSSD},
			message:  "with several disks that fit the install disk selector",
		},
		"two bounds that the rendered form cannot state": {
			selector: infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(1)), MaxSizeGiB: ptr.To(int32(100))},
			message:  "with an install disk selector that the machine configuration cannot state",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
				h.Spec.Install = infrav1.HostInstall{DiskSelector: tt.selector}
			}))...)
			metal := w.AddMachine("10.0.0.1")
			metal.Update(func(state *talosfake.State) {
				state.Hardware.Disks = []talosclient.Disk{
					{DevPath: "/dev/sda", SizeBytes: 20e9, Transport: "sata"}, {DevPath: "/dev/nvme0n1", SizeBytes: 900e9, Transport: "nvme"},
				}
			})
			w.Settle(w.Manager())
			g.Expect(w.Machine("a").Spec.HostRef).To(BeZero())
			waiting := conditions.Get(w.Machine("a"), infrav1.AllocatedCondition)
			g.Expect(waiting.Reason).To(Equal(infrav1.NoHostFitsReason))
			g.Expect(waiting.Message).To(And(ContainSubstring(tt.message), ContainSubstring("/dev/nvme0n1")))
		})
	}
}
