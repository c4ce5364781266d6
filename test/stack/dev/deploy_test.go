package dev

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// sources is the root of the repository.
func sources(t *testing.T) string {
	t.Helper()
	dir, err := parts.SourceDir()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dir
}

// ours are our providers.
func ours(t *testing.T) []provider {
	t.Helper()
	g := NewWithT(t)
	listed, err := parts.Providers()
	g.Expect(err).NotTo(HaveOccurred())
	all := make([]provider, 0, len(listed))
	for _, one := range listed {
		found, err := find(one.Folder)
		g.Expect(err).NotTo(HaveOccurred())
		all = append(all, found)
	}
	return all
}

func TestEachManagerIsDeployedAsReleasedButForItsTurns(t *testing.T) {
	for _, provider := range ours(t) {
		t.Run(provider.Name, func(t *testing.T) {
			g := NewWithT(t)
			shipped, err := os.ReadFile(filepath.Join(sources(t), "config", provider.Folder, "manager", "manager.yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			amended, err := provider.amend(shipped, "image:new")
			g.Expect(err).NotTo(HaveOccurred())
			before, after := deployment(t, shipped), deployment(t, amended)
			g.Expect(after.Namespace + "/" + after.Name).To(Equal(provider.Namespace() + "/" + provider.Deployment()))

			container := &after.Spec.Template.Spec.Containers[0]
			g.Expect(container.Image).To(Equal("image:new"))
			g.Expect(container.Args).To(And(ContainElement("--leader-elect=false"), Not(ContainElement("--leader-elect"))))
			g.Expect(after.Spec.Strategy.RollingUpdate.MaxSurge.IntValue()).To(BeZero())
			container.Image, container.Args = before.Spec.Template.Spec.Containers[0].Image, before.Spec.Template.Spec.Containers[0].Args
			after.Spec.Strategy = before.Spec.Strategy
			g.Expect(after).To(Equal(before), "nothing else changes")
		})
	}
}

// deployment is the one among manifests.
func deployment(t *testing.T, manifests []byte) *appsv1.Deployment {
	t.Helper()
	g := NewWithT(t)
	objects, err := management.Objects(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(objects).To(HaveLen(1))
	found := &appsv1.Deployment{}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, found)).To(Succeed())
	return found
}

func TestManifestsWithoutTheManagerAreRefused(t *testing.T) {
	for behaviour, test := range map[string]struct{ manifests, message string }{
		"no Deployment": {"kind: Service\napiVersion: v1\n", "there are 0 Deployments"},
		"another image": {"kind: Deployment\napiVersion: apps/v1\nspec: {template: {spec: {containers: [{name: other, image: other}]}}}\n", "not one container"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			_, err := ours(t)[0].amend([]byte(test.manifests), "image:new")
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}

func TestAnotherManagerIsAnotherImage(t *testing.T) {
	g := NewWithT(t)
	binary, first := filepath.Join(t.TempDir(), "manager"), ours(t)[0]
	name := func(content string) string {
		g.Expect(os.WriteFile(binary, []byte(content), 0o755)).To(Succeed())
		image, remove, err := managerImage(first, binary)
		g.Expect(err).NotTo(HaveOccurred())
		remove()
		return image.Name
	}
	one := name("one")
	g.Expect(one).To(HavePrefix(first.Image() + ":dev-"))
	g.Expect(name("two")).NotTo(Equal(one))
	g.Expect(name("one")).To(Equal(one))
}

func TestOnlyEarlierDevelopmentImagesAreRemoved(t *testing.T) {
	list := `images:
- repoTags: ["r/m:dev-1"]
- repoTags: ["r/m:dev-2"]
- repoTags: ["r/m:v0.1.0"]
- repoTags: ["r/m-other:dev-3"]
- repoTags: []
`
	NewWithT(t).Expect(others([]byte(list), "r/m", "r/m:dev-2")).To(Equal([]string{"r/m:dev-1"}))
}

func TestToolsWorkByThemselves(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	tool := filepath.Join(dir, "it's a tool")
	g.Expect(os.WriteFile(tool, []byte("#!/bin/sh\necho \"$KUBECONFIG:$#:$*\"\n"), 0o755)).To(Succeed())
	session := &Session{
		Kubeconfig: filepath.Join(dir, "kube config"), Kubernetes: "v1.2.3", Bin: filepath.Join(dir, "bin"),
		Environment: filepath.Join(dir, "env"), Network: "net",
	}
	g.Expect(session.writeTools(tools{clusterctl: tool, config: "the config", kubectl: tool, kind: tool})).To(Succeed())
	g.Expect(filepath.Join(session.Bin, "stack")).To(BeARegularFile())

	shell := exec.CommandContext(t.Context(), "sh", "-ec", `. "$1"; kubectl get "a b"; clusterctl version; kind load`, "sh", session.Environment) //nolint:gosec // a file of this test
	out, err := shell.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	g.Expect(strings.Split(strings.TrimSpace(string(out)), "\n")).To(Equal([]string{
		session.Kubeconfig + ":2:get a b",
		session.Kubeconfig + ":3:--config the config version",
		session.Kubeconfig + ":1:load",
	}))

	said, err := session.kubectl(t.Context(), nil, "version")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(said)).To(Equal(session.Kubeconfig + ":1:version\n"))
}
