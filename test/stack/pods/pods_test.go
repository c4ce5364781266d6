package pods

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/capi-talos/capi-talos/test/stack/management"
)

const template = `# comment
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: "${CLUSTER_NAME}"}
spec:
  clusterNetwork:
    pods: {cidrBlocks: ["${POD_CIDR:=10.200.0.0/16}"]}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: TalosControlPlane
metadata: {name: cp}
spec:
  replicas: ${CONTROL_PLANE_MACHINE_COUNT}
  talosConfigSpec:
    strategicPatches: ["machine: {}"]
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: TalosMachineTemplate
metadata: {name: pods}
spec:
  template:
    spec:
      container:
        talos:
          version: ${TALOS_RELEASE:=v1.14.1}
          image: ${TALOS_IMAGE:=ghcr.io/siderolabs/talos:${TALOS_RELEASE:=v1.14.1}}
        storage: {${STORAGE:=type: Ephemeral}}
        nodeSelector: {${NODE_LABELS:= }}
        tolerations: {pool: ${POOL}, ${TOLERATIONS:= }}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: TalosMachineTemplate
metadata: {name: machines}
spec: {template: {spec: {metal: {}}}}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: TalosConfigTemplate
metadata: {name: workers}
spec: {template: {spec: {generateType: worker}}}
`

func surroundings() Surroundings {
	return Surroundings{
		TalosVersion: "v1.13.9", TalosImage: "registry.local/talos:v1.13.9",
		Patch: func(network netip.Prefix) (string, error) { return "network: " + network.String(), nil },
	}
}

// amended are the amended objects by kind and name.
func amended(t *testing.T, manifests string) (map[string]map[string]any, string) {
	t.Helper()
	g := NewWithT(t)
	text, err := surroundings().Amend([]byte(manifests))
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(hideFlow(text))
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string]map[string]any{}
	for _, object := range objects {
		found[object.GetKind()+"/"+object.GetName()] = object.Object
	}
	return found, string(text)
}

func field(t *testing.T, object map[string]any, path ...string) any {
	t.Helper()
	value, _, err := unstructured.NestedFieldNoCopy(object, path...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return value
}

func TestEveryMachineOfATemplateIsPatched(t *testing.T) {
	g := NewWithT(t)
	objects, text := amended(t, template)
	g.Expect(field(t, objects["TalosControlPlane/cp"], "spec", "talosConfigSpec", "strategicPatches")).
		To(Equal([]any{"machine: {}", "network: 10.200.0.0/24"}))
	g.Expect(field(t, objects["TalosConfigTemplate/workers"], "spec", "template", "spec", "strategicPatches")).
		To(Equal([]any{"network: 10.200.0.0/24"}))
	g.Expect(field(t, objects["TalosMachineTemplate/pods"], "spec", "template", "spec", "container", "talos")).
		To(Equal(map[string]any{"version": "v1.13.9", "image": "registry.local/talos:v1.13.9"}))
	g.Expect(field(t, objects["TalosMachineTemplate/machines"], "spec", "template", "spec")).
		To(Equal(map[string]any{"metal": map[string]any{}}), "machines of metal are not touched")
	g.Expect(text).To(And(
		ContainSubstring("replicas: ${CONTROL_PLANE_MACHINE_COUNT}\n"),
		ContainSubstring("storage: {${STORAGE:=type: Ephemeral}}\n"), ContainSubstring("nodeSelector: {${NODE_LABELS:= }}\n"),
		ContainSubstring("tolerations: {pool: ${POOL}, ${TOLERATIONS:= }}\n"),
	), "what is filled in has the same type as before")
}

func TestClustersOfAClassGetVariables(t *testing.T) {
	objects, _ := amended(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: c}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.8.0.0/14]}}
  topology:
    variables:
    - {name: talosVersion, value: v1.13}
    - {name: talosRelease, value: {version: v1.14.1}}
`)
	NewWithT(t).Expect(field(t, objects["Cluster/c"], "spec", "topology", "variables")).To(ConsistOf(
		map[string]any{"name": "talosVersion", "value": "v1.13"},
		map[string]any{"name": "talosRelease", "value": map[string]any{"version": "v1.13.9", "image": "registry.local/talos:v1.13.9"}},
		map[string]any{"name": "controlPlanePatches", "value": []any{"network: 10.8.0.0/24"}},
		map[string]any{"name": "workerPatches", "value": []any{"network: 10.8.0.0/24"}},
	))
}

func TestOurTemplatesAreAmended(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "templates", "cluster-template*.yaml"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			text, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			changed, err := surroundings().Amend(text)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(changed)).To(ContainSubstring("network: "))
			if isTemplate(filepath.Base(file)) {
				g.Expect(string(changed)).To(ContainSubstring("image: registry.local/talos:v1.13.9"))
			}
		})
	}
}

func TestWhatCannotBeAmendedIsNamed(t *testing.T) {
	for behaviour, test := range map[string]struct{ manifests, message string }{
		"no cluster":    {"kind: TalosControlPlane\napiVersion: v1\n", "there is no Cluster among 1 objects"},
		"no network":    {"kind: Cluster\napiVersion: v1\nmetadata: {name: c}\n", "network of Pods of Cluster c: there is none"},
		"wrong network": {"kind: Cluster\napiVersion: v1\nspec: {clusterNetwork: {pods: {cidrBlocks: ['${POD_CIDR}']}}}\n", "reading the network of Pods"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			_, err := surroundings().Amend([]byte(test.manifests))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}

func TestTheTemplatesOfARepositoryAreAmendedInACopy(t *testing.T) {
	g := NewWithT(t)
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	folder := filepath.Join("infrastructure-talos", "v0.1.0")
	g.Expect(os.MkdirAll(filepath.Join(from, folder), 0o755)).To(Succeed())
	for _, name := range []string{"cluster-template-container.yaml", "cluster-template-metal.yaml"} {
		g.Expect(os.WriteFile(filepath.Join(from, folder, name), []byte(template), 0o600)).To(Succeed())
	}
	g.Expect(surroundings().Repository(from, to)).To(Succeed())
	g.Expect(os.ReadFile(filepath.Join(to, folder, "cluster-template-container.yaml"))).To(ContainSubstring("network: 10.200.0.0/24"))
	g.Expect(os.ReadFile(filepath.Join(to, folder, "cluster-template-metal.yaml"))).To(BeEquivalentTo(template))
	g.Expect(os.ReadFile(filepath.Join(from, folder, "cluster-template-container.yaml"))).To(BeEquivalentTo(template))
}
