package configgen_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// TestWithoutFlannel: in each contract Talos is not to install Flannel, and all else
// stays as it is. Workers install no CNI, so there is no reason to replace one.
func TestWithoutFlannel(t *testing.T) {
	keys, err := os.ReadFile(filepath.Join(judged, "bundle.yaml"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	bundle, err := secrets.ParseBundle(keys)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, contract := range contracts {
		in := configgen.Input{
			Contract: contract, ClusterName: "demo", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3", Hostname: "demo-abcde",
			PodCIDRs: []string{"10.100.0.0/16"}, Secrets: bundle.Machinery(),
		}
		render := func(g Gomega, role configgen.Role, withoutFlannel bool, patches ...string) string {
			in := in
			in.Role, in.WithoutFlannel, in.StrategicPatches = role, withoutFlannel, patches
			rendered, err := configgen.Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			return string(rendered)
		}
		t.Run(contract+" control plane", func(t *testing.T) {
			g := NewWithT(t)
			with, without := render(g, configgen.RoleControlPlane, false), render(g, configgen.RoleControlPlane, true)
			g.Expect(parse(g, []byte(with)).K8sFlannelCNIConfig()).NotTo(BeNil(), "by default Talos installs it")
			g.Expect(parse(g, []byte(without)).K8sFlannelCNIConfig()).To(BeNil())
			expected := strings.Replace(with, "---\napiVersion: v1alpha1\nkind: KubeFlannelCNIConfig\nbackendType: vxlan\nbackendPort: 4789\n", "", 1)
			if contract != "v1.14" {
				expected = strings.Replace(with, "    network:\n        dnsDomain", "    network:\n        cni:\n            name: none\n        dnsDomain", 1)
			}
			g.Expect(without).To(Equal(expected))
		})
		t.Run(contract+" worker", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(render(g, configgen.RoleWorker, true)).To(Equal(render(g, configgen.RoleWorker, false)))
		})
		t.Run(contract+" with patches", func(t *testing.T) {
			g := NewWithT(t)
			byURL, once := "cluster: {network: {cni: {name: custom, urls: [https://manifests.example.com/cni.yaml]}}}", "cluster: {network: {cni: {name: none}}}"
			if contract == "v1.14" {
				byURL, once = "apiVersion: v1alpha1\nkind: KubeExternalManifestConfig\nname: cni\nurl: https://manifests.example.com/cni.yaml\n", "apiVersion: v1alpha1\nkind: KubeFlannelCNIConfig\n$patch: delete\n"
			}
			brought := render(g, configgen.RoleControlPlane, true, byURL)
			g.Expect(brought).To(ContainSubstring("https://manifests.example.com/cni.yaml"))
			g.Expect(parse(g, []byte(brought)).K8sFlannelCNIConfig()).To(BeNil())
			g.Expect(render(g, configgen.RoleControlPlane, true, once)).To(Equal(render(g, configgen.RoleControlPlane, true)), "left out once more")
		})
	}
}
