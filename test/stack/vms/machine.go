package vms

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
	"github.com/capi-talos/capi-talos/test/stack/internal/talosnode"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

const (
	// disks is how many disks each machine has. The first one is for nothing.
	disks = 4
	// InstallDisk is the number of the one that Talos is to be installed on, which has to be
	// found.
	InstallDisk = 1
	// DataDisk is the number of the one for volumes that are partitions. It can be pulled.
	DataDisk = 2
	// WholeDisk is the number of the one that is a volume as a whole.
	WholeDisk = 3
	// diskBytes is the size of each. It takes no room until it is written to.
	diskBytes = 8 << 30
	// interval is how often a machine is looked at that is waited for.
	interval = 500 * time.Millisecond
)

// Machine is a virtual machine with UEFI, four disks and two links.
type Machine struct {
	// Host is what the fleet tells of it.
	Host fleet.Host
	// Serial is the serial number that its firmware tells, unless a cloud says something by
	// that, and the beginning of those of its disks.
	Serial string

	fleet  *Fleet
	number int
	dir    string
	// system is the serial number that its firmware tells instead; empty means Serial.
	system string
	qemu   *process.Process
	pulled [disks]bool
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

// Console is the file with all that it has written to its serial line.
func (m *Machine) Console() string { return filepath.Join(m.dir, "console.log") }

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
func (m *Machine) PowerOn() error { return m.powerOn(false) }

// PowerOnToNetwork switches the machine on to boot over the network, whatever its disks have,
// until its power is taken again.
func (m *Machine) PowerOnToNetwork() error { return m.powerOn(true) }

func (m *Machine) powerOn(networkFirst bool) (err error) {
	if m.qemu != nil && m.qemu.Running() {
		return nil
	}
	system := m.fleet.system()
	// QEMU is of another release of Debian than this machine, so it runs by its own loader.
	args := append([]string{
		"--library-path", filepath.Join(system, "usr/lib/x86_64-linux-gnu"), filepath.Join(system, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(system, "usr/share/qemu"), "-L", filepath.Join(system, "usr/share/seabios"), "-L", filepath.Join(system, "usr/lib/ipxe/qemu"),
	}, m.arguments(accelerated(), networkFirst)...)
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
