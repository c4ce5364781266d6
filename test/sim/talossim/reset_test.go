package talossim_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// dataDisks are the disks of a machine with room for volumes: a writable and a
// read-only one beside that of the system.
func dataDisks() []talossim.Disk {
	const size = 100 << 30
	return []talossim.Disk{
		{Path: "/dev/vda", SizeBytes: size, Model: "talossim"},
		{Path: "/dev/vdb", SizeBytes: size, Model: "talossim"},
		{Path: "/dev/vdc", SizeBytes: size, Model: "talossim", ReadOnly: true},
		{Path: "/dev/vdd", SizeBytes: size, Model: "talossim"},
	}
}

const volumeDocuments = `apiVersion: v1alpha1
kind: UserVolumeConfig
name: data
provisioning: {diskSelector: {match: disk.dev_path == '/dev/vdb'}, minSize: 1GiB}
---
apiVersion: v1alpha1
kind: RawVolumeConfig
name: raw
provisioning: {diskSelector: {match: disk.dev_path == '/dev/vdb'}, minSize: 1GiB}
---
apiVersion: v1alpha1
kind: SwapVolumeConfig
name: swap
provisioning: {diskSelector: {match: system_disk}, minSize: 1GiB}
---
apiVersion: v1alpha1
kind: UserVolumeConfig
name: whole
volumeType: disk
provisioning: {diskSelector: {match: disk.dev_path == '/dev/vdd'}}
`

// withVolumes is a control plane node with volumes of each kind.
func withVolumes(w *world) *talossim.Machine {
	w.t.Helper()
	m := w.addWith(dataDisks()...)
	m.AddPartition(talossim.Partition{Disk: "/dev/vdb", Index: 1, Label: "u-old", Filesystem: "ext4"})
	m.PowerCycle()
	w.Eventually(m.Stage).Should(Equal(talosclient.StageMaintenance))
	w.Expect(w.maintenance(m).ApplyConfiguration(w.t.Context(), w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) {
		overlay.StrategicPatches = []string{volumeDocuments}
	}))).To(Succeed())
	w.Eventually(func() error { return w.admin(m).Bootstrap(w.t.Context()) }).Should(Succeed())
	w.ready(m)
	return m
}

func TestVolumesOfAConfigurationLieWhereTheySay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	managed := func(id, kind, location, parent string, index int) OmegaMatcher {
		return And(HaveField("Discovered", false), HaveField("ID", id), HaveField("Type", kind), HaveField("Phase", "ready"),
			HaveField("Location", location), HaveField("ParentLocation", parent), HaveField("PartitionIndex", index))
	}
	w.Expect(w.admin(m).Volumes(t.Context())).To(ContainElements(
		managed("STATE", "partition", "/dev/vda3", "/dev/vda", 3),
		managed("u-data", "partition", "/dev/vdb2", "/dev/vdb", 2),
		managed("r-raw", "partition", "/dev/vdb3", "/dev/vdb", 3),
		managed("s-swap", "partition", "/dev/vda5", "/dev/vda", 5),
		managed("u-whole", "disk", "/dev/vdd", "", 0),
		And(HaveField("Discovered", true), HaveField("ID", "u-old"), HaveField("Location", "/dev/vdb1"), HaveField("ParentLocation", "/dev/vdb")),
	))
	w.Expect(w.admin(m).Volumes(t.Context())).NotTo(ContainElement(And(HaveField("Discovered", false), HaveField("ID", "u-old"))),
		"no document of the configuration names it")
}

func TestAResetThatTalosRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	admin := w.admin(m)
	for words, options := range map[string]talosclient.ResetOptions{
		`failed to get volume status with label "u-old"`: {SystemLabels: []string{"STATE", "u-old"}},
		"device /dev/vde wasn't found":                   {UserDisks: []string{"/dev/vde"}},
		"device /dev/vdc is readonly":                    {UserDisks: []string{"/dev/vdb", "/dev/vdc"}},
		"device /dev/vda is the system disk":             {UserDisks: []string{"/dev/vda"}},
	} {
		w.Expect(admin.Reset(t.Context(), options)).To(And(MatchError(talosclient.ErrRefused), MatchError(ContainSubstring(words))))
	}
	raw := w.raw(m, secrets.RoleAdmin)
	for mode, request := range map[machine.ResetRequest_WipeMode]*machine.ResetRequest{
		machine.ResetRequest_SYSTEM_DISK: {UserDisksToWipe: []string{"/dev/vdb"}},
		machine.ResetRequest_USER_DISKS:  {SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "STATE", Wipe: true}}},
	} {
		request.Mode = mode
		_, err := raw.MachineClient.Reset(t.Context(), request)
		w.Expect(err).To(MatchError(ContainSubstring("wipe mode " + mode.String() + " doesn't support")))
	}
	w.Expect(m.Resets()).To(BeEmpty())
	w.ready(m)
}

func TestAResetTakesWhatIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{
		SystemLabels: []string{"EPHEMERAL", "r-raw", "s-swap", "STATE"}, UserDisks: []string{"/dev/vdd"},
	})).To(Succeed())
	node := w.maintenance(m)
	w.Expect(m.Resets()).To(ConsistOf(And(HaveField("Reboot", true), HaveField("Graceful", false), HaveField("Mode", machine.ResetRequest_ALL))))
	w.Expect(m.Partitions()).To(ConsistOf(HaveField("Label", "u-old"), HaveField("Label", "u-data")))
	w.Expect(m.Wiped()).To(MatchError(ContainSubstring("u-old")))

	// Without a configuration everybody may wipe what Talos does not use.
	w.Expect(node.WipeDevices(t.Context(), []string{"/dev/vdz1"})).To(And(MatchError(talosclient.ErrRefused), MatchError(ContainSubstring("not found"))))
	w.Expect(node.WipeDevices(t.Context(), []string{"/dev/vdb1", "/dev/vda2"})).To(And(MatchError(talosclient.ErrRefused), MatchError(ContainSubstring(`in use by volume "META"`))))
	w.Expect(m.Partitions()).To(HaveLen(2), "all of it is refused")
	w.Expect(node.WipeDevices(t.Context(), []string{"/dev/vdb1", "/dev/vdb2"})).To(Succeed())
	w.Expect(m.Wiped()).To(Succeed())
	w.Expect(node.Volumes(t.Context())).NotTo(ContainElement(HaveField("ParentLocation", "/dev/vdb")))
}

func TestAConfiguredMachineWipesPartitionsForAnAdministratorAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	w.Expect(w.secure(m, secrets.RoleReader).WipeDevices(t.Context(), []string{"/dev/vdb1"})).To(MatchError(ContainSubstring("not authorized")))
	w.Expect(w.admin(m).WipeDevices(t.Context(), []string{"/dev/vdb2"})).To(MatchError(ContainSubstring(`in use by volume "u-data"`)))
	w.Expect(w.admin(m).WipeDevices(t.Context(), []string{"/dev/vdb1"})).To(Succeed())
	w.Expect(m.Partitions()).NotTo(ContainElement(HaveField("Label", "u-old")))
}

func TestAResetOfTheSystemDiskLeavesOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{UserDisks: []string{"/dev/vdd"}})).To(Succeed())
	w.maintenance(m)
	w.Expect(m.Partitions()).To(ConsistOf(HaveField("Label", "u-old"), HaveField("Label", "u-data"), HaveField("Label", "r-raw")))
}

// TestAWholeDiskNamedAsAPartitionEndsAReset: its partition cannot be deleted, and the
// machine boots without having come to the whole disks.
func TestAWholeDiskNamedAsAPartitionEndsAReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{
		SystemLabels: []string{"EPHEMERAL", "u-whole", "STATE"}, UserDisks: []string{"/dev/vdb"},
	})).To(Succeed())
	w.maintenance(m)
	w.Expect(m.Partitions()).To(And(ContainElement(HaveField("Disk", "/dev/vdb")), Not(ContainElement(HaveField("Disk", "/dev/vdd")))))
}

// TestAResetThatCannotDeleteAPartition has wiped all partitions, and leaves whole disks,
// which can be wiped once there is no configuration.
func TestAResetThatCannotDeleteAPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := withVolumes(w)
	m.Break(talossim.Faults{BusyPartition: true})
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{
		SystemLabels: []string{"EPHEMERAL", "r-raw", "s-swap", "u-data", "STATE"}, UserDisks: []string{"/dev/vdd"},
	})).To(Succeed())
	node := w.maintenance(m)
	w.Expect(m.Partitions()).To(ConsistOf(HaveField("Label", "u-old"), HaveField("Disk", "/dev/vdd")))
	w.Expect(node.WipeDevices(t.Context(), []string{"/dev/vdd"})).To(Succeed())
	w.Expect(node.Volumes(t.Context())).NotTo(ContainElement(HaveField("Location", "/dev/vdd")))
}

func TestAResetWithoutARebootPowersOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.bootstrapped()
	_, err := w.raw(m, secrets.RoleAdmin).MachineClient.Reset(t.Context(), &machine.ResetRequest{
		SystemPartitionsToWipe: []*machine.ResetPartitionSpec{{Label: "EPHEMERAL", Wipe: true}, {Label: "STATE", Wipe: true}},
	})
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(m.IsOff).Should(BeTrue())
	boots := m.Boots()
	w.Consistently(m.Boots).Should(Equal(boots))
	m.PowerCycle()
	w.maintenance(m)
	w.Expect(m.Wiped()).To(Succeed())
}

// TestADiskWithOtherContentIsNoVolume: Talos takes the disk that a document selects,
// and leaves what is on it.
func TestADiskWithOtherContentIsNoVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.addWith(dataDisks()...)
	theirs := talossim.Partition{Disk: "/dev/vdd", Index: 1, Label: "theirs", Filesystem: "ext4"}
	m.AddPartition(theirs)
	w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) {
		overlay.StrategicPatches = []string{volumeDocuments}
	}))).To(Succeed())
	w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(Succeed())
	w.ready(m)
	w.Expect(m.Partitions()).To(ContainElement(theirs))
	w.Expect(w.admin(m).Volumes(t.Context())).To(ContainElement(And(HaveField("ID", "u-whole"), HaveField("Phase", "failed"), HaveField("Location", "/dev/vdd"))))
}

// TestVolumesAreToldOnceAllAreMade: until then they are on the disks, and cannot be wiped.
func TestVolumesAreToldOnceAllAreMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal, Delays: talossim.Delays{Volumes: time.Hour}})
	m := w.addWith(dataDisks()...)
	w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) {
		overlay.StrategicPatches = []string{volumeDocuments}
	}))).To(Succeed())
	w.Eventually(m.Partitions).Should(ContainElement(HaveField("Label", "u-data")))
	w.Eventually(func(g Gomega) {
		g.Expect(w.admin(m).Volumes(t.Context())).To(ContainElements(
			And(HaveField("Discovered", false), HaveField("ID", "u-data"), HaveField("Phase", "waiting"), HaveField("Location", "")),
			And(HaveField("Discovered", true), HaveField("ID", "u-data")),
		))
	}).Should(Succeed())
	w.Expect(m.Stage()).To(Equal(talosclient.StageBooting))
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{SystemLabels: []string{"u-data"}})).To(MatchError(ContainSubstring("not located")))
}
