package parts

import (
	"context"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

const (
	// TalosVersion is the release of the real Talos nodes of the test bed.
	TalosVersion = "v1.13.9"
	// TalosEtcdVersion is the tag under which that release asks for etcd.
	TalosEtcdVersion = "v3.6.12"
	// PreviousTalosVersion is the release of an earlier minor that real nodes can run, too.
	PreviousTalosVersion = "v1.12.6"
	// TalosPauseVersion is the tag under which that release asks for the image
	// that holds a pod's namespaces.
	TalosPauseVersion = "3.10.1"
	// KindVersion is the version of kind.
	KindVersion = "v0.33.0"

	containerdVersion  = "v2.2.7"
	runcVersion        = "v1.4.3"
	cniVersion         = "v1.9.1"
	flannelVersion     = "v0.28.9"
	flannelCNIVersion  = "v1.0.0-rc1"
	coreDNSVersion     = "v1.14.3"
	crictlVersion      = "v1.36.0"
	localPathVersion   = "v0.0.30"
	distributionRel    = "v3.1.1"
	debianRelease      = "bookworm"
	debianPart         = "debian"
	containerdPackage  = "github.com/containerd/containerd/v2"
	cniPackage         = "github.com/containernetworking/plugins/plugins"
	ownProgramsVersion = "v1"
)

// nodeParts are what real Talos nodes, their images and kind are made of.
func nodeParts() []Part {
	return append(nodePrograms(), nodeImages()...)
}

// nodePrograms are the programs in nodes and in the images that they run.
func nodePrograms() []Part {
	return []Part{
		talosPart(machine.Look(), talos()),
		talosPart(machine.Look(), previousTalos()),
		{
			// Only pages of the documentation are typed with it.
			Name:     "talosctl",
			Version:  TalosVersion,
			Module:   "talosctl",
			Commands: []Command{{Package: talosModule + "/cmd/talosctl", Binary: "talosctl"}},
		},
		{
			Name:    "containerd",
			Version: containerdVersion,
			Module:  "containerd",
			Commands: []Command{
				{Package: containerdPackage + "/cmd/containerd", Binary: "containerd"},
				{Package: containerdPackage + "/cmd/containerd-shim-runc-v2", Binary: "containerd-shim-runc-v2"},
				{Package: containerdPackage + "/cmd/ctr", Binary: "ctr"},
			},
			Tags:    []string{"no_btrfs", "no_devmapper", "no_zfs"},
			LDFlags: "-X " + containerdPackage + "/version.Version=" + containerdVersion,
		},
		{
			// runc enters namespaces in C before Go starts, so it needs a compiler.
			Name:    "runc",
			Version: runcVersion,
			Module:  "runc",
			Tags:    []string{"netgo", "osusergo", "seccomp"},
			LDFlags: "-X main.version=" + runcVersion[1:] + " -linkmode external -extldflags -static",
			Env:     []string{"CGO_ENABLED=1"},
			Build: func(ctx context.Context, w *Workspace) error {
				if err := debian.Install(ctx, append(compiler(), "libseccomp-dev", "pkg-config")...); err != nil {
					return err
				}
				return w.GoBuild(ctx, w.Module, "github.com/opencontainers/runc", "runc")
			},
		},
		{
			Name:    "cni",
			Version: cniVersion,
			Module:  "cni",
			Commands: []Command{
				{Package: cniPackage + "/main/bridge", Binary: "bridge"},
				{Package: cniPackage + "/main/loopback", Binary: "loopback"},
				{Package: cniPackage + "/main/ptp", Binary: "ptp"},
				{Package: cniPackage + "/ipam/host-local", Binary: "host-local"},
				{Package: cniPackage + "/meta/portmap", Binary: "portmap"},
			},
		},
		{
			// The plugin has moved to a module of its own since, which is not to be had.
			Name:     "flannel-cni",
			Version:  flannelCNIVersion,
			Module:   "flannel-cni",
			Commands: []Command{{Package: cniPackage + "/meta/flannel", Binary: "flannel"}},
		},
		{
			// One of its ways to carry packets is written in C.
			Name:    "flannel",
			Version: flannelVersion,
			Module:  "flannel",
			Tags:    []string{"netgo", "osusergo"},
			LDFlags: "-linkmode external -extldflags -static",
			Env:     []string{"CGO_ENABLED=1"},
			Inputs:  []string{flannelCloud},
			Build:   buildFlannel,
		},
		program("coredns", coreDNSVersion, "github.com/coredns/coredns", ""),
		program("registry", distributionRel, "github.com/distribution/distribution/v3/cmd/registry",
			"-X github.com/distribution/distribution/v3/version.version="+distributionRel),
		program("kind", KindVersion, "sigs.k8s.io/kind", ""),
		program("crictl", crictlVersion, "sigs.k8s.io/cri-tools/cmd/crictl",
			"-X sigs.k8s.io/cri-tools/pkg/version.Version="+crictlVersion),
		program("local-path-provisioner", localPathVersion, "github.com/rancher/local-path-provisioner",
			"-X main.VERSION="+localPathVersion),
		program("pause", ownProgramsVersion, ".", ""),
		program("kindnetd", ownProgramsVersion, ".", ""),
		program("runtime-wrapper", ownProgramsVersion, ".", ""),
		program("cert-manager-controllers", CertManagerVersion, ".", ""),
		{
			Name:    debianPart,
			Version: debianRelease,
			Inputs:  append([]string{"1"}, debianPackages...),
			Build:   buildDebian,
		},
	}
}

// compiler are the packages that programs with parts in C need.
func compiler() []string { return []string{"gcc", "libc6-dev"} }

// program is a part of one program whose wrapper module has the same name.
func program(name, version, pkg, flags string) Part {
	return Part{
		Name:     name,
		Version:  version,
		Module:   name,
		Commands: []Command{{Package: pkg, Binary: name}},
		LDFlags:  flags,
	}
}
