package kind

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func TestCertManagerIsWholeAndPullsNothing(t *testing.T) {
	g := NewWithT(t)
	manifest, err := CertManager([]byte("kind: CustomResourceDefinition\n"), "registry.local/x:v1")
	g.Expect(err).NotTo(HaveOccurred())
	var kinds []string
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		object := struct {
			Kind string `json:"kind"`
		}{}
		g.Expect(yaml.Unmarshal([]byte(document), &object)).To(Succeed())
		kinds = append(kinds, object.Kind)
	}
	g.Expect(kinds).To(Equal([]string{"Namespace", "ServiceAccount", "ClusterRoleBinding", "Deployment", "CustomResourceDefinition"}))
	g.Expect(string(manifest)).To(And(ContainSubstring("image: registry.local/x:v1"), ContainSubstring("imagePullPolicy: Never")))
}
