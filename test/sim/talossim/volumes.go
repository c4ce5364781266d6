package talossim

import (
	"context"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
)

// The partitions that Talos makes on the system disk after that of sd-boot, in their
// order there.
const (
	metaPartition      = 2
	statePartition     = 3
	ephemeralPartition = 4
)

// setVolumes tells the volumes of a machine, and what is found on its disks. In a
// container STATE and EPHEMERAL are directories, and so have no location and no file
// system.
func (r *resources) setVolumes(ctx context.Context, m *Machine) {
	if m.sim.options.Personality == Container {
		r.putVolume(ctx, placed{id: constants.MetaPartitionLabel, phase: block.VolumePhaseMissing, kind: block.VolumeTypePartition})
		r.putVolume(ctx, placed{id: constants.StatePartitionLabel, phase: block.VolumePhaseReady, kind: block.VolumeTypeDirectory})
		if m.Configuration() != nil {
			r.putVolume(ctx, placed{id: constants.EphemeralPartitionLabel, phase: block.VolumePhaseReady, kind: block.VolumeTypeDirectory})
		}
		return
	}
	var managed []placed
	var found []Partition
	m.sim.look(func() { managed, found = m.volumes(), m.discovered() })
	for _, volume := range managed {
		r.putVolume(ctx, volume)
	}
	there := map[string]bool{}
	for _, partition := range found {
		there[r.putDiscovered(ctx, partition)] = true
	}
	r.forget(ctx, block.NewDiscoveredVolume(block.NamespaceName, "").Metadata(), there)
}

func (r *resources) putVolume(ctx context.Context, v placed) {
	res := block.NewVolumeStatus(block.NamespaceName, v.id)
	spec := res.TypedSpec()
	spec.Type, spec.Phase, spec.Filesystem = v.kind, v.phase, v.filesystem
	if v.isAnywhere() {
		spec.Location, spec.PartitionIndex = v.at.Path(), v.at.Index
		if v.at.Index > 0 {
			spec.ParentLocation, spec.PartitionUUID = v.at.Disk, v.at.uuid
		}
	}
	r.put(ctx, res)
}

// putDiscovered returns the ID of what was found.
func (r *resources) putDiscovered(ctx context.Context, found Partition) string {
	res := block.NewDiscoveredVolume(block.NamespaceName, strings.TrimPrefix(found.Path(), "/dev/"))
	spec := res.TypedSpec()
	spec.DevPath, spec.Name, spec.Type = found.Path(), found.Filesystem, "disk"
	if found.Index > 0 {
		spec.Type, spec.ParentDevPath, spec.PartitionIndex = "partition", found.Disk, uint(found.Index)
		spec.PartitionLabel, spec.PartitionUUID = found.Label, found.uuid
	} else {
		spec.UUID = found.uuid
	}
	if found.Filesystem == block.FilesystemTypeXFS.String() {
		spec.Label = found.Label
	}
	r.put(ctx, res)
	return res.Metadata().ID()
}
