package controllers

import (
	"context"
	"errors"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// told is what a condition of the control plane says.
func (w *world) told(conditionType string) *metav1.Condition {
	w.t.Helper()
	found := conditions.Get(w.controlPlane(), conditionType)
	NewWithT(w.t).Expect(found).NotTo(BeNil(), conditionType)

	return found
}

// tell lets a manager, whose reconciles may fail, and the others take turns.
func (w *world) tell(r *Reconciler) {
	w.t.Helper()
	for range 6 {
		if err := w.reconcile(r); err != nil {
			w.t.Log(err)
		}
		w.others()
	}
}

// errQuota is how the API server refuses what a quota does not allow.
var errQuota = apierrors.NewForbidden(schema.GroupResource{Group: clusterv1.GroupVersion.Group, Resource: "machines"}, "x", errors.New("exceeded quota: machines"))

// refusing has the API server refuse a manager what makes another Machine, and the deletion
// of Machines.
func (w *world) refusing(r *Reconciler) {
	w.t.Helper()
	var present []string
	for _, machine := range w.infraMachines() {
		present = append(present, machine.GetName())
	}
	r.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if named, has := object.(interface{ GetName() string }); has && !slices.Contains(present, named.GetName()) {
				return errQuota
			}
			return c.Apply(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if _, is := object.(*clusterv1.Machine); is {
				return errQuota
			}
			return c.Delete(ctx, object, opts...)
		},
	})
	r.applier = newApplier(w.t.Context(), r.Client)
}

// TestWhatCannotBeReadIsTold: nothing is decided before a person has mended it.
func TestWhatCannotBeReadIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*world, *Reconciler)
		says  string
	}{
		"the kind of the template is not installed": {func(w *world, _ *Reconciler) {
			w.change(func(c *controlplanev1.TalosControlPlane) {
				c.Spec.MachineTemplate.Spec.InfrastructureRef.Kind = "PlainMachineTemplat"
			})
		}, "PlainMachineTemplat plain in API group infrastructure.cluster.x-k8s.io cannot be read"},
		"the kubeconfig is none": {func(_ *world, r *Reconciler) { r.Prober = brokenProber{} },
			"asking the API server by Secret one-kubeconfig: no kubeconfig; correct it"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := scaled(t, 3)
			tc.spoil(w, r)
			w.scale(5)

			w.tell(r)

			for _, conditionType := range []string{controlplanev1.AvailableCondition, controlplanev1.ScalingUpCondition} {
				g.Expect(w.told(conditionType).Message).To(ContainSubstring(tc.says), conditionType)
			}
			g.Expect(w.told(controlplanev1.CertificatesAvailableCondition).Status).To(Equal(metav1.ConditionTrue), "they are there")
			g.Expect(w.machines()).To(HaveLen(3))
		})
	}
}

// TestCertificatesThatNobodyHasLookedAtAreUnknown: what fails before is not their fault.
func TestCertificatesThatNobodyHasLookedAtAreUnknown(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef.Kind = "PlainMachineTemplat"
	w := newWorld(t, newCluster(), controlPlane)

	w.tell(w.manager())

	g.Expect(w.told(controlplanev1.CertificatesAvailableCondition).Status).To(Equal(metav1.ConditionUnknown))
	g.Expect(w.told(controlplanev1.InitializedCondition).Message).To(ContainSubstring("PlainMachineTemplat plain"))
}

// TestARefusalOfTheAPIServerIsTold: the cause is in the condition of what does not go on.
func TestARefusalOfTheAPIServerIsTold(t *testing.T) {
	t.Run("another Machine", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 1)
		w.refusing(r)
		w.scale(3)

		w.tell(r)

		g.Expect(w.told(controlplanev1.ScalingUpCondition).Message).To(ContainSubstring("exceeded quota"))
		g.Expect(w.told(controlplanev1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
		g.Expect(w.told(controlplanev1.AvailableCondition).Message).To(ContainSubstring("exceeded quota"))
	})
	t.Run("a remediation", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 3)
		w.refusing(r)
		w.talos[w.machines()[2].Name].SetSilent(true)
		w.flag(w.machines()[2])

		w.tell(r)

		g.Expect(conditions.GetMessage(w.machines()[2], clusterv1.MachineOwnerRemediatedCondition)).To(And(
			HavePrefix("The Machine is to be deleted\n"), ContainSubstring("exceeded quota")))
	})
	t.Run("the deletion of the control plane", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 1)
		w.refusing(r)
		g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())

		w.tell(r)

		g.Expect(w.told(controlplanev1.DeletingCondition).Message).To(ContainSubstring("exceeded quota"))
	})
}

// TestWhatWaitsForAPersonIsToldOfAHealthyControlPlane: it stays available, and nothing that
// is wanted is done.
func TestWhatWaitsForAPersonIsToldOfAHealthyControlPlane(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	stray := w.machines()[0].DeepCopy()
	stray.Name, stray.UID, stray.ResourceVersion, stray.OwnerReferences = "stray", "", "", nil
	stray.Spec = clusterv1.MachineSpec{ProviderID: "other://stray"}
	delete(stray.Labels, clusterv1.MachineControlPlaneNameLabel)
	g.Expect(w.client.Create(t.Context(), stray)).To(Succeed())
	broken := w.machines()[0]
	w.talos[broken.Name].SetSilent(true)
	w.flag(broken)

	w.tell(r)

	available := w.told(controlplanev1.AvailableCondition)
	g.Expect(available.Status).To(Equal(metav1.ConditionTrue), available.Message)
	g.Expect(available.Message).To(ContainSubstring("do not belong to this TalosControlPlane: stray;"))
	g.Expect(conditions.GetMessage(w.machines()[0], clusterv1.MachineOwnerRemediatedCondition)).To(ContainSubstring("stray"))
}

// TestTheOnlyMachineThatCannotBeReplacedSaysWhy: the way out is not to give the data up.
func TestTheOnlyMachineThatCannotBeReplacedSaysWhy(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	w.change(func(c *controlplanev1.TalosControlPlane) {
		c.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "absent"
	})
	g.Expect(w.client.Delete(t.Context(), w.machines()[0])).To(Succeed())

	w.tell(r)

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.told(controlplanev1.ScalingUpCondition)).To(And(
		HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("absent"))))
	g.Expect(conditions.GetMessage(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition)).To(And(
		ContainSubstring("absent"), ContainSubstring(controlplanev1.EtcdPreTerminateHookOverrideAnnotation)))
}

// TestAControlPlaneWithoutItsClusterGoes: somebody has taken the finalizer from the Cluster.
func TestAControlPlaneWithoutItsClusterGoes(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())
	g.Expect(w.client.Delete(t.Context(), newCluster())).To(Succeed())

	w.tell(r)

	g.Expect(w.machines()).To(BeEmpty())
	g.Expect(apierrors.IsNotFound(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{}))).To(BeTrue())
}
