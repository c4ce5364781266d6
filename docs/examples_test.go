package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestExamplesAreObjectsOfOurs: each example with a kind has fields of that kind
// only.
func TestExamplesAreObjectsOfOurs(t *testing.T) {
	g, scheme := NewWithT(t), runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{bootstrapv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme, rbacv1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	pages, err := filepath.Glob("*.md")
	g.Expect(err).NotTo(HaveOccurred())
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		g.Expect(err).NotTo(HaveOccurred())
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			kind := &runtime.TypeMeta{}
			g.Expect(yaml.Unmarshal([]byte(block[1]), kind)).To(Succeed(), page)
			if kind.Kind == "" {
				continue
			}
			object, err := scheme.New(kind.GroupVersionKind())
			g.Expect(err).NotTo(HaveOccurred(), page)
			g.Expect(yaml.UnmarshalStrict([]byte(block[1]), object)).To(Succeed(), "%s in %s", kind.Kind, page)
			found++
		}
	}
	g.Expect(found).NotTo(BeZero())
}
