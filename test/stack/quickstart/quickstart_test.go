package quickstart

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var typePage = flag.Bool("type-page", false, "type the commands of the quick start, which takes Docker")

const (
	// run names what the page's commands start in Docker, kindCluster is that of the
	// page, bridge the device of the network.
	run, kindCluster, bridge = "capi-talos-quick-start", "talos-quick-start", "capt-quick"
	// patience is for all of the page on a slow machine.
	patience = 40 * time.Minute
)

// TestQuickStart types the page. It runs with -type-page ("make test-quick-start"),
// which is an error where there can be no Docker.
func TestQuickStart(t *testing.T) {
	if !*typePage {
		t.Skip("the page is typed by make test-quick-start only")
	}
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g.Expect(nodes.Reason(ctx)).To(BeEmpty(), "there must be Docker")
	built, err := parts.Ensure(ctx, parts.Print(os.Stderr), slices.Concat(kindstack.Parts(), kindstack.PodParts(), nodes.Parts())...)
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.TempDir()
	around, err := nodes.Up(ctx, nodes.Options{Run: run, Bridge: bridge, Kind: kindCluster, Dir: filepath.Join(dir, "nodes"), Built: built, Output: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := around.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	instead, err := prepare(ctx, around, built, dir)
	g.Expect(err).NotTo(HaveOccurred())
	ours, err := parts.Providers()
	g.Expect(err).NotTo(HaveOccurred())
	blocks, err := Replace(quickStart(t), offline(instead, ours))
	g.Expect(err).NotTo(HaveOccurred())

	took, err := Run(ctx, blocks, Options{Dir: dir, Env: environment(around, built, dir), Output: os.Stderr})
	Table(os.Stderr, took)
	g.Expect(err).NotTo(HaveOccurred())

	left, err := around.Docker.Docker(ctx, "ps", "--all", "--quiet", "--filter", "label=io.x-k8s.kind.cluster="+kindCluster)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty(), "the page takes away what it has made")
}

// prepare makes what is taken where nothing can be downloaded.
func prepare(ctx context.Context, around *nodes.Nodes, built parts.Built, dir string) (substitutes, error) {
	source, err := parts.SourceDir()
	if err != nil {
		return substitutes{}, err
	}
	repository := filepath.Join(dir, "amended")
	if err := around.Pods().Repository(filepath.Join(source, "out", "repository"), repository); err != nil {
		return substitutes{}, err
	}
	tool, err := kindstack.NewClusterctl(dir, built, "", repository)
	if err != nil {
		return substitutes{}, err
	}
	archives, err := kindstack.Archives(ctx, built, filepath.Join(dir, "archives"), true)
	if err != nil {
		return substitutes{}, err
	}
	node, err := kindstack.LoadIntoDocker(ctx, around, built, "kind-node-image")
	if err != nil {
		return substitutes{}, err
	}
	configured := filepath.Join(filepath.Dir(tool.Config), "repository")
	return substitutes{
		node: node[0], archives: archives, repository: repository,
		core:        filepath.Join(configured, "cluster-api", parts.ClusterAPIVersion, "core-components.yaml"),
		certManager: filepath.Join(configured, "cert-manager", parts.CertManagerVersion, "cert-manager.yaml"),
	}, nil
}

// environment has the tools of the page in its search path, and nothing of the
// user's own settings.
func environment(around *nodes.Nodes, built parts.Built, dir string) []string {
	path := []string{built.Dir("kind"), built.Dir("kubectl"), built.Dir("clusterctl"), filepath.Dir(around.Docker.Path), os.Getenv("PATH")}
	return []string{
		"PATH=" + strings.Join(path, string(os.PathListSeparator)), "HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, ".config"),
		"KUBECONFIG=" + filepath.Join(dir, "kubeconfig"), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "NO_PROXY=*",
		"KIND_EXPERIMENTAL_PROVIDER=docker", "KIND_EXPERIMENTAL_DOCKER_NETWORK=" + around.Network.Name,
	}
}
