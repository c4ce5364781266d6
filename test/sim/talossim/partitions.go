package talossim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"google.golang.org/protobuf/encoding/protojson"
)

// Partition is what lies on a disk beside the partitions of Talos itself; without an
// index it is what lies on the whole disk.
type Partition struct {
	// Disk is the path of the disk.
	Disk string
	// Index is the number of the partition, from 1.
	Index int
	// Label is its label in the partition table.
	Label string
	// Filesystem is what is found in it; empty is nothing that is known.
	Filesystem string
	// uuid is its own.
	uuid string
}

// Path is its device.
func (p Partition) Path() string {
	if p.Index == 0 {
		return p.Disk
	}
	return fmt.Sprintf("%s%d", p.Disk, p.Index)
}

// AddPartition puts a partition, or the content of a whole disk, where somebody has
// left it before. The machine finds it when it boots.
func (m *Machine) AddPartition(left Partition) {
	left.uuid = uuid.NewString()
	m.sim.update(func() { m.disk.partitions = append(m.disk.partitions, left) })
}

// Partitions are those on the disks of the machine, without those of Talos itself, by
// device and label.
func (m *Machine) Partitions() []Partition {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	present := slices.Clone(m.disk.partitions)
	for i := range present {
		present[i].uuid = ""
	}
	return present
}

// volume is what a machine is told to have: a document of its configuration, or a
// partition of machine.disks.
type volume struct {
	id         string
	kind       block.VolumeType
	selector   *cel.Expression
	disk       string
	index      int
	filesystem block.FilesystemType
}

// volumesOf are the volumes in a configuration that lie on disks (Talos:
// internal/app/machined/pkg/controllers/block/internal/volumes/volumeconfig/user_volumes.go
// and block/user_disk_config.go).
func volumesOf(cfg config.Provider) []volume {
	var found []volume
	for _, user := range cfg.UserVolumeConfigs() {
		kind := user.Type().ValueOr(block.VolumeTypePartition)
		if kind == block.VolumeTypeDirectory {
			continue
		}
		selector := user.Provisioning().DiskSelector().ValueOrZero()
		found = append(found, volume{id: constants.UserVolumePrefix + user.Name(), kind: kind, selector: &selector, filesystem: user.Filesystem().Type()})
	}
	for _, raw := range cfg.RawVolumeConfigs() {
		selector := raw.Provisioning().DiskSelector().ValueOrZero()
		found = append(found, volume{id: constants.RawVolumePrefix + raw.Name(), kind: block.VolumeTypePartition, selector: &selector})
	}
	for _, swap := range cfg.SwapVolumeConfigs() {
		selector := swap.Provisioning().DiskSelector().ValueOrZero()
		found = append(found, volume{id: constants.SwapVolumePrefix + swap.Name(), kind: block.VolumeTypePartition, selector: &selector, filesystem: block.FilesystemTypeSwap})
	}
	for _, disk := range cfg.Machine().Disks() {
		for i := range disk.Partitions() {
			found = append(found, volume{
				id: fmt.Sprintf("%s-%d", disk.Device(), i+1), kind: block.VolumeTypePartition, disk: disk.Device(), index: i + 1, filesystem: block.FilesystemTypeXFS,
			})
		}
	}
	return found
}

// selects reports whether a volume may lie on a disk.
func (v volume) selects(disk Disk, isSystem bool) bool {
	if v.selector == nil {
		return v.disk == disk.Path
	}
	spec := &blockpb.DiskSpec{}
	text := fmt.Sprintf(`{"devPath":%q,"size":"%d","model":%q,"serial":%q,"transport":"virtio"}`, disk.Path, disk.SizeBytes, disk.Model, disk.Serial)
	if protojson.Unmarshal([]byte(text), spec) != nil {
		return false
	}
	selected, err := v.selector.EvalBool(celenv.DiskLocator(), map[string]any{"disk": spec, "system_disk": isSystem})
	return err == nil && selected
}

// placed is a volume, and where it lies. Its location is empty while it lies nowhere.
type placed struct {
	id         string
	kind       block.VolumeType
	phase      block.VolumePhase
	filesystem block.FilesystemType
	at         Partition
}

func (p placed) isAnywhere() bool { return p.at.Disk != "" }

// provision finds the volumes of the configuration on the disks, and makes those that
// are missing. The lock is held.
func (m *Machine) provision() {
	m.disk.placed = nil
	for _, wanted := range m.disk.settings.volumes {
		m.disk.placed = append(m.disk.placed, m.place(wanted))
	}
}

func (m *Machine) place(wanted volume) placed {
	there := placed{id: wanted.id, kind: wanted.kind, phase: block.VolumePhaseReady, filesystem: wanted.filesystem}
	for _, disk := range m.spec.Disks {
		isSystem := disk.Path == m.systemDisk()
		isWhole := wanted.kind == block.VolumeTypeDisk
		if !wanted.selects(disk, isSystem) || isWhole && isSystem {
			continue
		}
		on := m.on(disk.Path)
		at := slices.IndexFunc(on, wanted.is)
		switch {
		case isWhole && len(on) > 0 && !wanted.fills(on):
			// Talos takes what the selector says, and does not format it.
			there.at, there.phase, there.filesystem = Partition{Disk: disk.Path}, block.VolumePhaseFailed, block.FilesystemTypeNone
		case isWhole && len(on) > 0:
			there.at = on[0]
		case at >= 0:
			there.at = on[at]
		default:
			there.at = m.make(wanted, disk.Path, on)
		}
		return there
	}
	there.phase = block.VolumePhaseWaiting
	return there
}

// is reports whether a partition is that of the volume.
func (v volume) is(found Partition) bool {
	return found.Index > 0 && (found.Label == v.id || v.index > 0 && found.Index == v.index)
}

// fills reports whether what is on a disk is the volume alone.
func (v volume) fills(on []Partition) bool {
	return len(on) == 1 && on[0].Index == 0 && on[0].Filesystem == v.filesystem.String()
}

func (m *Machine) make(wanted volume, disk string, on []Partition) Partition {
	made := Partition{Disk: disk, uuid: uuid.NewString()}
	if wanted.filesystem != block.FilesystemTypeNone {
		made.Filesystem = wanted.filesystem.String()
	}
	if wanted.kind == block.VolumeTypePartition {
		made.Index = 1
		if disk == m.systemDisk() {
			made.Index = ephemeralPartition + 1
		}
		for _, other := range on {
			made.Index = max(made.Index, other.Index+1)
		}
		if wanted.selector != nil {
			made.Label = wanted.id
		}
	}
	m.disk.partitions = append(m.disk.partitions, made)
	return made
}

// on are the partitions of a disk, or what lies on all of it. The lock is held.
func (m *Machine) on(disk string) []Partition {
	var found []Partition
	for _, partition := range m.disk.partitions {
		if partition.Disk == disk {
			found = append(found, partition)
		}
	}
	return found
}

func (m *Machine) systemDisk() string { return m.spec.Disks[0].Path }

// volumes are those that Talos manages and that lie on disks, or could. Which there are
// is said in internal/app/machined/pkg/controllers/block/internal/volumes/volumeconfig/system_volumes.go:
// without a configuration there is no volume EPHEMERAL, whatever lies on the disk. The
// lock is held.
func (m *Machine) volumes() []placed {
	configured := m.disk.configuration != nil
	var all []placed
	for _, system := range m.systemPartitions() {
		v := placed{id: system.Label, kind: block.VolumeTypePartition, phase: block.VolumePhaseReady, at: system}
		if system.Filesystem != "" {
			v.filesystem = block.FilesystemTypeXFS
		}
		switch {
		case system.Label == constants.EphemeralPartitionLabel && !configured:
			continue
		case system.Index > 0:
		case configured:
			v.phase, v.at, v.filesystem = block.VolumePhaseWaiting, Partition{}, block.FilesystemTypeNone
		default:
			v.phase, v.at, v.filesystem = block.VolumePhaseMissing, Partition{}, block.FilesystemTypeNone
		}
		all = append(all, v)
	}
	if configured {
		all = append(all, m.disk.placed...)
	}
	for i := range all {
		if all[i].id != constants.MetaPartitionLabel && all[i].id != constants.StatePartitionLabel && m.untold {
			all[i].phase, all[i].at, all[i].filesystem = block.VolumePhaseWaiting, Partition{}, block.FilesystemTypeNone
		}
	}
	return all
}

// systemPartitions are META, STATE and EPHEMERAL; one that is missing has no index.
// The lock is held.
func (m *Machine) systemPartitions() []Partition {
	of := func(exists bool, index int, label, filesystem string) Partition {
		if !exists {
			index = 0
		}
		return Partition{Disk: m.systemDisk(), Index: index, Label: label, Filesystem: filesystem, uuid: uuid.NewSHA1(uuid.NameSpaceURL, []byte(m.spec.Name+label)).String()}
	}
	xfs := block.FilesystemTypeXFS.String()
	return []Partition{
		of(m.disk.installed, metaPartition, constants.MetaPartitionLabel, "talosmeta"),
		of(m.disk.configuration != nil, statePartition, constants.StatePartitionLabel, xfs),
		of(m.disk.ephemeral, ephemeralPartition, constants.EphemeralPartitionLabel, xfs),
	}
}

// discovered is what is found on the disks. The lock is held.
func (m *Machine) discovered() []Partition {
	all := slices.DeleteFunc(m.systemPartitions(), func(p Partition) bool { return p.Index == 0 })
	if m.disk.installed {
		all = append(all, Partition{Disk: m.systemDisk(), Index: 1, Label: constants.EFIPartitionLabel, Filesystem: "vfat"})
	}
	all = append(all, m.disk.partitions...)
	for _, disk := range m.spec.Disks {
		if slices.ContainsFunc(all, func(p Partition) bool { return p.Disk == disk.Path && p.Index > 0 }) {
			all = append(all, Partition{Disk: disk.Path, Filesystem: "gpt"})
		}
	}
	slices.SortFunc(all, func(a, b Partition) int {
		return cmp.Or(strings.Compare(a.Disk, b.Disk), cmp.Compare(a.Index, b.Index))
	})
	return all
}

// drop takes a partition, or everything on a disk, away. The lock is held.
func (m *Machine) drop(device string) {
	m.disk.partitions = slices.DeleteFunc(m.disk.partitions, func(p Partition) bool { return p.Path() == device || p.Disk == device })
}
