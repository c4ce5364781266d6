package parts

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

const (
	talosModule    = "github.com/siderolabs/talos"
	talosMachinery = talosModule + "/pkg/machinery"
	talosMachined  = talosModule + "/internal/app/machined"

	// scoreFile and scoreLine are where Talos passes OOM scores on to the
	// kernel. A machine without CAP_SYS_RESOURCE refuses negative ones, and
	// Talos takes that for fatal.
	scoreFile    = "internal/app/machined/pkg/system/runner/runner.go"
	scoreLine    = "args.OOMScoreAdj = score"
	scoreClamped = "args.OOMScoreAdj = max(score, 0)"
)

// talosRelease is a release of Talos that nodes run.
type talosRelease struct {
	// suffix ends the names of its parts.
	suffix string
	// version is its name, and module its wrapper module.
	version, module string
	// etcd and pause are the tags under which it asks for these images.
	etcd, pause string
}

func talos() talosRelease {
	return talosRelease{version: TalosVersion, module: "talos", etcd: TalosEtcdVersion, pause: TalosPauseVersion}
}

func previousTalos() talosRelease {
	return talosRelease{suffix: previous, version: PreviousTalosVersion, module: "talos" + previous, etcd: "v3.6.8", pause: "3.10"}
}

// talosPart is Talos' init with all that it runs in the node itself.
func talosPart(traits machine.Traits, release talosRelease) Part {
	clamp := "unchanged"
	if !traits.SysResource {
		clamp = "no negative OOM scores"
	}
	return Part{
		Name:    "machined" + release.suffix,
		Version: release.version,
		Module:  release.module,
		Tags:    []string{"tcell_minimal", "grpcnotrace"},
		LDFlags: "-X golang.zx2c4.com/wireguard/ipc.socketDirectory=/system/wireguard-sock",
		Env:     []string{"GOAMD64=v2"},
		Inputs:  []string{clamp},
		Build: func(ctx context.Context, w *Workspace) error {
			module := w.Module
			if !traits.SysResource {
				var err error
				if module, err = editedModule(ctx, w, talosModule, scoreFile, scoreLine, scoreClamped); err != nil {
					return err
				}
			}
			return w.GoBuild(ctx, module, talosMachined, "machined"+release.suffix)
		},
	}
}

// editedModule makes a wrapper module out of that of a part. In one of its modules a text
// of one file is replaced; everything else in it is as it was.
func editedModule(ctx context.Context, w *Workspace, name, file, old, replacement string) (string, error) {
	sources, err := w.ModuleDir(ctx, name)
	if err != nil {
		return "", err
	}
	module := filepath.Join(w.Scratch, "module")
	copied := filepath.Join(module, "edited")
	if err := os.CopyFS(copied, os.DirFS(sources)); err != nil {
		return "", fmt.Errorf("copying the sources of %s: %w", name, err)
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		if err := copyFile(filepath.Join(w.Module, file), filepath.Join(module, file)); err != nil {
			return "", err
		}
	}
	if err := replaceOnce(filepath.Join(copied, file), old, replacement); err != nil {
		return "", fmt.Errorf("editing the sources of %s: %w", name, err)
	}
	return module, w.Run(ctx, module, "go", "mod", "edit", "-replace="+name+"=./edited")
}

// replaceOnce replaces a text in a file, which has it once.
func replaceOnce(file, old, replacement string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if found := bytes.Count(text, []byte(old)); found != 1 {
		return fmt.Errorf("%s has %q %d times", file, old, found)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		return err
	}
	return os.WriteFile(file, bytes.Replace(text, []byte(old), []byte(replacement), 1), 0o644)
}

// talosImagePart is the image of a whole Talos node.
func talosImagePart(release talosRelease) Part {
	return Part{
		Name:    "talos-image" + release.suffix,
		Version: release.version,
		Module:  release.module,
		Needs:   []string{"machined" + release.suffix, "containerd", "runc", "cni", "flannel-cni"},
		Inputs:  []string{"1", talosRepository + release.version},
		Build: func(ctx context.Context, w *Workspace) error {
			return buildTalosImage(ctx, w, release)
		},
	}
}

// buildTalosImage lays the root file system of a Talos node in a container out
// as the official image has it, without what only runs on metal.
func buildTalosImage(ctx context.Context, w *Workspace, release talosRelease) error {
	sources, err := w.ModuleDir(ctx, talosModule)
	if err != nil {
		return err
	}
	machinery, err := w.ModuleDir(ctx, talosMachinery)
	if err != nil {
		return err
	}
	tree := images.NewTree(filepath.Join(w.Scratch, "root"))
	talosFolders(tree)
	talosPrograms(tree, w.Needs, w.Needs.Path("machined"+release.suffix))
	talosFiles(tree, sources, machinery)
	tree.Write("/usr/etc/in-container", "true\n", images.Data)
	return images.Write(tree, w.Out, talosRepository+release.version, images.Config{
		Entrypoint: []string{"/sbin/init"},
		Env:        []string{defaultPath},
	})
}

func talosFolders(tree *images.Tree) {
	tree.Dirs("/usr/bin", "/usr/lib", "/usr/share/spdx", "/usr/share/zoneinfo/Etc", "/usr/etc", "/usr/local/share",
		"/usr/lib/firmware", "/usr/lib/modules", "/usr/libexec/kubernetes", "/usr/local/lib/kubelet/credentialproviders",
		"/boot/EFI", "/dev", "/proc", "/sys", "/run", "/var", "/root", "/home", "/mnt", "/system/state", "/opt", "/.extra",
		"/opt/containerd/bin", "/opt/containerd/lib",
		"/etc/cri/conf.d/hosts", "/etc/kubernetes/manifests", "/etc/cni/net.d", "/etc/ssl/certs", "/etc/iscsi", "/etc/nvme",
		"/etc/selinux/targeted/contexts/files")
	tree.Dir("/tmp", 0o777|fs.ModeSticky)
	tree.Link("/bin", "usr/bin")
	tree.Link("/sbin", "usr/bin")
	tree.Link("/usr/sbin", "bin")
	tree.Link("/lib", "usr/lib")
	tree.Link("/lib64", "usr/lib")
	tree.Link("/usr/lib64", "lib")
}

func talosPrograms(tree *images.Tree, needs Built, machined string) {
	tree.Copy(machined, "/usr/bin/init", images.Program)
	for _, name := range []string{"poweroff", "shutdown", "reboot", "dashboard", "sandboxd"} {
		tree.Link("/usr/bin/"+name, "init")
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2"} {
		tree.Copy(needs.Path("containerd", name), "/usr/bin/"+name, images.Program)
	}
	tree.Copy(needs.Path("runc"), "/usr/bin/runc", images.Program)
	for _, part := range []string{"cni", "flannel-cni"} {
		tree.CopyAll(needs.Dir(part), "/opt/cni/bin", images.Program)
	}
}

func talosFiles(tree *images.Tree, sources, machinery string) {
	tree.Copy(filepath.Join(sources, "hack/containerd.toml"), "/etc/containerd/config.toml", images.Data)
	tree.Copy(filepath.Join(sources, "hack/cri-containerd.toml"), "/etc/cri/containerd.toml", images.Data)
	tree.Copy(filepath.Join(sources, "hack/cri-plugin.part"), "/etc/cri/conf.d/00-base.part", images.Data)
	tree.Copy(filepath.Join(sources, "hack/nfsmount.conf"), "/etc/nfsmount.conf", images.Data)
	tree.Copy(filepath.Join(sources, "hack/zoneinfo/Etc/UTC"), "/usr/share/zoneinfo/Etc/UTC", images.Data)
	tree.Copy(filepath.Join(machinery, "version/os-release"), "/etc/os-release", images.Data)
	tree.Link("/etc/localtime", "/usr/share/zoneinfo/Etc/UTC")
	// Talos mounts its own files over these.
	for _, path := range []string{
		"extensions.yaml", "resolv.conf", "hosts", "hostname", "machine-id", "iscsi/initiatorname.iscsi", "nvme/hostid", "nvme/hostnqn",
		"cri/conf.d/cri.toml", "cri/conf.d/01-registries.part", "cri/conf.d/20-customization.part", "cri/conf.d/base-spec.json",
		"selinux/targeted/contexts/files/file_contexts",
	} {
		tree.Write("/etc/"+path, "", images.Data)
	}
	tree.Copy("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt", images.Data)
	tree.Link("/etc/ssl/certs/ca-certificates", "ca-certificates.crt")
	for _, path := range []string{"/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"} {
		tree.Link(path, "/etc/ssl")
	}
	tree.Users()
}
