package parts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
)

const (
	// KernelFile is the kernel in part TalosBoot.
	KernelFile = "vmlinuz"
	// InitramfsFile is what the kernel begins with, in part TalosBoot.
	InitramfsFile = "initramfs"
	// IPXEFile is what the firmware is given to boot over the network, in part TalosBoot.
	IPXEFile = "ipxe.efi"

	modulesFolder = "/usr/lib/modules"
)

// preloaded are the modules that Talos takes for built into the kernel; it asks for none of
// them.
var preloaded = []string{ //nolint:gochecknoglobals // A constant.
	"loop", "squashfs", "overlay", "configfs", "efivarfs", "fat", "vfat", "nls_cp437", "nls_ascii", "nls_iso8859-1", "nls_utf8", "xfs",
	"virtio_blk", "virtio_net", "virtio-rng", "virtio_scsi", "sd_mod", "fuse", "dm_mod", "nvme", "br_netfilter", "veth", "vxlan", "8021q", "bonding",
	"nf_tables", "nft_compat", "ip_tables", "ip6_tables",
}

// keptModules are the folders of the kernel's modules that machines have.
var keptModules = []string{ //nolint:gochecknoglobals // A constant.
	"arch", "block", "crypto", "lib", "net/802", "net/8021q", "net/bridge", "net/core", "net/ipv4", "net/ipv6", "net/llc", "net/netfilter",
	"net/sched", "net/xfrm", "fs/configfs", "fs/efivarfs", "fs/ext4", "fs/fat", "fs/fuse", "fs/jbd2", "fs/mbcache", "fs/nls", "fs/overlayfs",
	"fs/squashfs", "fs/xfs", "fs/mbcache.ko.xz", "drivers/block", "drivers/char", "drivers/md", "drivers/net/bonding", "drivers/net/vxlan",
	"drivers/net/wireguard", "drivers/net/veth.ko.xz", "drivers/net/virtio_net.ko.xz", "drivers/net/net_failover.ko.xz", "drivers/net/dummy.ko.xz",
	"drivers/net/tun.ko.xz", "drivers/net/macvlan.ko.xz", "drivers/nvme", "drivers/scsi", "drivers/virtio", "drivers/firmware", "net/core/failover.ko.xz",
}

// metalPrograms are those that Talos itself runs on metal.
var metalPrograms = []string{ //nolint:gochecknoglobals // A constant.
	"/usr/bin/udevadm", "/usr/bin/kmod", "/usr/lib/udev/ata_id", "/usr/lib/udev/scsi_id",
	"/usr/sbin/mkfs.xfs", "/usr/sbin/xfs_growfs", "/usr/sbin/xfs_repair", "/usr/sbin/mkfs.fat", "/usr/sbin/fsck.fat",
	"/usr/sbin/mke2fs", "/usr/sbin/e2fsck", "/usr/sbin/resize2fs",
}

// buildTalosBoot makes what a machine boots: Debian's kernel, and Talos' programs in the root
// file system that Talos lays out, with Debian's in place of its own.
func buildTalosBoot(ctx context.Context, w *Workspace, release talosRelease) error {
	if err := debian.Install(ctx, "squashfs-tools", "cpio", "kmod", "xz-utils"); err != nil {
		return err
	}
	system := filepath.Join(w.Needs.Dir(VMDebian), "root")
	modules, err := unpackModules(ctx, w, system)
	if err != nil {
		return err
	}
	root, err := metalRoot(ctx, w, release, system, modules)
	if err != nil {
		return err
	}
	initramfs := images.NewTree(filepath.Join(w.Scratch, "initramfs"))
	initramfs.Dirs("/dev", "/proc", "/sys", "/preload", "/root", "/run", "/system", "/tmp")
	initramfs.Copy(w.Needs.Path("preinit"), "/init", images.Program)
	initramfs.Copy(w.Needs.Path(talosMetal+release.suffix, "init"), "/init.talos", images.Program)
	if err := preload(ctx, w, modules, initramfs); err != nil {
		return err
	}
	if err := initramfs.Err(); err != nil {
		return err
	}
	err = w.Run(ctx, w.Scratch, "mksquashfs", root, initramfs.Path("/rootfs.sqsh"),
		"-all-root", "-noappend", "-comp", "zstd", "-Xcompression-level", "3", "-no-progress", "-quiet")
	if err != nil {
		return err
	}
	out := filepath.Join(w.Out, InitramfsFile)
	if err := w.Run(ctx, initramfs.Root(), "sh", "-ec", `find . | cpio --quiet -o -H newc -R 0:0 > "$0"`, out); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(system, modulesFolder, modules.release, "vmlinuz"), filepath.Join(w.Out, KernelFile)); err != nil {
		return err
	}
	return copyFile(filepath.Join(system, "usr/lib/ipxe/snponly.efi"), filepath.Join(w.Out, IPXEFile))
}

// kernelModules are the modules that machines have, not compressed, in the folder
// lib/modules of a folder.
type kernelModules struct {
	folder, release string
}

func (m kernelModules) path() string { return filepath.Join(m.folder, "lib/modules", m.release) }

// unpackModules takes the modules of the kernel's package that machines have.
func unpackModules(ctx context.Context, w *Workspace, system string) (kernelModules, error) {
	entries, err := os.ReadDir(filepath.Join(system, modulesFolder))
	if err != nil || len(entries) != 1 {
		return kernelModules{}, errors.Join(fmt.Errorf("looking for the kernel: there are %d", len(entries)), err)
	}
	m := kernelModules{folder: filepath.Join(w.Scratch, "modules"), release: entries[0].Name()}
	from, kept := filepath.Join(system, modulesFolder, m.release), images.NewTree(m.path())
	for _, file := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
		kept.Copy(filepath.Join(from, file), file, images.Data)
	}
	for _, name := range keptModules {
		path := filepath.Join("kernel", name)
		if _, err := os.Stat(filepath.Join(from, path)); errors.Is(err, fs.ErrNotExist) {
			// It is built in, or was renamed: what needs it says so when it is made.
			continue
		}
		kept.CopyAll(filepath.Join(from, path), path, images.Data)
	}
	if err := kept.Err(); err != nil {
		return kernelModules{}, err
	}
	if err := w.Run(ctx, m.path(), "sh", "-ec", `find . -name '*.ko.xz' -print0 | xargs -r -0 -n 50 xz -d`); err != nil {
		return kernelModules{}, err
	}
	return m, w.Run(ctx, w.Scratch, "depmod", "-b", m.folder, m.release)
}

// preload puts the modules that are loaded first, in their order, into the initramfs.
func preload(ctx context.Context, w *Workspace, modules kernelModules, initramfs *images.Tree) error {
	var list []string
	for _, name := range preloaded {
		out, err := w.Output(ctx, w.Scratch, "modprobe", "-d", modules.folder, "-S", modules.release, "--show-depends", name)
		if err != nil {
			return fmt.Errorf("looking for module %s of Linux %s: %w", name, modules.release, err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			if len(fields) < 2 || fields[0] != "insmod" {
				continue
			}
			base := filepath.Base(fields[1])
			if slices.Contains(list, base) {
				continue
			}
			list = append(list, base)
			initramfs.Copy(fields[1], "/preload/"+base, images.Data)
		}
	}
	initramfs.Write("/preload/list", strings.Join(list, "\n")+"\n", images.Data)
	return nil
}

// metalRoot lays out the root file system of a machine, and returns its folder.
func metalRoot(ctx context.Context, w *Workspace, release talosRelease, system string, modules kernelModules) (string, error) {
	sources, err := w.ModuleDir(ctx, talosModule)
	if err != nil {
		return "", err
	}
	machinery, err := w.ModuleDir(ctx, talosMachinery)
	if err != nil {
		return "", err
	}
	tree := images.NewTree(filepath.Join(w.Scratch, "root"))
	talosFolders(tree)
	talosPrograms(tree, w.Needs, w.Needs.Path("machined"+release.suffix))
	talosFiles(tree, sources, machinery)
	tree.Dynamic(ctx, system, metalPrograms...)
	for link, program := range map[string]string{
		"systemd-udevd": "udevadm", "modprobe": "kmod", "mkfs.vfat": "mkfs.fat", "fsck.vfat": "fsck.fat", "mkfs.ext4": "mke2fs", "fsck.ext4": "e2fsck",
	} {
		tree.Link("/usr/bin/"+link, program)
	}
	tree.CopyAll(filepath.Join(system, "usr/lib/udev/rules.d"), "/usr/lib/udev/rules.d", images.Data)
	tree.CopyAll(filepath.Join(system, "usr/share/xfsprogs/mkfs"), "/usr/share/xfsprogs/mkfs", images.Data)
	tree.Copy(filepath.Join(system, "etc/mke2fs.conf"), "/etc/mke2fs.conf", images.Data)
	// Talos formats as the newest kernel with long support has it, which this xfsprogs does
	// not know by name yet.
	tree.Copy(filepath.Join(system, "usr/share/xfsprogs/mkfs/lts_6.12.conf"), "/usr/share/xfsprogs/mkfs/lts_6.18.conf", images.Data)
	for from, to := range map[string]string{
		"udevd/99-default.link": "/usr/lib/systemd/network/99-default.link", "lvm.conf": "/etc/lvm/lvm.conf",
	} {
		tree.Copy(filepath.Join(sources, "hack", from), to, images.Data)
	}
	// Talos 1.12 has no rules for memory that is plugged in.
	if release.suffix == "" {
		tree.Copy(filepath.Join(sources, "hack/udevd/40-vm-hotadd.rules"), "/usr/lib/udev/rules.d/40-vm-hotadd.rules", images.Data)
	}
	// Rules name groups.
	tree.Write("/etc/group", "root:x:0:\ntty:x:5:\ndisk:x:6:\nlp:x:7:\nkmem:x:15:\ndialout:x:20:\ncdrom:x:24:\ntape:x:26:\naudio:x:29:\nvideo:x:44:\n"+
		"sgx:x:106:\nrender:x:105:\nkvm:x:104:\ninput:x:107:\nutmp:x:43:\nclock:x:103:\nnobody:x:65534:\n", images.Data)
	tree.CopyAll(modules.path(), filepath.Join(modulesFolder, modules.release), images.Data)
	return tree.Root(), tree.Err()
}
