package clusterctl_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// program is a clusterctl that tells how it was called.
const program = `#!/bin/sh
case $1 in
fail) echo "this is why" >&2; exit 1;;
*) echo "$@"; env | sort;;
esac
`

// fakeParts are as many parts as New looks at.
func fakeParts(t *testing.T) parts.Built {
	t.Helper()
	g := NewWithT(t)
	built := parts.Built{}
	for _, name := range clusterctl.Parts() {
		built[name] = t.TempDir()
	}
	g.Expect(os.WriteFile(built.Path("clusterctl"), []byte(program), 0o755)).To(Succeed())
	g.Expect(os.WriteFile(built.Path("capi-components", "core-components.yaml"), []byte("core"), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(built.Path("cert-manager-crds", "cert-manager-crds.yaml"), []byte("kinds"), 0o600)).To(Succeed())
	return built
}

// repository is a local repository with our component files.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for label, file := range map[string]string{
		"addon-talos": "addon-components.yaml", "addon-talos-backup": "backup-components.yaml",
		"bootstrap-talos": "bootstrap-components.yaml", "control-plane-talos": "control-plane-components.yaml", "infrastructure-talos": "infrastructure-components.yaml",
	} {
		folder := filepath.Join(dir, label, clusterctl.ReleaseVersion)
		NewWithT(t).Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
		NewWithT(t).Expect(os.WriteFile(filepath.Join(folder, file), nil, 0o600)).To(Succeed())
	}
	return dir
}

func TestNewConfiguresAllProviders(t *testing.T) {
	g := NewWithT(t)
	local := repository(t)
	tool, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t), Kubeconfig: "/kubeconfig", Repository: local})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := os.ReadFile(tool.Config)
	g.Expect(err).NotTo(HaveOccurred())
	core := filepath.Join(filepath.Dir(tool.Config), "repository", "cluster-api", parts.ClusterAPIVersion, "core-components.yaml")
	g.Expect(os.ReadFile(core)).To(BeEquivalentTo("core"))
	g.Expect(string(content)).To(And(
		ContainSubstring(core),
		ContainSubstring("- name: talos\n  type: AddonProvider\n  url: "+filepath.Join(local, "addon-talos", clusterctl.ReleaseVersion, "addon-components.yaml")),
		ContainSubstring("- name: talos-backup\n  type: AddonProvider\n  url: "+filepath.Join(local, "addon-talos-backup", clusterctl.ReleaseVersion, "backup-components.yaml")),
		ContainSubstring(filepath.Join(local, "bootstrap-talos", clusterctl.ReleaseVersion, "bootstrap-components.yaml")),
		ContainSubstring(filepath.Join(local, "control-plane-talos", clusterctl.ReleaseVersion, "control-plane-components.yaml")),
		ContainSubstring(filepath.Join(local, "infrastructure-talos", clusterctl.ReleaseVersion, "infrastructure-components.yaml")),
		ContainSubstring(parts.CertManagerVersion),
	))
	g.Expect(tool.ProviderArgs()).To(Equal([]string{
		"--core", "cluster-api:" + parts.ClusterAPIVersion, "--addon", "talos:" + clusterctl.ReleaseVersion, "--addon", "talos-backup:" + clusterctl.ReleaseVersion,
		"--bootstrap", "talos:" + clusterctl.ReleaseVersion, "--control-plane", "talos:" + clusterctl.ReleaseVersion, "--infrastructure", "talos:" + clusterctl.ReleaseVersion,
	}))
	g.Expect(tool.Arguments("addon")).To(Equal([]string{"talos:" + clusterctl.ReleaseVersion, "talos-backup:" + clusterctl.ReleaseVersion}))
}

func TestARepositoryOfAnOlderReleaseHasFewerProviders(t *testing.T) {
	g := NewWithT(t)
	local := repository(t)
	for _, label := range []string{"addon-talos", "addon-talos-backup"} {
		g.Expect(os.RemoveAll(filepath.Join(local, label))).To(Succeed())
	}
	tool, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t), Kubeconfig: "/kubeconfig", Repository: local})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.ReadFile(tool.Config)).NotTo(ContainSubstring("AddonProvider"))
	g.Expect(tool.ProviderArgs()).NotTo(ContainElement("--addon"))
	g.Expect(tool.Arguments("addon")).To(BeEmpty())
	g.Expect(tool.Arguments("control-plane")).To(Equal([]string{"talos:" + clusterctl.ReleaseVersion}))
}

func TestOneOfSeveralAddOnProvidersMayBeMissing(t *testing.T) {
	g := NewWithT(t)
	local := repository(t)
	g.Expect(os.RemoveAll(filepath.Join(local, "addon-talos-backup"))).To(Succeed())
	tool, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t), Kubeconfig: "/kubeconfig", Repository: local})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tool.Arguments("addon")).To(Equal([]string{"talos:" + clusterctl.ReleaseVersion}))
	g.Expect(tool.ProviderArgs()).To(ContainElement("--addon"))
	g.Expect(tool.ProviderArgs()).NotTo(ContainElement(HavePrefix("talos-backup")))
}

func TestNewWithoutOurRepositoryInstallsTheCoreProviderAlone(t *testing.T) {
	g := NewWithT(t)
	tool, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(tool.ProviderArgs()).To(Equal([]string{"--core", "cluster-api:" + parts.ClusterAPIVersion, "--bootstrap", "-", "--control-plane", "-", "--infrastructure", "-"}))
}

func TestNewSaysWhatMakesTheRepository(t *testing.T) {
	_, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t), Repository: t.TempDir()})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("make local-repository")))
}

func TestRunSeesNothingOfTheUser(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("GITHUB_TOKEN", "of-the-user")
	t.Setenv("CLUSTER_NAME", "of-the-user")
	tool, err := clusterctl.New(clusterctl.Options{Dir: t.TempDir(), Built: fakeParts(t), Kubeconfig: "/kubeconfig"})
	g.Expect(err).NotTo(HaveOccurred())
	out, err := tool.Generate(t.Context(), "demo", map[string]string{"PORT": "6443"}, "--flavor", "metal")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(out)).To(And(
		HavePrefix("generate cluster demo --flavor metal --config "+tool.Config+"\n"),
		ContainSubstring("PORT=6443\n"), ContainSubstring("KUBECONFIG=/kubeconfig\n"),
		Not(ContainSubstring("of-the-user")),
	))
	_, err = tool.Run(t.Context(), nil, "fail")
	g.Expect(err).To(MatchError(ContainSubstring("this is why")))
}
