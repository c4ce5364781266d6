package webhooks

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// TestSamplesAreAccepted: by the kinds, which the API server knows, and by the webhooks.
func TestSamplesAreAccepted(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../../../config/samples/backup/talos*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(HaveLen(5))
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g, sample := NewWithT(t), &unstructured.Unstructured{}
			text, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(yaml.Unmarshal(text, &sample.Object)).To(Succeed())
			sample.SetNamespace("default")
			g.Expect(management.Create(t.Context(), sample, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed())
			switch sample.GetKind() {
			case backupv1.TalosBackupStoreKind:
				store := &backupv1.TalosBackupStore{}
				g.Expect(yaml.UnmarshalStrict(text, store)).To(Succeed())
				g.Expect(stores().ValidateCreate(t.Context(), store)).Error().NotTo(HaveOccurred())
			case backupv1.TalosEtcdBackupScheduleKind:
				schedule := &backupv1.TalosEtcdBackupSchedule{}
				g.Expect(yaml.UnmarshalStrict(text, schedule)).To(Succeed())
				g.Expect(schedules().ValidateCreate(t.Context(), schedule)).Error().NotTo(HaveOccurred())
			}
		})
	}
}
