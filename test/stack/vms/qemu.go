package vms

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// memoryMiB is how much memory each machine has.
const memoryMiB = 4096

// arguments are those of QEMU.
func (m *Machine) arguments(kvm, networkFirst bool) []string {
	accel, cpu := "tcg,thread=multi,tb-size=1024", "Nehalem,+rdrand,+aes,+pclmulqdq"
	if kvm {
		accel, cpu = "kvm", "host"
	}
	args := []string{
		"-name", m.Host.Name, "-machine", "q35", "-accel", accel, "-cpu", cpu, "-smp", "2", "-m", strconv.Itoa(memoryMiB),
		"-display", "none", "-nodefaults", "-chardev", "file,id=console,append=on,path=" + m.Console(), "-serial", "chardev:console",
		// QEMU runs in the folder of the machine.
		"-qmp", "unix:" + monitorFile + ",server,nowait", "-device", "virtio-rng-pci",
		"-drive", "if=pflash,format=raw,readonly=on,file=" + m.firmware("CODE"), "-drive", "if=pflash,format=raw,file=" + m.vars(),
		"-smbios", fmt.Sprintf("type=1,uuid=%s,serial=%s,manufacturer=capi-talos,product=vm", m.Host.UUID, cmp.Or(m.system, m.Serial)),
	}
	// What is written outlives the machine's power, not this one's.
	for disk := range disks {
		bus := "pcie.0"
		if disk == DataDisk {
			// What is plugged in there can be pulled.
			bus = "pullable"
			args = append(args, "-device", "pcie-root-port,id="+bus+",chassis=1")
		}
		if m.pulled[disk] {
			continue
		}
		args = append(args,
			"-drive", fmt.Sprintf("if=none,id=disk%d,file=%s,format=raw,cache=unsafe,discard=unmap", disk, m.Disk(disk)),
			"-device", fmt.Sprintf("virtio-blk-pci,id=%s,bus=%s,drive=disk%d,serial=%s,bootindex=%d", blockDevice(disk), bus, disk, m.DiskSerial(disk), disk+1))
	}
	for link := range m.fleet.network.bridges() {
		// The firmware boots over the first link.
		order := disks + 1
		if networkFirst {
			order = 0
		}
		boots := "bootindex=" + strconv.Itoa(order)
		if link > 0 {
			boots = "romfile="
		}
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%d,ifname=%s,script=no,downscript=no", link, m.link(link)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,%s", link, hardwareAddress(link, m.number), boots))
	}
	return args
}

func blockDevice(disk int) string { return "block" + strconv.Itoa(disk) }

// accelerated reports whether the processor here runs virtual machines. A device of KVM alone
// does not tell: there are kernels that have it for guests of their own kind only.
func accelerated() bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || runtime.GOARCH != "amd64" {
		return false
	}
	_, err = os.Stat("/dev/kvm")
	return err == nil && (strings.Contains(string(info), " vmx") || strings.Contains(string(info), " svm"))
}
