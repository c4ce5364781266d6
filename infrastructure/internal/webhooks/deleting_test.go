package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Whoever takes its finalizers from an object must not be stopped by its content.
func TestWhatIsBeingDeletedMayAlwaysBeWritten(t *testing.T) {
	g, machine := NewWithT(t), &infrav1.TalosMachine{}
	ctx := admission.NewContextWithRequest(t.Context(), admission.Request{})
	change := func() error {
		return refuseChange(ctx, "TalosMachine", "before", "after", machine, field.NewPath("spec"), "make another one")
	}
	g.Expect(change()).To(MatchError(ContainSubstring("is immutable; make another one")))
	machine.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	g.Expect(change()).To(Succeed())
}
