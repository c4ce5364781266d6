package parts

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
)

const (
	// VMDebian is the part with what virtual machines have of Debian: QEMU with its firmware,
	// the kernel, and the programs of their root file system.
	VMDebian = "vm-debian"
	// TalosBoot is the part with what a machine boots from the network: vmlinuz, initramfs and
	// ipxe.efi.
	TalosBoot = "talos-boot"
	// PreviousTalosBoot is that of PreviousTalosVersion.
	PreviousTalosBoot = TalosBoot + previous
	// TalosInstallerImage is the part with the image that installs Talos on a disk, by its
	// name there.
	TalosInstallerImage = "talos-installer-image"
	// PreviousTalosInstallerImage is that of PreviousTalosVersion.
	PreviousTalosInstallerImage = TalosInstallerImage + previous
	// TalosNocloudImage is the part with a disk of Talos for platform nocloud, whose machines
	// are told over HTTP what their configuration is: DiskFile.
	TalosNocloudImage = "talos-nocloud-image"
	// DiskFile is a disk without its end.
	DiskFile = "disk.raw"
	// BrokenTalosInstallerImage is the part with the image of BrokenTalosVersion.
	BrokenTalosInstallerImage = TalosInstallerImage + broken
	// BrokenTalosVersion is TalosVersion, with an argument of the kernel by which it ends its
	// start before it comes to its configuration.
	BrokenTalosVersion = TalosVersion + broken

	broken         = "-broken"
	brokenArgument = " talos.experimental.wipe=nothing"
	talosInstaller = "ghcr.io/siderolabs/installer:"
	talosMetal     = "talos-metal"
	// vmSuite is the release of Debian that virtual machines are made of, and kernelSuite that
	// of their kernel: Talos 1.13 needs Linux 6.15 or later, and an older QEMU than 10 does not
	// emulate what it needs.
	vmSuite     = "trixie"
	kernelSuite = vmSuite + "-backports"
)

// vmPackages are the packages of part VMDebian.
var vmPackages = []string{ //nolint:gochecknoglobals // A constant.
	"qemu-system-x86/" + vmSuite, "ovmf", "ipxe/" + vmSuite, "systemd-boot-efi/" + vmSuite,
	"linux-image-cloud-amd64/" + kernelSuite, "linux-base/" + kernelSuite, "tiny-initramfs",
	"dosfstools", "mtools", "xfsprogs", "e2fsprogs", "udev/" + vmSuite, "kmod", "bash", "libc-bin",
}

// vmParts are what virtual machines are made of that boot Talos over the network, and from
// their disks.
func vmParts() []Part {
	all := []Part{
		{
			Name:    VMDebian,
			Version: vmSuite,
			Inputs:  append([]string{"1"}, vmPackages...),
			Build: func(ctx context.Context, w *Workspace) error {
				return debian.Unpack(ctx, filepath.Join(w.Out, "root"), w.Scratch, []string{vmSuite, kernelSuite}, vmPackages...)
			},
		},
		program("preinit", ownProgramsVersion, ".", ""),
	}
	return slices.Concat(all, metalParts(talos()), metalParts(previousTalos()), []Part{installer(talos(), broken, brokenArgument), nocloudDisk(talos())})
}

// metalParts are what a release of Talos is on machines with disks.
func metalParts(release talosRelease) []Part {
	metal := talosMetal + release.suffix
	return []Part{
		{
			Name:    metal,
			Version: release.version,
			Module:  metal,
			Commands: []Command{
				{Package: talosModule + "/internal/app/init", Binary: "init"},
				{Package: talosModule + "/cmd/installer", Binary: "installer"},
			},
			Tags: []string{"grpcnotrace"},
			Env:  []string{"GOAMD64=v2"},
		},
		{
			Name:    TalosBoot + release.suffix,
			Version: release.version,
			Module:  release.module,
			Needs:   []string{VMDebian, metal, "preinit", "machined" + release.suffix, "containerd", "runc", "cni", "flannel-cni"},
			Inputs:  []string{"1"},
			Build:   func(ctx context.Context, w *Workspace) error { return buildTalosBoot(ctx, w, release) },
		},
		installer(release, "", ""),
	}
}

// installer is the image that installs a release. What it installs may have further
// arguments of the kernel; then its tag ends with a name for that.
func installer(release talosRelease, name, arguments string) Part {
	image, arguments := talosInstaller+release.version+name, KernelArguments+arguments
	return Part{
		Name:    TalosInstallerImage + release.suffix + name,
		Version: release.version,
		Needs:   []string{VMDebian, talosMetal + release.suffix, TalosBoot + release.suffix},
		Inputs:  []string{"1", image, arguments, withoutArguments},
		Build: func(ctx context.Context, w *Workspace) error {
			return buildTalosInstaller(ctx, w, release, image, arguments)
		},
	}
}

func nocloudDisk(release talosRelease) Part {
	return Part{
		Name:    TalosNocloudImage + release.suffix,
		Version: release.version,
		Needs:   []string{VMDebian, talosMetal + release.suffix, TalosBoot + release.suffix},
		Inputs:  []string{"1", KernelArguments, withoutArguments},
		Build:   func(ctx context.Context, w *Workspace) error { return buildTalosDisk(ctx, w, release, "nocloud") },
	}
}
