package manifests

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/capi-talos/capi-talos/test/support/builders"
)

func TestLeaveToOthers(t *testing.T) {
	const (
		image = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"kube-proxy\"}":{".":{},"f:image":{},"f:name":{}}}}}}}`
		other = `{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"sidecar\"}":{".":{},"f:image":{},"f:name":{}}}}}}}`
		limit = `{"f:spec":{"f:revisionHistoryLimit":{}}}`
	)
	for name, tc := range map[string]struct {
		entries map[string]string
		want    []string
		image   bool
		limit   bool
	}{
		"nobody":                        {nil, nil, true, true},
		"Talos":                         {map[string]string{"talos": image, "talosctl": limit}, nil, true, true},
		"a tool that has made it anew":  {map[string]string{"velero": image}, []string{`.spec.template.spec.containers[name="kube-proxy"].image`}, false, true},
		"somebody with the same value":  {map[string]string{"kubectl": limit}, nil, true, false},
		"somebody with an own sidecar":  {map[string]string{"kubectl": other}, nil, true, true},
		"somebody with something else":  {map[string]string{"kubectl": `{"f:metadata":{"f:annotations":{".":{},"f:a":{}}}}`}, nil, true, true},
		"Talos and somebody else, both": {map[string]string{"talos": image, "kubectl": image}, []string{`.spec.template.spec.containers[name="kube-proxy"].image`}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			wanted, err := decode([]map[string]any{builders.KubeProxy("v2")})
			g.Expect(err).NotTo(HaveOccurred())
			present, err := decode([]map[string]any{builders.KubeProxy("v1")})
			g.Expect(err).NotTo(HaveOccurred())
			var fields []metav1.ManagedFieldsEntry
			for manager, owned := range tc.entries {
				fields = append(fields, metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(owned)})
			}
			present[0].SetManagedFields(fields)

			different, err := leaveToOthers(wanted[0], present[0])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(different).To(Equal(tc.want))
			spec, _, err := unstructured.NestedMap(wanted[0].Object, "spec")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(spec["revisionHistoryLimit"] != nil).To(Equal(tc.limit))
			containers, _, err := unstructured.NestedSlice(spec, "template", "spec", "containers")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(containers).To(HaveLen(1))
			g.Expect(containers[0]).To(HaveKeyWithValue("name", "kube-proxy"))
			g.Expect(containers[0].(map[string]any)["image"] != nil).To(Equal(tc.image)) //nolint:forcetypeassert // It is a container.
		})
	}
}
