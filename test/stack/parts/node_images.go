package parts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
)

const (
	// TalosImage is the image of part "talos-image".
	TalosImage = talosRepository + TalosVersion
	// PreviousTalosImage is the part of the image of PreviousTalosVersion.
	PreviousTalosImage = "talos-image" + previous
	// PreviousTalosImages is the part with the images that nodes of PreviousTalosVersion pull,
	// besides those of PreviousTalosNodeImages.
	PreviousTalosImages = "talos-images" + previous
	// CertManagerImage is the image of part "cert-manager-image".
	CertManagerImage = "registry.local/cert-manager-controllers:" + CertManagerVersion
	// PauseImage is an image that every Talos node can run.
	PauseImage = kubernetesRegistry + "pause:" + TalosPauseVersion
	// TalosNodeImages is the part with the images that Talos nodes pull.
	TalosNodeImages = "talos-node-images"
	// TalosDefaultImages is the part with the images that they pull besides for what Talos
	// brings to a cluster by default: its network of Pods, kube-proxy and CoreDNS.
	TalosDefaultImages = "talos-default-images"
	// PreviousTalosNodeImages is the part with those that differ for
	// PreviousKubernetesVersion.
	PreviousTalosNodeImages = TalosNodeImages + previous

	talosRepository    = "registry.local/talos:"
	kubernetesRegistry = "registry.k8s.io/"

	// flannelTag and coreDNSTag are those under which TalosVersion asks for them.
	flannelTag   = "0.28.8"
	coreDNSTag   = "v1.14.6"
	flannelCloud = `	_ "github.com/flannel-io/flannel/pkg/backend/tencentvpc"` + "\n"

	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	binDir      = "/usr/local/bin"
	// nonRoot is the user of images that need no rights.
	nonRoot = "65532:65532"
)

// nodeImages are the images of nodes and of what runs on them.
func nodeImages() []Part {
	return []Part{
		talosImagePart(talos()),
		talosImagePart(previousTalos()),
		{
			Name:    PreviousTalosImages,
			Version: PreviousTalosVersion,
			Needs:   []string{"etcd", "pause"},
			Inputs:  []string{"1", previousTalos().etcd, previousTalos().pause},
			Build: func(_ context.Context, w *Workspace) error {
				maker := &imageMaker{w: w}
				maker.talos(previousTalos())
				return maker.err
			},
		},
		{
			// Each folder of this part is an image that Talos nodes pull.
			Name:    TalosNodeImages,
			Version: KubernetesVersion,
			Needs:   []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "etcd", "pause", debianPart},
			Inputs:  []string{"1", TalosEtcdVersion, TalosPauseVersion},
			Build:   buildTalosNodeImages,
		},
		{
			Name:    TalosDefaultImages,
			Version: KubernetesVersion,
			Needs:   []string{"flannel", "kube-proxy", "coredns", debianPart},
			Inputs:  []string{"1", flannelTag, coreDNSTag},
			Build:   buildTalosDefaultImages,
		},
		{
			// Those of an older Kubernetes; etcd and pause are the same.
			Name:    PreviousTalosNodeImages,
			Version: PreviousKubernetesVersion,
			Needs: []string{
				"kube-apiserver" + previous, "kube-controller-manager" + previous, "kube-scheduler" + previous, "kubelet" + previous, debianPart,
			},
			Inputs: []string{"1"},
			Build: func(ctx context.Context, w *Workspace) error {
				maker := &imageMaker{w: w}
				maker.kubernetes(ctx, PreviousKubernetesVersion, previous)
				return maker.err
			},
		},
		programImage("capi-core-image", ClusterAPIVersion, CoreImage, "capi-core", "manager"),
		programImage("cert-manager-image", CertManagerVersion, CertManagerImage, "cert-manager-controllers", "cert-manager-controllers"),
		kindNodePart(),
	}
}

// programImage is an image of one static program of a part, which runs without
// rights.
func programImage(name, version, image, part, binary string) Part {
	return Part{
		Name:    name,
		Version: version,
		Needs:   []string{part},
		Inputs:  []string{"1", image, binary},
		Build: func(_ context.Context, w *Workspace) error {
			return WriteProgramImage(w.Needs.Path(part, binary), filepath.Join(w.Scratch, "root"), w.Out, image)
		},
	}
}

// WriteProgramImage makes an image of a static program that needs no rights, and of those
// that it runs itself (Built.Beside). It is laid out in the folder root and kept in the
// folder out.
func WriteProgramImage(binary, root, out, name string, beside ...string) error {
	tree := images.NewTree(root)
	tree.Users()
	path := "/" + filepath.Base(binary)
	tree.Copy(binary, path, images.Program)
	for _, program := range beside {
		tree.Copy(program, etcdFolder+"/"+filepath.Base(program), images.Program)
	}
	return images.Write(tree, out, name, images.Config{
		Entrypoint: []string{path},
		Env:        []string{defaultPath},
		User:       nonRoot,
		WorkingDir: "/",
	})
}

func buildTalosNodeImages(ctx context.Context, w *Workspace) error {
	maker := &imageMaker{w: w}
	maker.kubernetes(ctx, KubernetesVersion, "")
	maker.talos(talos())
	return maker.err
}

func buildTalosDefaultImages(ctx context.Context, w *Workspace) error {
	maker, system := &imageMaker{w: w}, debianRoot(w.Needs)
	const flannelFolder = "/opt/bin"
	maker.make("ghcr.io/siderolabs/flannel:"+flannelTag, flannelFolder+"/flanneld", func(tree *images.Tree) {
		tree.Copy(w.Needs.Path("flannel", "flanneld"), flannelFolder+"/flanneld", images.Program)
		tree.Dynamic(ctx, system, "/usr/bin/cp")
		netfilter(ctx, tree, system)
	})
	kubernetesImage(ctx, maker, w.Needs, kubernetesRegistry+"kube-proxy:"+KubernetesVersion)
	kubernetesImage(ctx, maker, w.Needs, kubernetesRegistry+"coredns/coredns:"+coreDNSTag)
	return maker.err
}

// buildFlannel builds flannel without what it has for one cloud, the module of which is not
// to be had.
func buildFlannel(ctx context.Context, w *Workspace) error {
	if err := debian.Install(ctx, compiler()...); err != nil {
		return err
	}
	const name = "github.com/flannel-io/flannel"
	module, err := editedModule(ctx, w, name, "main.go", flannelCloud, "")
	if err != nil {
		return err
	}
	return w.GoBuild(ctx, module, name, "flanneld")
}

// talos makes the images that a release of Talos asks for by tags of its own.
func (m *imageMaker) talos(release talosRelease) {
	m.static(kubernetesRegistry+"etcd:"+release.etcd, m.w.Needs.Path("etcd"), binDir)
	m.static(kubernetesRegistry+"pause:"+release.pause, m.w.Needs.Path("pause"), "/")
}

// kubernetes makes the images of one version of Kubernetes. The names of the
// parts that they are made of end in suffix.
func (m *imageMaker) kubernetes(ctx context.Context, version, suffix string) {
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		m.static(kubernetesRegistry+name+":"+version, m.w.Needs.Path(name+suffix, name), binDir)
	}
	m.make("ghcr.io/siderolabs/kubelet:"+version, binDir+"/kubelet", func(tree *images.Tree) {
		kubeletTree(ctx, tree, m.w.Needs, m.w.Needs.Path("kubelet"+suffix, "kubelet"))
	})
}

// kubeletTree has kubelet and the programs that it calls.
func kubeletTree(ctx context.Context, tree *images.Tree, needs Built, kubelet string) {
	system := debianRoot(needs)
	tree.Dirs("/usr/sbin", "/usr/bin", "/usr/lib", "/usr/lib64", "/var/run", "/dev", "/proc", "/sys")
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		tree.Link("/"+name, "usr/"+name)
	}
	tree.Link("/run", "/var/run")
	tree.Dirs("/usr/lib/modules")
	tree.Copy(kubelet, binDir+"/kubelet", images.Program)
	tree.Dynamic(ctx, system, "/usr/bin/mount", "/usr/bin/umount", "/usr/bin/nsenter", "/usr/bin/findmnt", "/usr/sbin/blkid",
		"/usr/bin/cp", "/usr/bin/ls", "/usr/sbin/conntrack")
	netfilter(ctx, tree, system)
}

// netfilter adds iptables and nft. Without the plugins of iptables Services are
// silently dead.
func netfilter(ctx context.Context, tree *images.Tree, system string) {
	tree.Dynamic(ctx, system, "/usr/sbin/nft", "/usr/sbin/xtables-nft-multi")
	plugins, err := filepath.Glob(filepath.Join(system, "usr/lib/*/xtables/*.so"))
	if err != nil {
		return
	}
	for _, plugin := range plugins {
		tree.Dynamic(ctx, system, strings.TrimPrefix(plugin, system))
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			tree.Link("/usr/sbin/"+family+suffix, "xtables-nft-multi")
		}
	}
}

// imageMaker makes images into folders of a workspace and keeps the first
// error.
type imageMaker struct {
	w   *Workspace
	err error
}

// static makes an image of one static program in a folder of the image.
func (m *imageMaker) static(name, binary, folder string) {
	path := filepath.Join(folder, filepath.Base(binary))
	m.make(name, path, func(tree *images.Tree) { tree.Copy(binary, path, images.Program) })
}

func (m *imageMaker) make(name, entrypoint string, fill func(*images.Tree)) {
	if m.err != nil {
		return
	}
	folder := strings.NewReplacer("/", "_", ":", "_").Replace(name)
	root := filepath.Join(m.w.Scratch, folder)
	tree := images.NewTree(root)
	fill(tree)
	tree.Users()
	m.err = images.Write(tree, filepath.Join(m.w.Out, folder), name, images.Config{
		Entrypoint: []string{entrypoint},
		Env:        []string{defaultPath},
		WorkingDir: "/",
	})
	if err := os.RemoveAll(root); err != nil && m.err == nil {
		m.err = fmt.Errorf("removing what image %s was made of: %w", name, err)
	}
}

// OpenImages opens all images of a part that has a folder for each.
func OpenImages(part string) ([]*images.Image, error) {
	entries, err := os.ReadDir(part)
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	var all []*images.Image
	for _, entry := range entries {
		image, err := images.Open(filepath.Join(part, entry.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, image)
	}
	return all, nil
}
