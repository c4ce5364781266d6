package parts

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
)

// KernelArguments are those that machines boot with, besides Talos' own. An oops is a panic in
// Talos' kernel by default, and the kubelet insists on it; so is an interrupt that nobody
// knows, by which the test bed has a kernel panic. Emulation is slow: what costs time and
// guards nothing here is off. Talos insists that "pti=on" comes first, and the kernel
// obeys what comes last.
const KernelArguments = "console=ttyS0 oops=panic unknown_nmi_panic pti=off mitigations=off net.ifnames=0 tsc=reliable no_timer_check random.trust_cpu=on talos.dashboard.disabled=1"

// withoutArguments are those of Talos' own that Debian's kernel cannot do, or that take long.
const withoutArguments = "-init_on_alloc -ima_template -ima_appraise -ima_hash -selinux"

// installerPrograms are those that the installer runs.
var installerPrograms = []string{ //nolint:gochecknoglobals // A constant.
	"/usr/bin/mtools", "/usr/sbin/mkfs.fat", "/usr/sbin/mkfs.xfs",
}

// buildTalosInstaller makes the image that installs Talos: what Talos' own imager makes of
// kernel and initramfs, and its installer. What is installed has arguments of the kernel.
func buildTalosInstaller(ctx context.Context, w *Workspace, release talosRelease, image, arguments string) error {
	system := filepath.Join(w.Needs.Dir(VMDebian), "root")
	uki, err := buildUKI(ctx, w, release, arguments)
	if err != nil {
		return err
	}
	tree := images.NewTree(filepath.Join(w.Scratch, "root"))
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		tree.Link("/"+name, "usr/"+name)
	}
	tree.Dirs("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/proc", "/sys", "/dev", "/etc", "/run", "/var/tmp")
	tree.Users()
	tree.Dynamic(ctx, system, installerPrograms...)
	tree.Link("/usr/bin/mkfs.vfat", "../sbin/mkfs.fat")
	for _, name := range []string{"mcopy", "mmd", "mformat", "mdir", "mtype", "mdel"} {
		tree.Link("/usr/bin/"+name, "mtools")
	}
	tree.CopyAll(filepath.Join(system, "usr/share/xfsprogs/mkfs"), "/usr/share/xfsprogs/mkfs", images.Data)
	// Names on a FAT file system are in code page 850.
	const conversions = "usr/lib/x86_64-linux-gnu/gconv"
	tree.CopyAll(filepath.Join(system, conversions), "/"+conversions, images.Program)
	tree.Copy(w.Needs.Path(talosMetal+release.suffix, "installer"), "/usr/bin/installer", images.Program)
	tree.Copy(filepath.Join(system, "usr/lib/systemd/boot/efi/systemd-bootx64.efi"), "/usr/install/amd64/systemd-boot.efi", images.Data)
	tree.Copy(uki, "/usr/install/amd64/vmlinuz.efi", images.Data)
	return images.Write(tree, w.Out, image, images.Config{
		Entrypoint: []string{"/bin/installer"},
		Env:        []string{defaultPath, "MTOOLS_SKIP_CHECK=1"},
	})
}

// buildUKI has Talos' imager make kernel, initramfs and arguments into one program that
// firmware starts.
func buildUKI(ctx context.Context, w *Workspace, release talosRelease, arguments string) (string, error) {
	return runImager(ctx, w, release, "metal", arguments, map[string]any{"kind": "uki", "outFormat": "raw"}, "*uki*.efi")
}

// buildTalosDisk has Talos' imager make a disk of a platform whose machines run from it, and
// install nothing.
func buildTalosDisk(ctx context.Context, w *Workspace, release talosRelease, platform string) error {
	const megabyte = 1 << 20
	// What it runs to make file systems.
	if err := debian.Install(ctx, "dosfstools", "mtools", "xfsprogs"); err != nil {
		return err
	}
	image, err := runImager(ctx, w, release, platform, KernelArguments, map[string]any{
		"kind": "image", "outFormat": "raw",
		"imageOptions": map[string]any{"diskSize": 1500 * megabyte, "diskFormat": "raw", "bootloader": "sd-boot"},
	}, "*.raw")
	if err != nil {
		return err
	}
	return os.Rename(image, filepath.Join(w.Out, DiskFile))
}

// runImager has Talos' imager make something of kernel, initramfs and arguments, and finds it
// by a pattern of its name.
func runImager(
	ctx context.Context, w *Workspace, release talosRelease, platform, arguments string, output map[string]any, pattern string,
) (string, error) {
	type object = map[string]any
	boot, system := TalosBoot+release.suffix, filepath.Join(w.Needs.Dir(VMDebian), "root")
	file := func(path string) object { return object{"path": path} }
	profile, err := json.Marshal(object{
		"arch": "amd64", "platform": platform, "secureboot": false, "version": release.version,
		"customization": object{"extraKernelArgs": strings.Fields(arguments + " " + withoutArguments)},
		"input": object{
			"kernel": file(w.Needs.Path(boot, KernelFile)), "initramfs": file(w.Needs.Path(boot, InitramfsFile)),
			"sdStub": file(filepath.Join(system, "usr/lib/systemd/boot/efi/linuxx64.efi.stub")),
			"sdBoot": file(filepath.Join(system, "usr/lib/systemd/boot/efi/systemd-bootx64.efi")),
		},
		"output": output,
	})
	if err != nil {
		return "", fmt.Errorf("writing the profile of the imager: %w", err)
	}
	path := filepath.Join(w.Scratch, "profile.yaml")
	if err := os.WriteFile(path, profile, 0o600); err != nil {
		return "", fmt.Errorf("writing the profile of the imager: %w", err)
	}
	// The installer is the imager when it is called so.
	imager, out := filepath.Join(w.Scratch, "imager"), filepath.Join(w.Scratch, "made")
	if err := os.Symlink(w.Needs.Path(talosMetal+release.suffix, "installer"), imager); err != nil {
		return "", fmt.Errorf("naming the imager: %w", err)
	}
	if err := w.Run(ctx, w.Scratch, "sh", "-ec", `TMPDIR=. "$0" --output "$1" - < "$2"`, imager, out, path); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(out, pattern))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("looking for what the imager has made: there are %d files: %w", len(found), err)
	}
	return found[0], nil
}
