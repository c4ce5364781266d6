package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestMachinesWithPartitionsOfAnEarlierLifeAreReleased: Talos refuses an order to wipe a
// volume that its configuration does not know, and takes none in maintenance mode but
// for single devices. A partition that somebody else has made stays. Of a reset that
// fails once partitions are wiped the whole disks are left, and wiped there, too. The
// machines still make their volumes when they are given back, and tell of none.
func TestMachinesWithPartitionsOfAnEarlierLifeAreReleased(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const namespace = "leftovers"
	const size = 100 << 30
	machines := newFleet(t, simfleet.Options{
		Personality: talossim.Metal, Delays: talossim.Delays{Volumes: 10 * time.Second},
		Disks: []talossim.Disk{{Path: "/dev/vda", SizeBytes: size}, {Path: "/dev/vdb", SizeBytes: size}},
	})
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	hosts := addHosts(t, machines, namespace, 2)
	theirs := talossim.Partition{Disk: "/dev/vda", Index: 9, Label: "theirs", Filesystem: "ext4"}
	for _, host := range hosts {
		machine := machines.Machine(host)
		machine.AddPartition(talossim.Partition{Disk: "/dev/vda", Index: 7, Label: "u-old", Filesystem: "xfs"})
		machine.AddPartition(talossim.Partition{Disk: "/dev/vda", Index: 8, Label: "r-old"})
		machine.AddPartition(theirs)
		machine.Break(talossim.Faults{BusyPartition: true})
		machine.PowerCycle()
	}
	expectStates(t, namespace, infrav1.HostAvailable, 2)
	const whole = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: whole\nvolumeType: disk\nprovisioning: {diskSelector: {match: disk.dev_path == '/dev/vdb'}}\n"
	createCluster(t, machines, namespace, "leftovers", func(object *unstructured.Unstructured) {
		if path, has := map[string][]string{
			"TalosControlPlane": {"spec", "talosConfigSpec"}, "TalosConfigTemplate": {"spec", "template", "spec"},
		}[object.GetKind()]; has {
			g.Expect(unstructured.SetNestedStringSlice(object.Object, []string{whole}, append(path, "strategicPatches")...)).To(Succeed())
		}
	})
	g.Eventually(func(g Gomega) {
		found := talosMachines(g, ctx, namespace)
		g.Expect(found).To(HaveLen(2))
		for _, machine := range found {
			g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		}
	}).WithTimeout(timeout).Should(Succeed())
	for _, host := range hosts {
		g.Expect(machines.Machine(host).Partitions()).To(ContainElement(HaveField("Disk", "/dev/vdb")))
	}

	deleteClusters(t, namespace, "leftovers")
	expectStates(t, namespace, infrav1.HostAvailable, 2)
	for _, host := range hosts {
		machine := machines.Machine(host)
		g.Expect(machine.Wiped()).To(Succeed())
		g.Expect(machine.Partitions()).To(ConsistOf(theirs))
		g.Expect(machine.Resets()).To(ConsistOf(And(
			HaveField("Reboot", true), HaveField("Graceful", false), HaveField("UserDisksToWipe", HaveExactElements("/dev/vdb")),
			HaveField("SystemPartitionsToWipe", HaveExactElements(
				And(HaveField("Label", "EPHEMERAL"), HaveField("Wipe", true)), And(HaveField("Label", "STATE"), HaveField("Wipe", true)),
			)),
		)))
	}
}
