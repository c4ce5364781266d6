package wipe

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// managed is a partition that Talos manages, and found the same on its disk.
func managed(id, location, parent string, index int, uuid string) []talosclient.Volume {
	return []talosclient.Volume{
		{ID: id, Type: talosclient.VolumePartition, Phase: "ready", Location: location, ParentLocation: parent, PartitionIndex: index, UUID: uuid, Filesystem: "xfs"},
		found(id, location, parent, index, uuid),
	}
}

// found is a partition that is on a disk.
func found(label, location, parent string, index int, uuid string) talosclient.Volume {
	return talosclient.Volume{
		Discovered: true, ID: label, Type: talosclient.VolumePartition, Location: location, ParentLocation: parent, PartitionIndex: index, UUID: uuid,
	}
}

// wholeDisk is a volume with a disk to itself.
func wholeDisk(id, disk, phase string) []talosclient.Volume {
	return []talosclient.Volume{
		{ID: id, Type: talosclient.VolumeDisk, Phase: phase, Location: disk},
		content(disk, "xfs", "fs-of-"+disk),
	}
}

// content is what lies on a whole disk.
func content(disk, filesystem, uuid string) talosclient.Volume {
	return talosclient.Volume{Discovered: true, Type: talosclient.VolumeDisk, Location: disk, Filesystem: filesystem, UUID: uuid}
}

func volumes(lists ...[]talosclient.Volume) []talosclient.Volume {
	var all []talosclient.Volume
	for _, list := range lists {
		all = append(all, list...)
	}

	return all
}

var (
	system = volumes(
		[]talosclient.Volume{found("EFI", "/dev/vda1", "/dev/vda", 1, "efi"), content("/dev/vda", "gpt", "table")},
		managed("META", "/dev/vda4", "/dev/vda", 4, "meta"),
		managed("STATE", "/dev/vda5", "/dev/vda", 5, "state"),
		managed("EPHEMERAL", "/dev/vda6", "/dev/vda", 6, "ephemeral"),
		[]talosclient.Volume{{ID: "/var/log", Type: "directory", Phase: "ready"}, {ID: "ETCD", Type: "directory", Phase: "ready"}},
	)
	disks = []talosclient.Disk{
		{DevPath: "/dev/vda"}, {DevPath: "/dev/vdb"}, {DevPath: "/dev/vdc"}, {DevPath: "/dev/vdr", ReadOnly: true}, {DevPath: "/dev/sr0", CDROM: true},
	}
)

func TestWhatAResetIsToldToWipe(t *testing.T) {
	tests := map[string]struct {
		policy  infrav1.ReleasePolicy
		volumes []talosclient.Volume
		labels  []string
		disks   []string
	}{
		"STATE goes last": {
			volumes: system, labels: []string{"EPHEMERAL", "STATE"},
		},
		"partitions of the volumes that Talos has made": {
			volumes: volumes(system, managed("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), managed("r-b", "/dev/vdb2", "/dev/vdb", 2, "b"), managed("s-c", "/dev/vda7", "/dev/vda", 7, "c")),
			labels:  []string{"EPHEMERAL", "r-b", "s-c", "u-a", "STATE"},
		},
		"a volume that is nowhere is not named: Talos would refuse everything": {
			volumes: volumes(system, []talosclient.Volume{{ID: "u-a", Type: talosclient.VolumePartition, Phase: "waiting"}}), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a partition of an earlier life is not named: Talos would refuse everything": {
			volumes: volumes(system, []talosclient.Volume{found("u-old", "/dev/vdb1", "/dev/vdb", 1, "old")}), labels: []string{"EPHEMERAL", "STATE"},
		},
		"what was there before, or lies elsewhere, is nobody's to wipe": {
			volumes: volumes(system, managed("e-theirs", "/dev/vdb1", "/dev/vdb", 1, "x"), managed("x-far", "/dev/vdc1", "/dev/vdc", 1, "y")), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a whole disk is named as a disk: as a label it would stop the reset half-way": {
			volumes: volumes(system, wholeDisk("u-big", "/dev/vdb", "ready")),
			labels:  []string{"EPHEMERAL", "STATE"}, disks: []string{"/dev/vdb"},
		},
		"a whole disk with other content, which Talos leaves alone, is left alone": {
			volumes: volumes(system, wholeDisk("u-big", "/dev/vdb", "failed")), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a whole disk with a partition on it is left alone": {
			volumes: volumes(system, wholeDisk("u-big", "/dev/vdb", "ready"), []talosclient.Volume{found("", "/dev/vdb1", "/dev/vdb", 1, "x")}),
			labels:  []string{"EPHEMERAL", "STATE"},
		},
		"a whole disk with a file system of somebody else is left alone": {
			volumes: volumes(system, []talosclient.Volume{content("/dev/vdb", "ext4", "theirs")}), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a whole disk that is read-only is not named: Talos would refuse everything": {
			volumes: volumes(system, wholeDisk("u-big", "/dev/vdr", "ready")), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a whole disk that Talos does not list is not named: it would refuse everything": {
			volumes: volumes(system, wholeDisk("u-big", "/dev/mapper/x", "ready")), labels: []string{"EPHEMERAL", "STATE"},
		},
		"a partition of machine.disks may have been there before, and is looked for after the reset": {
			volumes: volumes(system, []talosclient.Volume{{
				ID: "/dev/vdb-1", Type: talosclient.VolumePartition, Phase: "ready", Location: "/dev/vdb1", ParentLocation: "/dev/vdb", PartitionIndex: 1, UUID: "md",
			}}),
			labels: []string{"EPHEMERAL", "STATE"},
		},
		"a partition of etcd's own (Talos 1.14)": {
			volumes: volumes(system, managed("ETCD", "/dev/vdb1", "/dev/vdb", 1, "etcd")),
			labels:  []string{"EPHEMERAL", "ETCD", "STATE"},
		},
		"WipeAll leaves the system disk to Talos": {
			policy: infrav1.ReleaseWipeAll, volumes: system,
		},
		"WipeAll takes the other disks of volumes": {
			policy: infrav1.ReleaseWipeAll,
			volumes: volumes(system, managed("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), managed("r-b", "/dev/vdb2", "/dev/vdb", 2, "b"),
				[]talosclient.Volume{found("s-old", "/dev/vdb3", "/dev/vdb", 3, "old"), content("/dev/vdb", "gpt", "t")}, wholeDisk("u-big", "/dev/vdc", "ready")),
			disks: []string{"/dev/vdb", "/dev/vdc"},
		},
		"WipeAll leaves a disk with a partition of somebody else": {
			policy:  infrav1.ReleaseWipeAll,
			volumes: volumes(system, managed("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), []talosclient.Volume{found("", "/dev/vdb2", "/dev/vdb", 2, "x")}),
		},
		"WipeAll leaves a whole disk with a file system of somebody else": {
			policy: infrav1.ReleaseWipeAll, volumes: volumes(system, []talosclient.Volume{content("/dev/vdb", "ext4", "theirs")}),
		},
		"WipeAll leaves a disk with a volume that was there before": {
			policy:  infrav1.ReleaseWipeAll,
			volumes: volumes(system, managed("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), managed("e-theirs", "/dev/vdb2", "/dev/vdb", 2, "x")),
		},
		"WipeAll does not name the system disk for the volumes on it: Talos would refuse everything": {
			policy: infrav1.ReleaseWipeAll, volumes: volumes(system, managed("s-c", "/dev/vda7", "/dev/vda", 7, "c")),
		},
		"WipeAll leaves the disk of EPHEMERAL to Talos, which wipes it as a whole": {
			policy: infrav1.ReleaseWipeAll, volumes: volumes(managed("EPHEMERAL", "/dev/vdb1", "/dev/vdb", 1, "e"), managed("u-a", "/dev/vdb2", "/dev/vdb", 2, "a")),
		},
		"WipeAll leaves a disk of which nothing was found": {
			policy: infrav1.ReleaseWipeAll, volumes: volumes(system, managed("u-a", "/dev/vdb1", "/dev/vdb", 1, "a")[:1]),
		},
		"WipeAll takes a disk of machine.disks": {
			policy: infrav1.ReleaseWipeAll,
			volumes: volumes(system, []talosclient.Volume{
				{ID: "/dev/vdb-1", Type: talosclient.VolumePartition, Phase: "ready", Location: "/dev/vdb1", ParentLocation: "/dev/vdb", PartitionIndex: 1, UUID: "md"},
				found("", "/dev/vdb1", "/dev/vdb", 1, "md"),
			}),
			disks: []string{"/dev/vdb"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if tt.policy == "" {
				tt.policy = infrav1.ReleaseWipeSystem
			}
			decision := Decide(Facts{
				Release: infrav1.HostRelease{Policy: tt.policy, RequestedAt: ago(time.Second)}, Outcome: probe.Configured, Stage: talosclient.StageRunning,
				VolumesKnown: true, Volumes: tt.volumes, Disks: disks, Now: now,
			})
			g.Expect(decision.Action).To(Equal(Reset))
			g.Expect(decision.Labels).To(Equal(tt.labels))
			g.Expect(decision.Disks).To(Equal(tt.disks))
		})
	}
}

func TestWhatIsLeftInMaintenanceMode(t *testing.T) {
	told := infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(time.Hour), ResetAt: ago(time.Hour), Volumes: []string{"recorded"}}
	blank := []talosclient.Volume{found("EFI", "/dev/vda1", "/dev/vda", 1, "efi"), content("/dev/vda", "gpt", "table")}
	blank = append(blank, managed("META", "/dev/vda4", "/dev/vda", 4, "meta")...)
	blank = append(blank, talosclient.Volume{ID: "STATE", Type: talosclient.VolumePartition, Phase: "missing", Filesystem: "none"}, found("theirs", "/dev/vdb9", "/dev/vdb", 9, "x"))
	old := found("u-old", "/dev/vda7", "/dev/vda", 7, "old")
	withoutSystem := func(f *Facts) {
		f.Volumes = []talosclient.Volume{{ID: "META", Type: talosclient.VolumePartition, Phase: "missing"}, content("/dev/vdb", "gpt", "table")}
	}

	tests := map[string]struct {
		volumes []talosclient.Volume
		change  func(*Facts)
		action  Action
		reason  string
		devices []string
		message string
	}{
		"nothing of the cluster": {action: Done, reason: infrav1.NothingToReleaseReason},
		"another stage is no proof": {
			change: (func(f *Facts) { f.Stage = talosclient.StageBooting }), action: Wait, reason: infrav1.WaitingForResetReason,
		},
		"a partition of an earlier life is wiped": {
			volumes: []talosclient.Volume{old}, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7"},
		},
		"not where nobody knows which disk is the system's": {
			change: (func(f *Facts) { f.Volumes = []talosclient.Volume{old} }), action: Wait, reason: infrav1.NotWipedReason, message: "u-old (/dev/vda7)",
		},
		"nor where the META that was found is one of an earlier life": {
			change: (func(f *Facts) {
				f.Volumes = []talosclient.Volume{found("META", "/dev/vda4", "/dev/vda", 4, "meta"), old}
			}),
			action: Wait, reason: infrav1.NotWipedReason, message: "u-old (/dev/vda7)",
		},
		"the disk of the system is that of META, though Talos has found STATE on another one": {
			volumes: []talosclient.Volume{old}, change: func(f *Facts) { f.Volumes = volumes(managed("STATE", "/dev/vdb5", "/dev/vdb", 5, "s"), f.Volumes) },
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7"},
		},
		"several are named in order": {
			volumes: []talosclient.Volume{found("u-b", "/dev/vdb2", "/dev/vdb", 2, "b"), found("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), found("", "/dev/vdb0", "/dev/vdb", 0, "recorded")},
			action:  Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdb0, u-a (/dev/vdb1), u-b (/dev/vdb2);",
		},
		"several are wiped in order, each once": {
			volumes: []talosclient.Volume{
				found("u-b", "/dev/vdb2", "/dev/vdb", 2, "b"), found("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"), found("u-a", "/dev/vdb1", "/dev/vdb", 1, "a"),
			},
			change: (func(f *Facts) { f.RetryNow = true }), action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1", "/dev/vdb2"},
		},
		"on another disk, which may be that of another machine, too, it is left to a person": {
			volumes: []talosclient.Volume{found("u-old", "/dev/vdb1", "/dev/vdb", 1, "old")}, action: Wait, reason: infrav1.NotWipedReason, message: "u-old (/dev/vdb1)",
		},
		"who has it wiped": {
			volumes: []talosclient.Volume{found("u-old", "/dev/vdb1", "/dev/vdb", 1, "old")}, change: (func(f *Facts) { f.RetryNow = true }),
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"a raw volume is wiped, though nothing is found in it": {
			volumes: []talosclient.Volume{found("r-raw", "/dev/vdb1", "/dev/vdb", 1, "recorded")}, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"partitions that the reset has not come to are wiped": {
			volumes: []talosclient.Volume{found("EPHEMERAL", "/dev/vda6", "/dev/vda", 6, "e"), found("s-swap", "/dev/vdb2", "/dev/vdb", 2, "recorded")},
			action:  WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda6", "/dev/vdb2"},
		},
		"those that can be are wiped first": {
			volumes: append([]talosclient.Volume{old}, managed("STATE", "/dev/vda5", "/dev/vda", 5, "s")...),
			action:  WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7"},
		},
		"a volume that Talos uses is not": {
			volumes: managed("STATE", "/dev/vda5", "/dev/vda", 5, "s"), action: Wait, reason: infrav1.NotWipedReason, message: "still has STATE (/dev/vda5)",
		},
		"a partition of a read-only disk is not": {
			volumes: []talosclient.Volume{found("u-old", "/dev/vdr1", "/dev/vdr", 1, "recorded")}, action: Wait, reason: infrav1.NotWipedReason, message: "u-old (/dev/vdr1)",
		},
		"what somebody retains is not": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) { f.Release.Policy, f.RetryNow = infrav1.ReleaseRetain, true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "u-old (/dev/vda7)",
		},
		"nor is anything on a machine that never ran": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) { f.Release.ResetAt = metav1.Time{}; f.Handover.Progress = infrav1.HandoverStarted }),
			action: Wait, reason: infrav1.NotWipedReason, message: infrav1.HostRetryAnnotation,
		},
		"but for a person who says so": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) { f.Release.ResetAt = metav1.Time{}; f.RetryNow = true }),
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7"},
		},
		"one that ran and was reset by hand has it wiped": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) { f.Release.ResetAt = metav1.Time{}; f.Handover.Progress = infrav1.HandoverRan }),
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7"},
		},
		"a partition of machine.disks is named, and left to a person": {
			volumes: []talosclient.Volume{found("", "/dev/vdb1", "/dev/vdb", 1, "recorded")}, action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdb1",
		},
		"who may have it wiped": {
			volumes: []talosclient.Volume{found("", "/dev/vdb1", "/dev/vdb", 1, "recorded")}, change: (func(f *Facts) { f.RetryNow = true }),
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"with WipeAll it goes": {
			volumes: []talosclient.Volume{found("", "/dev/vdb1", "/dev/vdb", 1, "recorded")}, change: (func(f *Facts) { f.Release.Policy = infrav1.ReleaseWipeAll }),
			action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"a partition of etcd's own goes when it was recorded": {
			volumes: []talosclient.Volume{found("ETCD", "/dev/vdb1", "/dev/vdb", 1, "recorded")}, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"another of that label is somebody else's": {
			volumes: []talosclient.Volume{found("LOG", "/dev/vdb1", "/dev/vdb", 1, "other")}, action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"a whole disk that the reset has not come to is wiped": {
			volumes: []talosclient.Volume{content("/dev/vdc", "xfs", "recorded")}, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdc"},
		},
		"with the partitions": {
			volumes: []talosclient.Volume{content("/dev/vdc", "xfs", "recorded"), old}, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vda7", "/dev/vdc"},
		},
		"not when it has another file system by now": {
			volumes: []talosclient.Volume{content("/dev/vdc", "xfs", "other")}, action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"nor when there is a partition on it, whoever says so": {
			volumes: []talosclient.Volume{content("/dev/vdb", "xfs", "recorded")}, change: (func(f *Facts) { f.RetryNow = true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdb;",
		},
		"nor when Talos uses it": {
			volumes: append([]talosclient.Volume{content("/dev/vdc", "xfs", "recorded")}, wholeDisk("u-big", "/dev/vdc", "ready")[0]), change: (func(f *Facts) { f.RetryNow = true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdc;",
		},
		"nor when it is the system's": {
			volumes: []talosclient.Volume{content("/dev/vda", "xfs", "recorded")}, change: (func(f *Facts) { f.RetryNow = true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vda;",
		},
		"nor when it is read-only": {
			volumes: []talosclient.Volume{content("/dev/vdr", "xfs", "recorded")}, change: (func(f *Facts) { f.RetryNow = true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdr;",
		},
		"nor when somebody retains it": {
			volumes: []talosclient.Volume{content("/dev/vdc", "xfs", "recorded")}, change: (func(f *Facts) { f.Release.Policy, f.RetryNow = infrav1.ReleaseRetain, true }),
			action: Wait, reason: infrav1.NotWipedReason, message: "still has /dev/vdc;",
		},
		"a container's host is none of its business": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) { f.Container = true }), action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"a machine without the disk of its system may have everything on it": {
			change: withoutSystem, action: Wait, reason: infrav1.NotWipedReason, message: infrav1.HostRetryAnnotation,
		},
		"also one that ran and was not told": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.Release.ResetAt, f.Handover.Progress = metav1.Time{}, infrav1.HandoverRan
			},
			action: Wait, reason: infrav1.NotWipedReason, message: "disk of its system",
		},
		"also where the META that was found is one of an earlier life": {
			change: func(f *Facts) {
				f.Volumes = []talosclient.Volume{found("META", "/dev/vdb4", "/dev/vdb", 4, "old")}
			},
			action: Wait, reason: infrav1.NotWipedReason, message: "disk of its system",
		},
		"what is left on other disks comes first": {
			volumes: []talosclient.Volume{found("u-old", "/dev/vdb1", "/dev/vdb", 1, "recorded")},
			change:  func(f *Facts) { f.Volumes = f.Volumes[len(blank):] }, action: WipeDevices, reason: infrav1.ResettingReason, devices: []string{"/dev/vdb1"},
		},
		"a person may say that it was wiped as a whole": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.RetryNow = true
			},
			action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"WipeAll wipes it as a whole": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.Release.Policy = infrav1.ReleaseWipeAll
			},
			action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"where it is retained, a person wipes it": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.Release.Policy = infrav1.ReleaseRetain
			},
			action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"a machine that never ran has none": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.Release.ResetAt, f.Handover.Progress = metav1.Time{}, infrav1.HandoverStarted
			},
			action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"nor has a container": {
			change: func(f *Facts) {
				withoutSystem(f)
				f.Container = true
			},
			action: Done, reason: infrav1.NothingToReleaseReason,
		},
		"nothing is wiped while the configuration may still be taken": {
			volumes: []talosclient.Volume{old}, change: (func(f *Facts) {
				f.Release.RequestedAt, f.Handover.MaintenanceCertFingerprint, f.Fingerprint, f.RetryNow = ago(taloshost.HandoverSettle/2), "boot-1", "boot-1", true
			}),
			action: Wait, reason: infrav1.WaitingForResetReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			facts := Facts{
				Release: told, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-2",
				VolumesKnown: true, Volumes: append(volumes(blank), tt.volumes...), Disks: disks, Now: now,
			}
			if tt.change != nil {
				tt.change(&facts)
			}
			decision := Decide(facts)
			g.Expect(decision.Action).To(Equal(tt.action), decision.Message)
			g.Expect(decision.Reason).To(Equal(tt.reason))
			g.Expect(decision.Devices).To(Equal(tt.devices))
			g.Expect(decision.Message).To(ContainSubstring(tt.message))
			g.Expect(decision.Failed).To(Equal(tt.reason == infrav1.NotWipedReason))
		})
	}
}

// TestAMachineThatMakesItsVolumesIsNotTold: Talos tells of none before it has made them all,
// and those that it is not told to wipe would be left.
func TestAMachineThatMakesItsVolumesIsNotTold(t *testing.T) {
	waiting := func(id, kind string) talosclient.Volume {
		return talosclient.Volume{ID: id, Type: kind, Phase: "waiting"}
	}
	tests := map[string]struct {
		volume talosclient.Volume
		change func(*Facts)
		action Action
	}{
		"a user volume": {volume: waiting("u-data", talosclient.VolumePartition), action: Wait},
		"a whole disk":  {volume: waiting("u-whole", talosclient.VolumeDisk), action: Wait},
		"EPHEMERAL":     {volume: waiting("EPHEMERAL", talosclient.VolumePartition), action: Wait},
		"etcd's own":    {volume: waiting("ETCD", talosclient.VolumePartition), action: Wait},
		"one that has failed, and is tried again": {
			volume: talosclient.Volume{ID: "EPHEMERAL", Type: talosclient.VolumePartition, Phase: "failed", Location: "/dev/vda6"}, action: Wait,
		},
		"one that is somebody else's does not count": {volume: waiting("e-theirs", talosclient.VolumePartition), action: Reset},
		"nor does a directory":                       {volume: waiting("u-folder", "directory"), action: Reset},
		"after some time it is told all the same": {
			volume: waiting("u-data", talosclient.VolumePartition), change: func(f *Facts) { f.Release.RequestedAt = ago(2 * time.Minute) }, action: Reset,
		},
		"or when a person says so": {volume: waiting("u-data", talosclient.VolumePartition), change: func(f *Facts) { f.RetryNow = true }, action: Reset},
		"one that runs has a volume that no disk is there for": {
			volume: waiting("u-data", talosclient.VolumePartition), change: func(f *Facts) { f.Stage = talosclient.StageRunning }, action: Reset,
		},
		"a container has none of its own": {
			volume: waiting("u-data", talosclient.VolumePartition), change: func(f *Facts) { f.Container = true }, action: Reset,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			facts := Facts{
				Release: infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(2*time.Minute - time.Second)},
				Outcome: probe.Configured, Stage: talosclient.StageBooting, VolumesKnown: true, Volumes: append(volumes(system), tt.volume), Disks: disks, Now: now,
			}
			if tt.change != nil {
				tt.change(&facts)
			}
			decision := Decide(facts)
			g.Expect(decision.Action).To(Equal(tt.action))
			if tt.action == Wait {
				g.Expect(decision.Reason).To(Equal(infrav1.WaitingForResetReason))
				g.Expect(decision.Message).To(ContainSubstring("volumes"))
				g.Expect(decision.Next).To(Equal(time.Second))
			}
		})
	}
}

func TestARefusalIsShownUntilTheMachineIsToldAgain(t *testing.T) {
	g := NewWithT(t)
	facts := Facts{
		Release: infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(time.Hour), ResetAt: ago(resetSettle / 2), ResetCertFingerprint: "apid-1"},
		Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-1", VolumesKnown: true, Volumes: system, Refusal: "Talos' words", Now: now,
	}
	decision := Decide(facts)
	g.Expect(decision.Reason).To(Equal(infrav1.ReleaseFailedReason))
	g.Expect(decision.Message).To(Equal("Talos' words"))
	g.Expect(decision.Action).To(Equal(Wait))
	facts.Release.ResetAt = ago(resetSettle)
	g.Expect(Decide(facts).Action).To(Equal(Reset))
	facts.Release.ResetAt, facts.Stage = ago(resetSettle/2), talosclient.StageResetting
	g.Expect(Decide(facts).Reason).To(Equal(infrav1.ResettingReason), "it wipes itself after all")
}

func TestTheVolumesOfAClusterAreRecorded(t *testing.T) {
	g := NewWithT(t)
	g.Expect(uuids(volumes(
		system, wholeDisk("u-big", "/dev/vdb", "ready"), wholeDisk("u-foreign", "/dev/vdc", "failed"), managed("ETCD", "/dev/vdd1", "/dev/vdd", 1, "etcd"),
		managed("e-theirs", "/dev/vde1", "/dev/vde", 1, "theirs"), managed("/dev/sdb-1", "/dev/sdb1", "/dev/sdb", 1, "md"),
		[]talosclient.Volume{found("u-old", "/dev/vdf1", "/dev/vdf", 1, "old")},
		[]talosclient.Volume{ // Talos has not taken it.
			{ID: "/dev/sdc-1", Type: talosclient.VolumePartition, Phase: "failed", Location: "/dev/sdc1", ParentLocation: "/dev/sdc", PartitionIndex: 1, UUID: "failed"},
		},
	))).To(ConsistOf("state", "ephemeral", "fs-of-/dev/vdb", "etcd", "md"))
}
