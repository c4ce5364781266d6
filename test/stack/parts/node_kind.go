package parts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

const (
	// KindNodeImage is the image of part "kind-node-image".
	KindNodeImage = "registry.local/node:" + KubernetesVersion

	kindModule = "sigs.k8s.io/kind"
	// kindSandbox is the image that kind's containerd configuration names for
	// holding a pod's namespaces; kubeadm names another.
	kindSandbox = "registry.k8s.io/pause:3.10"
	// kubeletDropIn lets kubelet start on version 1 of control groups, which is
	// harmless on version 2.
	kubeletDropIn = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n"
)

// kindNodePart is the image of kind's nodes.
func kindNodePart() Part {
	scores := "oom scores kept"
	if !machine.Look().SysResource {
		scores = "no oom scores"
	}
	return Part{
		Name:    "kind-node-image",
		Version: KubernetesVersion,
		Module:  "kind",
		Needs: []string{
			debianPart, "containerd", "runc", "cni", "crictl", "kubeadm", "kubelet", "kubectl", "kindnetd", "local-path-provisioner",
			"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd", "coredns", "pause",
		},
		Inputs: []string{"2", KindNodeImage, scores},
		Build:  buildKindNode,
	}
}

// buildKindNode makes what "kind build node-image" makes, with programs built
// here and a base that is made of Debian's packages and kind's own files.
func buildKindNode(ctx context.Context, w *Workspace) error {
	sources, err := w.ModuleDir(ctx, kindModule)
	if err != nil {
		return err
	}
	root := filepath.Join(w.Scratch, "root")
	if err := w.Run(ctx, w.Scratch, "cp", "-a", debianRoot(w.Needs), root); err != nil {
		return err
	}
	constants, err := stringConstants(filepath.Join(sources, "pkg/build/nodeimage"))
	if err != nil {
		return err
	}
	tree := images.NewTree(root)
	kindBase(tree, filepath.Join(sources, "images/base/files"))
	kindPrograms(tree, w.Needs)
	tree.Write("/kind/version", KubernetesVersion, images.Data)
	kindNetwork(tree, constants["defaultCNIManifest"])
	tree.Write("/kind/manifests/default-storage.yaml", constants["defaultStorageManifest"], images.Data)
	if err := kindServices(ctx, w, root); err != nil {
		return err
	}
	if err := kindContainerSpec(ctx, w, tree); err != nil {
		return err
	}
	if err := kindContents(ctx, w, tree, constants); err != nil {
		return err
	}
	return images.Write(tree, w.Out, KindNodeImage, images.Config{
		Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"},
		Env:        []string{"container=docker", defaultPath},
		StopSignal: "SIGRTMIN+3",
	})
}

// kindBase puts kind's own files over Debian's and takes out the units that
// have no business in a container.
func kindBase(tree *images.Tree, files string) {
	tree.CopyAll(filepath.Join(files, "etc"), "/etc", images.Data)
	tree.CopyAll(filepath.Join(files, "kind/bin"), "/kind/bin", images.Program)
	tree.CopyAll(filepath.Join(files, "usr/local/bin"), "/usr/local/bin", images.Program)
	tree.Dirs("/kind/manifests", "/etc/kubernetes/manifests", "/opt/cni/bin")
	tree.Remove(
		"/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
		"/lib/systemd/system/multi-user.target.wants/*", "/lib/systemd/system/local-fs.target.wants/*",
		"/lib/systemd/system/basic.target.wants/*", "/etc/systemd/system/*.wants/*",
		"/lib/systemd/system/sockets.target.wants/*udev*", "/lib/systemd/system/sockets.target.wants/*initctl*",
	)
	tree.Append("/etc/systemd/journald.conf", "ReadKMsg=no\n")
	tree.Link("/sbin/init", "/usr/lib/systemd/systemd")
	// What machines without CAP_SYS_RESOURCE or with version 1 of control groups
	// need; it changes nothing on others.
	tree.Replace("/etc/containerd/config.toml", "restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
	tree.Write("/etc/kubernetes/kubelet.conf.d/10-cgroup-v1.conf", kubeletDropIn, images.Data)
	tree.Replace("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=", "KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d ")
}

func kindPrograms(tree *images.Tree, needs Built) {
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		tree.Copy(needs.Path("containerd", name), "/usr/local/bin/"+name, images.Program)
	}
	tree.Copy(needs.Path("crictl"), "/usr/local/bin/crictl", images.Program)
	tree.Copy(needs.Path("runc"), "/usr/local/sbin/runc", images.Program)
	for _, name := range []string{"kubeadm", "kubelet", "kubectl"} {
		tree.Copy(needs.Path(name), "/usr/bin/"+name, images.Program)
	}
	for _, name := range []string{"host-local", "loopback", "ptp", "portmap"} {
		tree.Copy(needs.Path("cni", name), "/opt/cni/bin/"+name, images.Program)
	}
}

// kindNetwork writes the manifest of kind's network. The daemon of the test bed reads its node
// by name.
func kindNetwork(tree *images.Tree, manifest string) {
	const path = "/kind/manifests/default-cni.yaml"
	tree.Write(path, manifest, images.Data)
	tree.Replace(path, "      - namespaces\n    verbs:\n", "      - namespaces\n    verbs:\n      - get\n")
}

func kindServices(ctx context.Context, w *Workspace, root string) error {
	err := w.Run(ctx, w.Scratch, "chroot", root, "systemctl", "enable", "kubelet.service", "containerd.service", "undo-mount-hacks.service")
	if err != nil {
		return err
	}
	return w.Run(ctx, w.Scratch, "chroot", root, "systemctl", "mask", "systemd-binfmt.service")
}

// kindContainerSpec writes what containerd starts every container with: its own
// default, plus kind's hook, minus the limits.
func kindContainerSpec(ctx context.Context, w *Workspace, tree *images.Tree) error {
	out, err := w.Output(ctx, w.Scratch, w.Needs.Path("containerd", "ctr"), "oci", "spec")
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(out, &spec); err != nil {
		return fmt.Errorf("reading the default description of containers: %w", err)
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return errors.New("reading the default description of containers: it has no process")
	}
	delete(process, "rlimits")
	if !machine.Look().SysResource {
		delete(process, "oomScoreAdj")
	}
	hook := map[string]any{"path": "/kind/bin/mount-product-files.sh"}
	spec["hooks"] = map[string]any{"createContainer": []any{hook}}
	content, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the description of containers: %w", err)
	}
	tree.Write("/etc/containerd/cri-base.json", string(content), images.Data)
	return tree.Err()
}

// kindContents puts the images that the node starts with into its containerd.
func kindContents(ctx context.Context, w *Workspace, tree *images.Tree, constants map[string]string) error {
	folder := filepath.Join(w.Scratch, "images")
	maker := &imageMaker{w: &Workspace{Out: folder, Scratch: w.Scratch}}
	required, err := kubeadmImages(ctx, w)
	if err != nil {
		return err
	}
	for _, name := range append(required, kindSandbox) {
		kubernetesImage(ctx, maker, w.Needs, name)
	}
	maker.static(constants["storageProvisionerImage"], w.Needs.Path("local-path-provisioner"), binDir)
	maker.make(constants["kindnetdImage"], filepath.Join(binDir, "kindnetd"), func(tree *images.Tree) {
		tree.Copy(w.Needs.Path("kindnetd"), filepath.Join(binDir, "kindnetd"), images.Program)
		netfilter(ctx, tree, debianRoot(w.Needs))
		tree.Dynamic(ctx, debianRoot(w.Needs), "/usr/sbin/ipset")
	})
	maker.make(constants["storageHelperImage"], "/bin/sh", func(tree *images.Tree) {
		tree.Copy(filepath.Join(debianRoot(w.Needs), "usr/bin/busybox"), "/usr/bin/busybox", images.Program)
		for _, name := range []string{"sh", "mkdir", "rm", "ls", "cat", "sleep", "wget", "nslookup", "nc", "httpd", "echo", "id"} {
			tree.Link("/bin/"+name, "/usr/bin/busybox")
		}
	})
	if maker.err != nil {
		return maker.err
	}
	all, err := OpenImages(folder)
	if err != nil {
		return err
	}
	store := images.Store{Programs: w.Needs.Dir("containerd"), Root: tree.Path("/var/lib/containerd"), Scratch: w.Scratch}
	return store.Import(ctx, all)
}

// kubeadmImages lists the images that kubeadm wants for its version.
func kubeadmImages(ctx context.Context, w *Workspace) ([]string, error) {
	out, err := w.Output(ctx, w.Scratch, w.Needs.Path("kubeadm"), "config", "images", "list", "--kubernetes-version", KubernetesVersion)
	if err != nil {
		return nil, err
	}
	return strings.Fields(string(out)), nil
}

// kubernetesImage makes one of Kubernetes' own images.
func kubernetesImage(ctx context.Context, maker *imageMaker, needs Built, name string) {
	repository, _, _ := strings.Cut(name, ":")
	program := filepath.Base(repository)
	switch program {
	case "kube-proxy":
		maker.make(name, binDir+"/kube-proxy", func(tree *images.Tree) {
			tree.Copy(needs.Path("kube-proxy"), binDir+"/kube-proxy", images.Program)
			tree.Dynamic(ctx, debianRoot(needs), "/usr/sbin/conntrack")
			netfilter(ctx, tree, debianRoot(needs))
		})
	case "pause", "coredns":
		maker.static(name, needs.Path(program), "/")
	default:
		maker.static(name, needs.Path(program), binDir)
	}
}
