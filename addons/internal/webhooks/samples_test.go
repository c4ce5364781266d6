package webhooks_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/values"
	"github.com/capi-talos/capi-talos/addons/internal/webhooks"
)

// TestSamplesAreAccepted: by the kind, which the API server knows, by the webhook, and
// what their templates read is there.
func TestSamplesAreAccepted(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../../../config/samples/addons/talosclusteraddon-*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			text, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			sample, addon := &unstructured.Unstructured{}, &addonv1.TalosClusterAddon{}
			g.Expect(yaml.Unmarshal(text, &sample.Object)).To(Succeed())
			g.Expect(yaml.UnmarshalStrict(text, addon)).To(Succeed())
			sample.SetNamespace("default")
			g.Expect(management.Create(t.Context(), sample, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())

			scheme := runtime.NewScheme()
			g.Expect(addonv1.AddToScheme(scheme)).To(Succeed())
			webhook := &webhooks.TalosClusterAddon{Client: fake.NewClientBuilder().WithScheme(scheme).Build()}
			g.Expect(webhook.ValidateCreate(t.Context(), addon)).Error().NotTo(HaveOccurred())
			_, err = values.Render(addon.Spec.ValuesTemplate, values.Data{ControlPlane: map[string]any{"spec": map[string]any{"replicas": int64(3)}}})
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}
