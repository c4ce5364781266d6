package controllers_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// leftover is a partition that nobody has told the machine about.
var leftover = talosclient.Volume{
	Discovered: true, ID: "u-old", Type: talosclient.VolumePartition, Location: "/dev/vda7", ParentLocation: "/dev/vda", PartitionIndex: 7, UUID: "old",
}

func released(w *harness.Environment) *metav1.Condition {
	return conditions.Get(w.Host("h1"), infrav1.ReleasedCondition)
}

func TestAnOrderToWipeThatTalosRefusesIsShown(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	wipes := metal.OnReset
	metal.OnReset = func(*talosfake.Machine, talosclient.ResetOptions) error {
		return fmt.Errorf("resetting the node: %w: volume %q is not located", talosclient.ErrRefused, "u-data")
	}
	w.Remove(w.Machine("a"))
	for range 3 {
		w.Round(m)
		w.Round(m)
	}
	g.Expect(metal.Resets()).NotTo(BeEmpty())
	g.Expect(released(w).Reason).To(Equal(infrav1.ReleaseFailedReason))
	g.Expect(released(w).Message).To(And(ContainSubstring(`volume "u-data" is not located`), ContainSubstring("told again")))
	deleting := conditions.Get(w.Machine("a"), infrav1.DeletingCondition)
	g.Expect(deleting.Message).To(ContainSubstring(`volume "u-data" is not located`))
	g.Expect(w.Recorded()).To(ContainElement(And(HavePrefix("Warning ResetFailed "), ContainSubstring("u-data"))))

	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(released(w).Reason).To(Equal(infrav1.ReleaseFailedReason))
	g.Expect(len(metal.Resets())).To(BeNumerically(">", 1), "it is told again")

	metal.OnReset = wipes
	w.Wait(time.Minute)
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

// TestAnOrderThatIsNotConfirmedIsNoRefusal: the machine may be wiping itself.
func TestAnOrderThatIsNotConfirmedIsNoRefusal(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Fail("Reset", talosfake.ErrUnreachable)
	w.Remove(w.Machine("a"))
	for range 4 {
		w.Round(m)
	}
	g.Expect(released(w).Reason).To(Equal(infrav1.ResettingReason))
}

func TestWhatTalosDoesNotWipeInAResetIsWipedInMaintenanceMode(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Leaves(leftover)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Wipes()).To(Equal([][]string{{"/dev/vda7"}}))
	harness.ExpectFree(w, "h1")
	g.Expect(w.Recorded()).To(ContainElement(And(HavePrefix("Normal Reset "), ContainSubstring("/dev/vda7"))))
}

func TestAMachineThatDoesNotWipeAPartitionIsNeverAvailable(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Leaves(leftover)
	metal.OnWipe = func(*talosfake.Machine, []string) error {
		return fmt.Errorf("wiping devices: %w: block device \"vda7\" is mounted or in use", talosclient.ErrRefused)
	}
	w.Remove(w.Machine("a"))
	w.Settle(m)
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(released(w).Reason).To(Equal(infrav1.ReleaseFailedReason))
	g.Expect(released(w).Message).To(ContainSubstring("mounted or in use"))
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())

	metal.OnWipe = nil
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

// TestAPersonHasAPartitionWipedThatMayBeTheirs: a partition of machine.disks has no
// label, and may have been there before the cluster.
func TestAPersonHasAPartitionWipedThatMayBeTheirs(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Update(func(s *talosfake.State) {
		s.Volumes = append(s.Volumes, talosclient.Volume{
			ID: "/dev/vda-7", Type: talosclient.VolumePartition, Phase: "ready", Location: "/dev/vda7", ParentLocation: "/dev/vda", PartitionIndex: 7, UUID: "old",
		})
	})
	unlabelled := leftover
	unlabelled.ID = ""
	metal.Leaves(unlabelled)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()[0].SystemLabels).To(Equal([]string{"EPHEMERAL", "STATE"}))
	g.Expect(w.Host("h1").Spec.Release.Volumes).To(Equal([]string{"old"}))
	g.Expect(released(w).Reason).To(Equal(infrav1.NotWipedReason))
	g.Expect(released(w).Message).To(And(ContainSubstring("/dev/vda7"), ContainSubstring(infrav1.HostRetryAnnotation)))
	g.Expect(metal.Wipes()).To(BeEmpty())

	w.LoseStatus()
	w.Settle(m)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError), "what is looked for stands in the spec")

	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	g.Expect(metal.Wipes()).To(HaveLen(1))
	g.Expect(w.Host("h1").Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
	harness.ExpectFree(w, "h1")
}

// TestAHostThatIsOffAfterItsResetIsNeverAvailable: what it would tell is the proof.
func TestAHostThatIsOffAfterItsResetIsNeverAvailable(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	wipes := metal.OnReset
	metal.OnReset = func(machine *talosfake.Machine, options talosclient.ResetOptions) error {
		defer metal.SetSilent(true)
		return wipes(machine, options)
	}
	w.Remove(w.Machine("a"))
	w.Settle(m)
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(released(w).Reason).To(Equal(infrav1.ResettingReason))
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	metal.SetSilent(false)
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

// TestAWholeDiskIsToldToBeWipedAsADisk: where the reset fails before it comes to that
// disk, it is wiped in maintenance mode.
func TestAWholeDiskIsToldToBeWipedAsADisk(t *testing.T) {
	for name, isLeft := range map[string]bool{"by the reset": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			content := talosclient.Volume{Discovered: true, Type: talosclient.VolumeDisk, Location: "/dev/vdb", Filesystem: "xfs", UUID: "fs"}
			metal.Update(func(s *talosfake.State) {
				s.Hardware.Disks = append(s.Hardware.Disks, talosclient.Disk{DevPath: "/dev/vdb"})
				s.Volumes = append(s.Volumes, talosclient.Volume{ID: "u-big", Type: talosclient.VolumeDisk, Phase: "ready", Location: "/dev/vdb"}, content)
			})
			if isLeft {
				metal.Leaves(content)
			}
			w.Remove(w.Machine("a"))
			w.Settle(m)
			g.Expect(metal.Resets()).To(Equal([]talosclient.ResetOptions{{SystemLabels: []string{"EPHEMERAL", "STATE"}, UserDisks: []string{"/dev/vdb"}}}))
			g.Expect(metal.Wipes()).To(HaveLen(map[bool]int{true: 1}[isLeft]))
			harness.ExpectFree(w, "h1")
		})
	}
}

// TestAMachineWithoutTheDiskOfItsSystemIsNotProvenWiped: the disk may come back with the
// keys and the data of etcd.
func TestAMachineWithoutTheDiskOfItsSystemIsNotProvenWiped(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Boot(true, nil)
	metal.Update(func(s *talosfake.State) { s.Volumes = nil })
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse(), "it waits for nothing")
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(released(w).Reason).To(Equal(infrav1.NotWipedReason))
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.Exists(&corev1.Secret{}, credentials.AdminName("h1"))).To(BeTrue(), "it is wiped with it when the disk comes back")

	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	harness.ExpectFree(w, "h1")
	g.Expect(w.Host("h1").Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
}
