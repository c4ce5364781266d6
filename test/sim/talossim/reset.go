package talossim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reset wipes the machine and boots it, or shuts it down. In a container it only ends:
// its host wipes and boots it, whatever was asked for, and nothing leaves etcd. One that
// names the user disks wipes nothing there, because no container has any.
func (a *api) Reset(_ context.Context, req *machine.ResetRequest) (*machine.ResetResponse, error) {
	var err error
	a.boot.sim.look(func() { err = a.boot.machine.refuses(req) })
	if err != nil {
		return nil, err
	}
	next := order{reset: req}
	if a.boot.sim.options.Personality == Metal {
		next.leave = req.GetGraceful() && a.settings.controlPlane
	}
	if err := a.order(next); err != nil {
		return nil, err
	}
	return &machine.ResetResponse{Messages: []*machine.Reset{{}}}, nil
}

// refuses is what Talos finds wrong with a request to wipe a machine. The lock is held.
func (m *Machine) refuses(req *machine.ResetRequest) error {
	disks, labels := req.GetUserDisksToWipe(), req.GetSystemPartitionsToWipe()
	if len(disks) > 0 && req.GetMode() == machine.ResetRequest_SYSTEM_DISK {
		return errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	for _, path := range disks {
		at := slices.IndexFunc(m.spec.Disks, func(disk Disk) bool { return disk.Path == path })
		switch {
		case at < 0:
			return fmt.Errorf("reset user disk failed: device %s wasn't found", path)
		case m.spec.Disks[at].ReadOnly:
			return fmt.Errorf("reset user disk failed: device %s is readonly", path)
		case at == 0:
			return fmt.Errorf("reset user disk failed: device %s is the system disk", path)
		}
	}
	if len(labels) > 0 && req.GetMode() == machine.ResetRequest_USER_DISKS {
		return errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	for _, partition := range labels {
		if err := m.located(partition.GetLabel()); err != nil {
			return err
		}
	}
	return nil
}

// located reports whether a volume can be wiped. The lock is held.
func (m *Machine) located(label string) error {
	system := []string{constants.MetaPartitionLabel, constants.StatePartitionLabel, constants.EphemeralPartitionLabel}
	if m.sim.options.Personality == Container && slices.Contains(system, label) {
		return fmt.Errorf("failed to reset: volume %q is not located", label)
	}
	if m.sim.options.Personality == Metal {
		volumes := m.volumes()
		if at := slices.IndexFunc(volumes, func(v placed) bool { return v.id == label }); at >= 0 {
			if !volumes[at].isAnywhere() {
				return fmt.Errorf("failed to reset: volume %q is not located", label)
			}
			return nil
		}
	}
	return fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(runtime/%s@undefined) doesn't exist", label, label)
}

// reset wipes what it is told to, unless the fleet keeps its data, and then boots, or
// shuts down. One that fails half-way has not come to the whole disks, and boots,
// whatever was asked for (Talos: internal/app/machined/main.go, handle).
func (m *Machine) reset(ctx context.Context, req *machine.ResetRequest) {
	m.sim.pause(ctx, m.sim.options.Delays.Reset)
	m.sim.update(func() {
		isMetal := m.sim.options.Personality == Metal
		m.off = isMetal && !req.GetReboot()
		if m.sim.keepData || m.faults.KeepsData {
			return
		}
		if req.GetMode() != machine.ResetRequest_USER_DISKS && (!isMetal || len(req.GetSystemPartitionsToWipe()) == 0) {
			m.wipeAll()
		}
		if !isMetal {
			return
		}
		if !m.wipe(req) {
			m.off = false
			return
		}
		for _, disk := range req.GetUserDisksToWipe() {
			m.drop(disk)
		}
	})
}

// wipe empties the volumes that are named, all of them, and reports whether that has
// gone well: a volume with a disk to itself is wiped, and then has no partition that
// could be deleted (Talos: internal/pkg/partition/wipe.go). The lock is held.
func (m *Machine) wipe(req *machine.ResetRequest) bool {
	well := !m.faults.BusyPartition
	volumes := m.volumes()
	for _, named := range req.GetSystemPartitionsToWipe() {
		at := slices.IndexFunc(volumes, func(v placed) bool { return v.id == named.GetLabel() })
		if at < 0 || !named.GetWipe() {
			continue
		}
		switch named.GetLabel() {
		case constants.StatePartitionLabel:
			// What is left needs to know whose it was.
			defer func() { m.disk.configuration, m.disk.settings = nil, nil }()
		case constants.EphemeralPartitionLabel:
			m.dropEphemeral()
		default:
			well = well && volumes[at].at.Index > 0
			m.drop(volumes[at].at.Path())
		}
	}
	return well
}

// wipeAll empties the system disk. The lock is held.
func (m *Machine) wipeAll() {
	m.dropEphemeral()
	m.disk.installed, m.disk.release, m.disk.configuration, m.disk.settings = false, "", nil, nil
	if len(m.spec.Disks) > 0 {
		m.drop(m.systemDisk())
	}
}

// blank empties all disks. The lock is held.
func (m *Machine) blank() {
	m.wipeAll()
	m.disk.partitions = nil
}

func (m *Machine) dropEphemeral() {
	m.disk.ephemeral, m.disk.database = false, nil
	m.sim.dropEtcd(m.spec.Name, m.disk.settings)
	m.faults.SpoiltEtcd = false
}

// left names a partition with a label that only Talos gives; empty when there is none.
// The lock is held.
func (m *Machine) left() string {
	for _, partition := range m.disk.partitions {
		for _, prefix := range []string{constants.UserVolumePrefix, constants.RawVolumePrefix, constants.SwapVolumePrefix} {
			if strings.HasPrefix(partition.Label, prefix) {
				return "partition " + partition.Label
			}
		}
	}
	return ""
}

// storageAPI is the storage service, as far as clients use it. The answers are those of
// internal/app/storaged/server.go.
type storageAPI struct {
	storage.UnimplementedStorageServiceServer
	boot *boot
}

// BlockDeviceWipe wipes devices that Talos does not use. In maintenance mode everybody
// may.
func (s *storageAPI) BlockDeviceWipe(ctx context.Context, req *storage.BlockDeviceWipeRequest) (*storage.BlockDeviceWipeResponse, error) {
	m := s.boot.machine
	var err error
	s.boot.sim.update(func() {
		for _, device := range req.GetDevices() {
			if err = m.refusesWipe(device); err != nil {
				return
			}
		}
		for _, device := range req.GetDevices() {
			m.wipeDevice(device)
		}
	})
	if err != nil {
		return nil, err
	}
	s.boot.resources.setVolumes(ctx, m)
	return &storage.BlockDeviceWipeResponse{Messages: []*storage.BlockDeviceWipe{{}}}, nil
}

// refusesWipe is what Talos finds wrong with a device to wipe. The lock is held.
func (m *Machine) refusesWipe(device *storage.BlockDeviceWipeDescriptor) error {
	path, disk := "/dev/"+device.GetDevice(), ""
	for _, found := range m.discovered() {
		if found.Path() == path {
			disk = found.Disk
		}
	}
	for _, known := range m.spec.Disks {
		if known.Path == path {
			disk = path
		}
		if known.Path == disk && known.ReadOnly {
			return status.Errorf(codes.FailedPrecondition, "blockdevice %q is read-only", device.GetDevice())
		}
	}
	if disk == "" {
		return status.Errorf(codes.NotFound, "blockdevice %q not found", device.GetDevice())
	}
	for _, volume := range m.volumes() {
		isUsed := volume.isAnywhere() && (volume.at.Path() == path || volume.at.Path() == disk || volume.at.Disk == path)
		if isUsed && !device.GetSkipVolumeCheck() {
			return status.Errorf(codes.FailedPrecondition, "blockdevice %q is in use by volume %q", device.GetDevice(), volume.id)
		}
	}
	return nil
}

// wipeDevice wipes a device. A partition that is not to be dropped stays, empty. The
// lock is held.
func (m *Machine) wipeDevice(device *storage.BlockDeviceWipeDescriptor) {
	path := "/dev/" + device.GetDevice()
	for _, system := range m.systemPartitions() {
		if system.Path() == path && system.Label == constants.EphemeralPartitionLabel {
			m.dropEphemeral()
		}
	}
	for i := range m.disk.partitions {
		if m.disk.partitions[i].Path() == path && m.disk.partitions[i].Index > 0 && !device.GetDropPartition() {
			m.disk.partitions[i].Filesystem = ""
			return
		}
	}
	m.drop(path)
}
