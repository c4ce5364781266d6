package wipe

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// machineDisk is the ID of the volume of a partition of machine.disks: the path of
// the disk, and the number of the partition (Talos:
// internal/app/machined/pkg/controllers/block/user_disk_config.go).
var machineDisk = regexp.MustCompile(`^/dev/.+-[0-9]+$`)

// hasTalosLabel reports whether a partition label is one that only Talos gives.
func hasTalosLabel(label string) bool {
	if label == constants.StatePartitionLabel || label == constants.EphemeralPartitionLabel {
		return true
	}

	return slices.ContainsFunc([]string{constants.UserVolumePrefix, constants.RawVolumePrefix, constants.SwapVolumePrefix}, func(prefix string) bool {
		return strings.HasPrefix(label, prefix)
	})
}

// isSystemVolume reports whether an ID is that of a volume of Talos itself which holds
// data of a cluster. From Talos 1.14 on a VolumeConfig can give each of them a
// partition; before that, all but STATE and EPHEMERAL are directories in EPHEMERAL
// (internal/app/machined/pkg/controllers/block/internal/volumes/volumeconfig/system_volumes.go).
func isSystemVolume(id string) bool {
	return slices.Contains([]string{
		constants.StatePartitionLabel, constants.EphemeralPartitionLabel,
		constants.EtcdDataVolumeID, constants.CRIContainerdVolumeID, constants.KubeletDataVolumeID, constants.LogVolumeID,
	}, id)
}

// isOurs reports whether a volume that Talos manages is one that Talos has made for a
// cluster: not one that was there before (e-…), and none that lies elsewhere (x-…).
func isOurs(volume talosclient.Volume) bool {
	return isManaged(volume) && (hasTalosLabel(volume.ID) || isSystemVolume(volume.ID)) && (!isWholeDisk(volume) || isReady(volume))
}

// isMachineDisk reports whether a volume is a partition of machine.disks. Talos finds
// it by its number alone, and so it may have been there before.
func isMachineDisk(volume talosclient.Volume) bool {
	return isManaged(volume) && machineDisk.MatchString(volume.ID) && !isWholeDisk(volume) && isReady(volume)
}

// isManaged reports whether Talos manages the volume, and has it on a disk.
func isManaged(volume talosclient.Volume) bool { return !volume.Discovered && volume.Location != "" }

// isWholeDisk reports whether a volume has a disk to itself. Talos takes each disk that
// is selected, and leaves one with other content alone: its volume is never ready.
func isWholeDisk(volume talosclient.Volume) bool {
	return volume.Type == talosclient.VolumeDisk && volume.PartitionIndex == 0
}

func isReady(volume talosclient.Volume) bool { return volume.Phase == block.VolumePhaseReady.String() }

// makesVolumes reports whether a machine that boots has volumes of a cluster that are not
// ready yet. Talos tells of those that it has made once it has been through all of them
// (internal/app/machined/pkg/controllers/block/volume_manager.go): until then a partition
// may be on a disk without anybody knowing whose it is.
func makesVolumes(facts Facts) bool {
	if facts.Container || facts.Stage != talosclient.StageBooting {
		return false
	}

	return slices.ContainsFunc(facts.Volumes, func(volume talosclient.Volume) bool {
		isOnDisk := volume.Type == talosclient.VolumePartition || volume.Type == talosclient.VolumeDisk
		return !volume.Discovered && isOnDisk && (hasTalosLabel(volume.ID) || isSystemVolume(volume.ID)) && !isReady(volume)
	})
}

// order is what a reset is told to wipe, and what has to be looked for after it.
type order struct {
	// labels are the volumes to wipe, and disks the disks.
	labels, disks []string
	// volumes are the UUIDs of the volumes of the cluster.
	volumes []string
}

func orderFor(facts Facts) order {
	made := order{volumes: uuids(facts.Volumes)}
	if facts.Release.Policy == infrav1.ReleaseWipeAll {
		made.disks = wholeDisks(facts, func(volume talosclient.Volume) bool { return isOurs(volume) || isMachineDisk(volume) })
		return made
	}
	made.labels = Labels(facts.Volumes)
	made.disks = wholeDisks(facts, func(volume talosclient.Volume) bool { return isOurs(volume) && isWholeDisk(volume) })

	return made
}

// Labels are the partitions that a wipe of the system takes: those of STATE, EPHEMERAL
// and the user, raw and swap volumes. STATE goes last: a machine that loses its power
// meanwhile comes back with its configuration, and is told again.
func Labels(volumes []talosclient.Volume) []string {
	var labels []string
	for _, volume := range volumes {
		if isOurs(volume) && !isWholeDisk(volume) {
			labels = append(labels, volume.ID)
		}
	}
	slices.SortFunc(labels, func(a, b string) int {
		isState := func(label string) int {
			if label == constants.StatePartitionLabel {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(isState(a), isState(b)), cmp.Compare(a, b))
	})

	return labels
}

// wholeDisks are the disks of the volumes that isMeant picks, as far as nothing else
// is on them.
func wholeDisks(facts Facts, isMeant func(talosclient.Volume) bool) []string {
	var disks []string
	for _, volume := range facts.Volumes {
		disk := cmp.Or(volume.ParentLocation, volume.Location)
		if isMeant(volume) && !slices.Contains(disks, disk) && isAllOurs(facts, disk) {
			disks = append(disks, disk)
		}
	}
	slices.Sort(disks)

	return disks
}

// isAllOurs reports whether a disk can be wiped as a whole: it can be written to, Talos
// neither runs from it nor wipes it anyway, and all that was found on it are volumes of
// the cluster.
func isAllOurs(facts Facts, disk string) bool {
	if !isWritable(facts.Disks, disk) {
		return false
	}
	ours := map[string]bool{}
	for _, volume := range facts.Volumes {
		if !isManaged(volume) || cmp.Or(volume.ParentLocation, volume.Location) != disk {
			continue
		}
		if isSystemVolume(volume.ID) || (!isOurs(volume) && !isMachineDisk(volume)) {
			return false
		}
		ours[volume.Location] = true
	}
	found := false
	for _, volume := range facts.Volumes {
		if !volume.Discovered || (volume.Location != disk && volume.ParentLocation != disk) {
			continue
		}
		found = true
		if volume.Location != disk && !ours[volume.Location] && !hasTalosLabel(volume.ID) {
			return false
		}
	}

	return found
}

func isWritable(disks []talosclient.Disk, path string) bool {
	return slices.ContainsFunc(disks, func(disk talosclient.Disk) bool { return disk.DevPath == path && !disk.ReadOnly && !disk.CDROM })
}

// uuids are those of the volumes of a cluster. Not all of them have a label that only
// Talos gives, and such a label does not tell whose a partition is.
func uuids(volumes []talosclient.Volume) []string {
	var found []string
	for _, volume := range volumes {
		if !isOurs(volume) && !isMachineDisk(volume) {
			continue
		}
		for _, seen := range volumes {
			// Talos does not tell the UUID of what it has just formatted.
			if seen.Location == volume.Location && seen.UUID != "" && !slices.Contains(found, seen.UUID) {
				found = append(found, seen.UUID)
			}
		}
	}
	slices.Sort(found)

	return found
}

func isRecorded(release infrav1.HostRelease, volume talosclient.Volume) bool {
	return volume.UUID != "" && slices.Contains(release.Volumes, volume.UUID)
}

// leftovers are the volumes of a cluster that are still on the disks of a machine that
// has come back. Talos deletes the partition of what it wipes, with everything that
// could be in it (internal/pkg/partition/wipe.go, Wipe, the same in 1.12, 1.13 and
// 1.14), so one that is there was not wiped, even where nothing is found in it.
func leftovers(facts Facts) []talosclient.Volume {
	var left []talosclient.Volume
	for _, volume := range facts.Volumes {
		if volume.Location == "" || (facts.Container && volume.Discovered) {
			continue
		}
		isTwice := slices.ContainsFunc(left, func(other talosclient.Volume) bool { return other.Location == volume.Location })
		if !isTwice && (hasTalosLabel(volume.ID) || isOurs(volume) || isRecorded(facts.Release, volume)) {
			left = append(left, volume)
		}
	}

	return left
}

// wipeable are those of the leftovers that can be wiped in maintenance mode: their disk
// can be written to, and Talos does not use them. Without a person who says so only
// those are that were volumes of the cluster, and what has a label of Talos on the disk
// of the system of a machine that has run. Other disks may be those of other machines,
// too, and a partition without a label of Talos may have been there before the cluster.
func wipeable(facts Facts, left []talosclient.Volume) []string {
	if facts.Container || facts.Release.Policy == infrav1.ReleaseRetain {
		return nil
	}
	var devices []string
	for _, volume := range left {
		if canBeWiped(facts, volume) && (facts.RetryNow || isClaimed(facts, volume)) {
			devices = append(devices, volume.Location)
		}
	}
	slices.Sort(devices)

	return devices
}

// canBeWiped reports whether Talos can wipe what is left in maintenance mode: a
// partition, or a whole disk without any.
func canBeWiped(facts Facts, volume talosclient.Volume) bool {
	isPartition := volume.Type == talosclient.VolumePartition && volume.PartitionIndex > 0
	isUsed := slices.ContainsFunc(facts.Volumes, func(other talosclient.Volume) bool {
		return (isManaged(other) && other.Location == volume.Location) || other.ParentLocation == volume.Location
	})

	return (isPartition || isWholeDisk(volume)) && !isUsed && isWritable(facts.Disks, cmp.Or(volume.ParentLocation, volume.Location))
}

// isClaimed reports whether what is left is surely the cluster's to wipe.
func isClaimed(facts Facts, volume talosclient.Volume) bool {
	if isRecorded(facts.Release, volume) {
		return isWholeDisk(volume) || hasTalosLabel(volume.ID) || isSystemVolume(volume.ID) || facts.Release.Policy == infrav1.ReleaseWipeAll
	}
	system := systemDisk(facts.Volumes)

	return hasRun(facts) && system != "" && volume.ParentLocation == system && hasTalosLabel(volume.ID)
}

// hasRun reports whether the machine was seen running with a configuration.
func hasRun(facts Facts) bool {
	return !facts.Release.ResetAt.IsZero() || facts.Handover.Progress == infrav1.HandoverRan
}

// lacksSystem reports whether the disk on which the system of a machine was is not there:
// a wipe of the system keeps META, which each installation has. Talos looks for it
// before it goes into maintenance mode (internal/app/machined/pkg/runtime/v1alpha1:
// ReloadMeta in the sequence Initialize, Installed).
func lacksSystem(facts Facts) bool {
	return hasRun(facts) && !facts.Container && facts.Release.Policy == infrav1.ReleaseWipeSystem && systemDisk(facts.Volumes) == ""
}

// systemDisk is the disk on which Talos has found its META; empty when it has not.
func systemDisk(volumes []talosclient.Volume) string {
	for _, volume := range volumes {
		if isManaged(volume) && volume.ID == constants.MetaPartitionLabel {
			return volume.ParentLocation
		}
	}

	return ""
}

// names are the volumes for a message, with the devices on which they are.
func names(volumes []talosclient.Volume) string {
	var texts []string
	for _, volume := range volumes {
		text := volume.Location
		if volume.ID != "" && !machineDisk.MatchString(volume.ID) {
			text = volume.ID + " (" + volume.Location + ")"
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)

	return strings.Join(texts, ", ")
}
