package vms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
	"github.com/capi-talos/capi-talos/test/stack/internal/talosnode"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

const (
	// disks is how many disks each machine has. The first one is for nothing.
	disks = 3
	// InstallDisk is the number of the one that Talos is to be installed on, which has to be
	// found.
	InstallDisk = 1
	// DataDisk is the number of the one for volumes.
	DataDisk = 2
	// diskBytes is the size of each. It takes no room until it is written to.
	diskBytes = 8 << 30
	// interval is how often a machine is looked at that is waited for.
	interval = 500 * time.Millisecond
)

// Machine is a virtual machine with UEFI, three disks and two links.
type Machine struct {
	// Host is what the fleet tells of it.
	Host fleet.Host
	// Serial is the serial number that its firmware tells, and the beginning of those of its
	// disks.
	Serial string

	fleet  *Fleet
	number int
	dir    string
	qemu   *process.Process
}

// newMachine makes a machine with blank disks, without power.
func (f *Fleet) newMachine(ctx context.Context) (*Machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	number := len(f.machines) + 1
	if number > maxMachines {
		return nil, fmt.Errorf("adding machines: there can be %d", maxMachines)
	}
	const podBits = 24
	pods := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), 0}), podBits)
	// A virtual machine has a kernel of its own, which grants all.
	patch, err := talosnode.PodPatch(machine.Traits{SysResource: true}, f.registry.Address, pods)
	if err != nil {
		return nil, err
	}
	name, serial := machineName(number), "SN"+strconv.Itoa(number)
	m := &Machine{
		Host: fleet.Host{
			Name: name, Address: machineAddress(f.options.Subnet, number), MACAddress: hardwareAddress(0, number),
			UUID: fmt.Sprintf("00000000-0000-4000-8000-%012d", number), InstallSerial: diskSerial(serial, InstallDisk), StrategicPatches: []string{patch},
		},
		Serial: serial, fleet: f, number: number, dir: filepath.Join(f.options.Dir, name),
	}
	if f.options.Patches != nil {
		m.Host.StrategicPatches = append(m.Host.StrategicPatches, f.options.Patches(m)...)
	}
	if err := m.make(ctx); err != nil {
		return nil, fmt.Errorf("making machine %s: %w", name, err)
	}
	f.machines = append(f.machines, m)
	return m, nil
}

// make makes the disks of a machine, its links, and what its firmware remembers.
func (m *Machine) make(ctx context.Context) error {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return err
	}
	for disk := range disks {
		if err := blank(m.Disk(disk)); err != nil {
			return err
		}
	}
	vars, err := os.ReadFile(m.firmware("VARS"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.vars(), vars, 0o600); err != nil {
		return err
	}
	for link, bridge := range m.fleet.network.bridges() {
		if err := run(ctx, "ip", "tuntap", "add", m.link(link), "mode", "tap"); err != nil {
			return err
		}
		if err := run(ctx, "ip", "link", "set", m.link(link), "master", bridge, "up"); err != nil {
			return err
		}
	}
	return nil
}

func blank(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(diskBytes), file.Close())
}

// Disk is the image of a disk: 0 is that of /dev/vda.
func (m *Machine) Disk(number int) string {
	return filepath.Join(m.dir, fmt.Sprintf("disk-%d.img", number))
}

// Console is the file with all that it has written to its serial line.
func (m *Machine) Console() string { return filepath.Join(m.dir, "console.log") }

// Holds reports whether a text is anywhere on a disk.
func (m *Machine) Holds(ctx context.Context, disk int, text string) (bool, error) {
	command := exec.CommandContext(ctx, "grep", "--text", "--quiet", "--fixed-strings", "--file=-", m.Disk(disk)) //nolint:gosec // a disk of ours
	command.Stdin = strings.NewReader(text)
	out, err := command.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("searching disk %d of machine %s: %w: %s", disk, m.Host.Name, err, out)
	}
	return true, nil
}

// Written is how many bytes of a disk were ever written to, and not given back.
func (m *Machine) Written(disk int) (int64, error) {
	var found unix.Stat_t
	if err := unix.Stat(m.Disk(disk), &found); err != nil {
		return 0, fmt.Errorf("looking at disk %d of machine %s: %w", disk, m.Host.Name, err)
	}
	const blockBytes = 512
	return found.Blocks * blockBytes, nil
}

// DiskSerial is the serial number of a disk.
func (m *Machine) DiskSerial(disk int) string { return diskSerial(m.Serial, disk) }

func diskSerial(machine string, disk int) string { return machine + "-" + strconv.Itoa(disk) }

func (m *Machine) vars() string { return filepath.Join(m.dir, "vars.fd") }

func (m *Machine) link(number int) string {
	return fmt.Sprintf("%s.%d.%d", m.fleet.options.Bridge, m.number, number)
}

func (m *Machine) firmware(kind string) string {
	return filepath.Join(m.fleet.system(), "usr/share/OVMF/OVMF_"+kind+"_4M.fd")
}

// PowerOn switches the machine on. It boots from its first disk that has a system, else over
// the network.
func (m *Machine) PowerOn() (err error) {
	if m.qemu != nil && m.qemu.Running() {
		return nil
	}
	system := m.fleet.system()
	// QEMU is of another release of Debian than this machine, so it runs by its own loader.
	args := append([]string{
		"--library-path", filepath.Join(system, "usr/lib/x86_64-linux-gnu"), filepath.Join(system, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(system, "usr/share/qemu"), "-L", filepath.Join(system, "usr/share/seabios"), "-L", filepath.Join(system, "usr/lib/ipxe/qemu"),
	}, m.arguments(accelerated())...)
	m.qemu, err = process.Start(process.Command{
		Name: m.Host.Name, Path: filepath.Join(system, "usr/lib64/ld-linux-x86-64.so.2"), Args: args, Dir: m.dir, Log: filepath.Join(m.dir, "qemu.log"),
	})
	return err
}

// PowerOff takes the power from the machine, without telling it.
func (m *Machine) PowerOff() error {
	if m.qemu == nil {
		return nil
	}
	return m.qemu.Kill()
}

// AwaitMaintenance waits until the machine answers in maintenance mode.
func (m *Machine) AwaitMaintenance(ctx context.Context) error {
	pool := talosclient.New()
	defer pool.Close()
	return m.await(ctx, "to answer in maintenance mode", func(ctx context.Context) error {
		return fleet.AnswersInMaintenance(ctx, pool, m.Host)
	})
}

// await waits for something of the machine, for as long as it has power.
func (m *Machine) await(ctx context.Context, what string, done func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s %s: %w; its console is %s", m.Host.Name, what, errors.Join(ctx.Err(), err), m.Console())
		case <-m.qemu.Exited():
			return fmt.Errorf("waiting for %s %s: %w", m.Host.Name, what, errors.Join(errors.New("it has no power"), m.qemu.Err()))
		case <-m.fleet.network.dhcp.Exited():
			return fmt.Errorf("waiting for %s %s: %w", m.Host.Name, what, m.fleet.network.dhcp.Err())
		case <-ticker.C:
		}
	}
}

// system are the partitions that a wiped machine may have: its boot loader, and what survives
// a reset.
var system = []string{"EFI", "BIOS", "BOOT", "META"} //nolint:gochecknoglobals // A constant.

// wiped looks whether the disks have partitions of a cluster.
func (m *Machine) wiped(ctx context.Context) error {
	for disk := range disks {
		labels, err := m.Partitions(ctx, disk)
		if err != nil {
			return err
		}
		for _, label := range labels {
			if !slices.Contains(system, label) {
				return fmt.Errorf("machine %s is not wiped: its disk %d has partition %s", m.Host.Name, disk, label)
			}
		}
	}
	return nil
}

// Partitions are the labels of the partitions of a disk, sorted; none when it has no table.
func (m *Machine) Partitions(ctx context.Context, disk int) ([]string, error) {
	out, err := exec.CommandContext(ctx, "sfdisk", "--json", m.Disk(disk)).CombinedOutput() //nolint:gosec // a disk of ours
	if err != nil {
		if strings.Contains(string(out), "does not contain a recognized partition table") {
			return nil, nil
		}
		return nil, fmt.Errorf("looking at disk %d of machine %s: %w: %s", disk, m.Host.Name, err, out)
	}
	var found struct {
		PartitionTable struct {
			Partitions []struct {
				Name string `json:"name"`
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("reading what sfdisk prints: %w", err)
	}
	labels := make([]string, 0, len(found.PartitionTable.Partitions))
	for _, partition := range found.PartitionTable.Partitions {
		labels = append(labels, partition.Name)
	}
	slices.Sort(labels)
	return labels, nil
}
