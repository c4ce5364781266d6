package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// admit lets both webhooks look at an object, in the order of the API server. before
// is nil for a new object.
func admit(t *testing.T, before, after *tcp, objects ...client.Object) (admission.Warnings, error) {
	t.Helper()
	w, ctx := newWebhook(t, objects...), admission.NewContextWithRequest(t.Context(), admission.Request{})
	NewWithT(t).Expect(w.Default(ctx, after)).To(Succeed())
	if before == nil {
		return w.ValidateCreate(ctx, after)
	}

	return w.ValidateUpdate(ctx, before, after)
}

// The defaulting comes first: it must not mend what is to be refused.
func TestBadInputVersionWithoutV(t *testing.T) {
	const want = `spec.version: Invalid value: "1.36.3": must be a semantic version with the prefix v, for example v1.36.3`
	controlPlane := valid()
	controlPlane.Spec.Version = "1.36.3"
	_, err := admit(t, nil, controlPlane)
	expect(NewWithT(t), err, want)

	before := valid()
	after := before.DeepCopy()
	after.Spec.Version = "1.36.3"
	_, err = admit(t, before, after)
	expect(NewWithT(t), err, want)
}

// A maxSurge that admission wrote itself stands in nobody's way.
func TestTheStrategyMayChangeToOnDelete(t *testing.T) {
	g := NewWithT(t)
	before := valid()
	g.Expect(before.Spec.Rollout.Strategy.RollingUpdate.MaxSurge).NotTo(BeNil())
	after := before.DeepCopy()
	after.Spec.Rollout.Strategy.Type = controlplanev1.OnDeleteStrategyType
	_, err := admit(t, before, after)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.Spec.Rollout.Strategy).To(Equal(controlplanev1.TalosControlPlaneRolloutStrategy{Type: controlplanev1.OnDeleteStrategyType}))

	back := after.DeepCopy()
	back.Spec.Rollout.Strategy.Type = controlplanev1.RollingUpdateStrategyType
	_, err = admit(t, after, back)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(back.Spec.Rollout).To(Equal(before.Spec.Rollout))
}

// kubectl scale does not ask this webhook, and a move creates what is there.
func TestMaxSurge0WithOneReplicaIsAWarning(t *testing.T) {
	scaled := valid()
	scaled.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
	changed := scaled.DeepCopy()
	changed.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"}
	three := scaled.DeepCopy()
	three.Spec.Replicas = ptr.To(int32(3))
	for name, tc := range map[string]struct {
		before, after *tcp
		warns         bool
	}{
		"a change after it":   {scaled, changed, true},
		"a move":              {nil, scaled.DeepCopy(), true},
		"three replicas":      {nil, three, false},
		"the default, of one": {nil, valid(), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			warnings, err := admit(t, tc.before, tc.after)
			g.Expect(err).NotTo(HaveOccurred())
			if !tc.warns {
				g.Expect(warnings).To(BeEmpty())
				return
			}
			g.Expect(warnings).To(ConsistOf(ContainSubstring("spec.rollout.strategy.rollingUpdate.maxSurge: 0 counts as 1 with fewer than 3 replicas")))
		})
	}
}

func TestAnotherCNIOfARunningClusterIsAWarning(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after bootstrapv1.CNI
		machines      int32
		warns         bool
	}{
		"none instead of the default": {"", bootstrapv1.CNINone, 1, true},
		"none instead of Flannel":     {bootstrapv1.CNIFlannel, bootstrapv1.CNINone, 1, true},
		"Flannel instead of none":     {bootstrapv1.CNINone, bootstrapv1.CNIFlannel, 1, true},
		"the default instead of none": {bootstrapv1.CNINone, "", 1, true},
		"the default, said":           {"", bootstrapv1.CNIFlannel, 1, false},
		"the same":                    {bootstrapv1.CNINone, bootstrapv1.CNINone, 1, false},
		"before there is a Machine":   {"", bootstrapv1.CNINone, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			g, before := NewWithT(t), valid()
			before.Spec.TalosConfigSpec.CNI, before.Status.Replicas = tc.before, ptr.To(tc.machines)
			after := before.DeepCopy()
			after.Spec.TalosConfigSpec.CNI = tc.after
			after.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"}
			warnings, err := admit(t, before, after)
			g.Expect(err).NotTo(HaveOccurred())
			if !tc.warns {
				g.Expect(warnings).To(BeEmpty())
				return
			}
			g.Expect(warnings).To(ConsistOf(HavePrefix("spec.talosConfigSpec.cni: ")))
		})
	}
}

// The release of another template is judged, also where nothing else changes.
func TestAnotherTemplateIsJudgedByItsRelease(t *testing.T) {
	metal := newTemplate("metal", "v1.12.4")
	metal.SetName("older")
	before := valid()
	after := before.DeepCopy()
	after.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "older"
	_, err := admit(t, before, after, newTemplate("metal", "v1.13.9"), metal)
	expect(NewWithT(t), err, "TalosMachineTemplate older states that release")

	// What was accepted with its template is not judged again.
	same := before.DeepCopy()
	same.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"}
	_, err = admit(t, before, same, newTemplate("metal", "v1.12.4"))
	expect(NewWithT(t), err, "")
}

// Whoever takes its finalizers from an object must not be stopped by its content.
func TestWhatIsBeingDeletedMayAlwaysBeWritten(t *testing.T) {
	before := &controlplanev1.TalosControlPlaneTemplate{}
	before.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.13"
	after := before.DeepCopy()
	after.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.12"
	ctx := admission.NewContextWithRequest(t.Context(), admission.Request{})
	_, err := (&TalosControlPlaneTemplate{}).ValidateUpdate(ctx, before, after)
	expect(NewWithT(t), err, "is immutable")
	after.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	_, err = (&TalosControlPlaneTemplate{}).ValidateUpdate(ctx, before, after)
	expect(NewWithT(t), err, "")
}
