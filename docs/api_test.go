package docs

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestTheReferenceHasEachKind: each installed kind, and each field of its spec and
// status, is on the page of its group. make verify compares the pages with the types.
func TestTheReferenceHasEachKind(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../config/*/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		kind := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(text, kind)).To(Succeed(), file)
		page, err := os.ReadFile(filepath.Join("api", kind.Spec.Group+".md"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(page)).To(ContainSubstring("\n## "+kind.Spec.Names.Kind+"\n"), file)
		fields := found("(?m)^\\| `([^`]+)` \\|", string(page))
		for _, version := range kind.Spec.Versions {
			g.Expect(string(page)).To(HavePrefix("# "+kind.Spec.Group+"/"+version.Name+"\n"), file)
			for part, schema := range version.Schema.OpenAPIV3Schema.Properties {
				for field := range schema.Properties {
					g.Expect(fields).To(ContainElement(field), "%s.%s of %s", part, field, kind.Spec.Names.Kind)
				}
			}
		}
	}
}
