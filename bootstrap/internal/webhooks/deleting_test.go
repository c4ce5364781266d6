package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// Whoever takes its finalizers from an object must not be stopped by its content.
func TestWhatIsBeingDeletedMayAlwaysBeWritten(t *testing.T) {
	for name, deleted := range map[string]*metav1.Time{"is immutable": nil, "": ptr.To(metav1.Unix(1, 0))} {
		ctx := admission.NewContextWithRequest(t.Context(), admission.Request{})
		config := &bootstrapv1.TalosConfig{Spec: bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13"}}
		changed := config.DeepCopy()
		changed.Spec.TalosVersion, changed.DeletionTimestamp = "v1.12", deleted
		_, err := (&TalosConfig{}).ValidateUpdate(ctx, config, changed)
		expect(NewWithT(t), err, name)

		template := &bootstrapv1.TalosConfigTemplate{}
		template.Spec.Template.Spec = config.Spec
		other := template.DeepCopy()
		other.Spec.Template.Spec.TalosVersion, other.DeletionTimestamp = "v1.12", deleted
		_, err = (&TalosConfigTemplate{}).ValidateUpdate(ctx, template, other)
		expect(NewWithT(t), err, name)
	}
}
