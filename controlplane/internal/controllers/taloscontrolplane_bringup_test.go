package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

func TestBringUpFromNothing(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)

	w.settle(w.manager())

	machines := w.machines()
	g.Expect(machines).To(HaveLen(1))
	g.Expect(w.infraMachines()).To(HaveLen(1))
	g.Expect(w.talosConfigs()).To(HaveLen(1))
	g.Expect(w.bootstraps()).To(Equal(1))

	machine := machines[0]
	g.Expect(machine.Name).To(MatchRegexp("^one-cp-[a-z0-9]{5}$"))
	g.Expect(w.infraMachines()[0].GetName()).To(Equal(machine.Name))
	g.Expect(w.talosConfigs()[0].Name).To(Equal(machine.Name))
	g.Expect(machine.Labels).To(And(
		HaveKeyWithValue(clusterv1.ClusterNameLabel, testCluster),
		HaveKeyWithValue(clusterv1.MachineControlPlaneLabel, ""),
		HaveKeyWithValue(clusterv1.MachineControlPlaneNameLabel, testName),
		HaveKeyWithValue("tier", "gold"),
	))
	g.Expect(machine.Annotations).To(And(
		HaveKeyWithValue(controlplanev1.EtcdPreTerminateHookAnnotation, ""),
		HaveKeyWithValue("note", "a"),
	))
	g.Expect(metav1.IsControlledBy(machine, w.controlPlane())).To(BeTrue())
	g.Expect(machine.Spec.Version).To(Equal("v1.36.3"))
	g.Expect(machine.Spec.ReadinessGates).To(HaveLen(5))

	infra := w.infraMachines()[0]
	g.Expect(infra.GetAnnotations()).To(And(
		HaveKeyWithValue(clusterv1.TemplateClonedFromNameAnnotation, "plain"),
		HaveKeyWithValue(clusterv1.TemplateClonedFromGroupKindAnnotation, "PlainMachineTemplate.infrastructure.cluster.x-k8s.io"),
		HaveKeyWithValue("note", "a"),
	))
	g.Expect(infra.GetLabels()).To(HaveKeyWithValue("tier", "gold"))
	g.Expect(infra.GetOwnerReferences()).To(ConsistOf(HaveField("Controller", BeNil()), And(HaveField("Kind", "Machine"), HaveField("UID", machine.UID), HaveField("Controller", HaveValue(BeTrue())))))
	g.Expect(infra.Object["spec"]).To(Equal(map[string]any{"size": "large"}))

	controlPlane := w.controlPlane()
	g.Expect(controlPlane.Annotations).NotTo(HaveKey(controlplanev1.NextMachineAnnotation))
	g.Expect(controlPlane.Annotations[controlplanev1.BootstrapIntentAnnotation]).To(MatchJSON(
		`{"kind":"Machine","namespace":"fleet","name":"` + machine.Name + `","providerID":"talos://` + machine.Name + `","bootstrapped":true,"initialized":true}`))
	g.Expect(controlPlane.Annotations).To(HaveKey(controlplanev1.BundleDigestAnnotation))
}

func TestStatusAfterBringUp(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)

	w.settle(w.manager())

	controlPlane := w.controlPlane()
	status := controlPlane.Status
	g.Expect(status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
	g.Expect(status.Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(status.ReadyReplicas).To(HaveValue(BeEquivalentTo(0)))
	g.Expect(status.Selector).To(ContainSubstring("cluster.x-k8s.io/cluster-name=one"))
	g.Expect(status.Versions).To(Equal([]clusterv1.StatusVersion{{Version: "v1.36.3", Replicas: 1}}))
	g.Expect(status.Version).To(Equal("v1.36.3"))
	g.Expect(status.ObservedGeneration).To(Equal(controlPlane.Generation))
	for conditionType, want := range map[string]metav1.ConditionStatus{
		clusterv1.PausedCondition:                             metav1.ConditionFalse,
		controlplanev1.AvailableCondition:                     metav1.ConditionTrue,
		controlplanev1.InitializedCondition:                   metav1.ConditionTrue,
		controlplanev1.CertificatesAvailableCondition:         metav1.ConditionTrue,
		controlplanev1.EtcdClusterHealthyCondition:            metav1.ConditionTrue,
		controlplanev1.ControlPlaneComponentsHealthyCondition: metav1.ConditionTrue,
		controlplanev1.MachinesReadyCondition:                 metav1.ConditionUnknown, // Core has not said it.
		controlplanev1.MachinesUpToDateCondition:              metav1.ConditionTrue,
		controlplanev1.RollingOutCondition:                    metav1.ConditionFalse,
		controlplanev1.ScalingUpCondition:                     metav1.ConditionFalse,
		controlplanev1.ScalingDownCondition:                   metav1.ConditionFalse,
		controlplanev1.RemediatingCondition:                   metav1.ConditionFalse,
		controlplanev1.DeletingCondition:                      metav1.ConditionFalse,
	} {
		condition := conditions.Get(controlPlane, conditionType)
		g.Expect(condition).NotTo(BeNil(), conditionType)
		g.Expect(condition.Status).To(Equal(want), conditionType+": "+condition.Message)
	}
	for _, conditionType := range append(health.MachineConditionTypes(), clusterv1.MachineUpToDateCondition) {
		g.Expect(conditions.IsTrue(w.machines()[0], conditionType)).To(BeTrue(), conditionType)
	}
}

func TestEveryConditionIsSetFromTheFirstPass(t *testing.T) {
	g := NewWithT(t)
	cluster := newCluster()
	cluster.Status = clusterv1.ClusterStatus{}
	w := newWorld(t, cluster, newControlPlane())
	r := w.manager()
	for range 3 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}

	controlPlane := w.controlPlane()
	for _, conditionType := range ownedConditions() {
		g.Expect(conditions.Has(controlPlane, conditionType)).To(BeTrue(), conditionType)
	}
	g.Expect(conditions.GetReason(controlPlane, controlplanev1.InitializedCondition)).To(Equal(controlplanev1.WaitingForClusterInfrastructureReason))
	g.Expect(w.machines()).To(BeEmpty())
}

func TestNothingIsWrittenOnceConverged(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)

	before := w.life.Effects()
	for range 5 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}

	g.Expect(w.life.Effects()).To(Equal(before))
}

func TestPausedControlPlaneIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	cluster := newCluster()
	cluster.Spec.Paused = ptr.To(true)
	w := newWorld(t, cluster, newControlPlane())

	w.settle(w.manager())

	controlPlane := w.controlPlane()
	g.Expect(w.machines()).To(BeEmpty())
	g.Expect(controlPlane.Finalizers).To(BeEmpty())
	g.Expect(controlPlane.Status.Conditions).To(ConsistOf(HaveField("Type", clusterv1.PausedCondition)))
}

func TestTemplateIsOwnedByTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())

	template := newTemplate()
	g.Expect(w.client.Get(t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
	g.Expect(template.GetOwnerReferences()).To(ConsistOf(And(HaveField("Kind", "Cluster"), HaveField("Name", testCluster))))
}

func TestMetadataAndTimeoutsReachMachinesInPlace(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)

	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		template := &controlPlane.Spec.MachineTemplate
		template.ObjectMeta.Labels = map[string]string{"tier": "silver"}
		template.ObjectMeta.Annotations = nil
		template.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(30))
		template.Spec.ReadinessGates = []clusterv1.MachineReadinessGate{{ConditionType: "Mine"}}
		template.Spec.Taints = []clusterv1.MachineTaint{{Key: "a", Effect: corev1.TaintEffectNoSchedule, Propagation: clusterv1.MachineTaintPropagationAlways}}
	})
	w.settle(r)

	g.Expect(w.machines()).To(HaveLen(1))
	machine := w.machines()[0]
	for _, object := range []client.Object{machine, &w.infraMachines()[0], &w.talosConfigs()[0]} {
		g.Expect(object.GetLabels()).To(HaveKeyWithValue("tier", "silver"))
		g.Expect(object.GetAnnotations()).NotTo(HaveKey("note"))
	}
	g.Expect(w.infraMachines()[0].GetAnnotations()).To(HaveKey(clusterv1.TemplateClonedFromNameAnnotation))
	g.Expect(machine.Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	g.Expect(machine.Spec.Deletion.NodeDrainTimeoutSeconds).To(HaveValue(BeEquivalentTo(30)))
	g.Expect(machine.Spec.ReadinessGates).To(ContainElement(HaveField("ConditionType", "Mine")))
	g.Expect(machine.Spec.Taints).To(HaveLen(1))
	g.Expect(machine.Spec.ProviderID).NotTo(BeEmpty())
	g.Expect(conditions.IsTrue(machine, clusterv1.MachineUpToDateCondition)).To(BeTrue())
}

func TestMachineGetsItsOwnerReferenceBack(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	machine := w.machines()[0]
	machine.OwnerReferences = nil
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())

	w.settle(r)

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(metav1.IsControlledBy(w.machines()[0], w.controlPlane())).To(BeTrue())
}

func TestForeignControlPlaneMachinesStopEverything(t *testing.T) {
	g := NewWithT(t)
	foreign := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: testNamespace, Name: "stray",
		Labels: map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: ""},
	}}
	w := newWorld(t, newCluster(), newControlPlane(), foreign)
	r := w.manager()
	for range 4 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.InitializedCondition)).To(Equal(controlplanev1.ForeignMachinesReason))
}

func TestMissingTemplateIsNamedInTheCondition(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "absent"
	w := newWorld(t, newCluster(), controlPlane)
	r := w.manager()

	g.Expect(w.reconcile(r)).NotTo(Succeed())

	g.Expect(w.machines()).To(BeEmpty())
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.InitializedCondition)).To(ContainSubstring("absent"))
}
