package talossim

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// The partitions that Talos makes on the system disk, in their order there.
const (
	metaPartition      = 3
	statePartition     = 4
	ephemeralPartition = 5
)

// setVolumes tells the volumes of a machine. Which there are is said in
// internal/app/machined/pkg/controllers/block/internal/volumes/volumeconfig/system_volumes.go:
// without a configuration there is no volume EPHEMERAL, whatever lies on the
// disk; what lies there is told by DiscoveredVolumes. In a container STATE and
// EPHEMERAL are directories, and so have no location and no file system.
func (r *resources) setVolumes(ctx context.Context, m *Machine) {
	var present disk
	m.sim.look(func() { present = m.disk })
	configured := present.configuration != nil
	if m.sim.options.Personality == Container {
		r.putVolume(ctx, constants.MetaPartitionLabel, block.VolumePhaseMissing, "", block.FilesystemTypeNone)
		r.putVolume(ctx, constants.StatePartitionLabel, block.VolumePhaseReady, "", block.FilesystemTypeNone)
		if configured {
			r.putVolume(ctx, constants.EphemeralPartitionLabel, block.VolumePhaseReady, "", block.FilesystemTypeNone)
		}
		return
	}

	for _, volume := range []struct {
		label      string
		partition  int
		managed    bool
		exists     bool
		filesystem block.FilesystemType
	}{
		{constants.MetaPartitionLabel, metaPartition, true, present.installed, block.FilesystemTypeNone},
		{constants.StatePartitionLabel, statePartition, true, configured, block.FilesystemTypeXFS},
		{constants.EphemeralPartitionLabel, ephemeralPartition, configured, present.ephemeral, block.FilesystemTypeXFS},
	} {
		device := fmt.Sprintf("%s%d", m.spec.Disks[0].Path, volume.partition)
		if volume.exists {
			r.putDiscovered(ctx, volume.label, device, m.spec.Disks[0].Path, volume.filesystem)
		}
		switch {
		case !volume.managed:
		case volume.exists:
			r.putVolume(ctx, volume.label, block.VolumePhaseReady, device, volume.filesystem)
		case configured:
			r.putVolume(ctx, volume.label, block.VolumePhaseWaiting, "", block.FilesystemTypeNone)
		default:
			r.putVolume(ctx, volume.label, block.VolumePhaseMissing, "", block.FilesystemTypeNone)
		}
	}
}

func (r *resources) putVolume(ctx context.Context, label string, phase block.VolumePhase, location string, filesystem block.FilesystemType) {
	res := block.NewVolumeStatus(block.NamespaceName, label)
	spec := res.TypedSpec()
	spec.Phase, spec.Location, spec.Filesystem, spec.Type = phase, location, filesystem, block.VolumeTypePartition
	if location == "" && phase == block.VolumePhaseReady {
		spec.Type = block.VolumeTypeDirectory
	}
	r.put(ctx, res)
}

func (r *resources) putDiscovered(ctx context.Context, label, device, parent string, filesystem block.FilesystemType) {
	res := block.NewDiscoveredVolume(block.NamespaceName, device[len("/dev/"):])
	spec := res.TypedSpec()
	spec.DevPath, spec.ParentDevPath, spec.Type, spec.PartitionLabel = device, parent, "partition", label
	if filesystem != block.FilesystemTypeNone {
		spec.Name, spec.Label = filesystem.String(), label
	}
	r.put(ctx, res)
}
