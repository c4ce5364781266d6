package helm_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// TestCustomResourceDefinitionsFollowTheirPolicy, at upgrades as well, and none is lost.
func TestCustomResourceDefinitionsFollowTheirPolicy(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	crd := func(kind, description string) string {
		return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.policy.example.com}
spec:
  group: policy.example.com
  names: {kind: %[1]s, plural: %[1]ss}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, description: %[2]s}}}]
`, kind, description)
	}
	described := func(kind string) string {
		found := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
		err := b.live.Get(ctx, client.ObjectKey{Name: kind + "s.policy.example.com"}, found)
		if apierrors.IsNotFound(err) {
			return "missing"
		}
		b.Expect(err).NotTo(HaveOccurred())
		return fmt.Sprint("generation ", found.Generation)
	}
	custom := "apiVersion: policy.example.com/v1\nkind: one\nmetadata: {name: demo}\n"
	request := b.request(charts.Chart{"crds/one.yaml": crd("one", "first"), "templates/one.yaml": custom}.Pack("1.0.0"), nil)
	_, err := b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("one")).To(Equal("generation 1"))

	request.Chart = charts.Chart{"crds/one.yaml": crd("one", "second"), "crds/two.yaml": crd("two", "first"), "templates/one.yaml": custom}.Pack("2.0.0")
	request.Options.CRDs = addonv1.CRDSkip
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("two")).To(Equal("missing"))

	request.Options.CRDs = addonv1.CRDCreate
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("two")).To(Equal("generation 1"))
	b.Expect(described("one")).To(Equal("generation 1"))

	request.Options.CRDs = addonv1.CRDCreateReplace
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("one")).To(Equal("generation 2"))

	b.Expect(b.helm.Uninstall(ctx, b.target, request.Options)).To(Succeed())
	b.Expect(described("one")).To(Equal("generation 2"))
}
