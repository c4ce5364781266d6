package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestAMachineInAPodIsReprovisioned(t *testing.T) {
	for name, make := range map[string]func(*infrav1.TalosMachine){"without a volume": limited, "on a volume": onVolume} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := inPod(t, newPodControlPlane(t, "a", make))
			before, first := w.machine("a"), w.userDataOf("a")
			w.yard.stuck = true
			w.wish("a", "")
			w.settle(m)
			g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ReprovisioningCondition)).To(BeTrue())
			g.Expect(w.exists(&corev1.Secret{}, "a-userdata")).To(BeTrue(), "the Pod goes first")
			w.yard.stuck = false
			w.settle(m)
			expectRuns(w, "a")
			machine := w.machine("a")
			g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
			g.Expect(machine.Spec.ProviderID).To(Equal(before.Spec.ProviderID))
			g.Expect(machine.Spec.Pod.EtcdAddress).To(Equal(before.Spec.Pod.EtcdAddress))
			g.Expect(w.userDataOf("a")).To(Equal(first))
			g.Expect(w.yard.created["a"]).To(HaveLen(2))
			g.Expect(conditions.IsFalse(machine, infrav1.ReprovisioningCondition)).To(BeTrue())
			w.settle(m)
			g.Expect(w.yard.created["a"]).To(HaveLen(2), "the annotation is used up")
		})
	}
	t.Run("when it is lost", func(t *testing.T) {
		w, m := inPod(t, newPodMachine(t, "a"))
		w.remove(get(w, &corev1.Pod{}, "a"))
		w.settle(m)
		w.wish("a", "")
		w.settle(m)
		expectRuns(w, "a")
		NewWithT(t).Expect(w.machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	})
	t.Run("needlessly, before it has run", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, newPodMachine(t, "a")...)
		w.wish("a", "")
		w.settle(w.manager())
		expectRuns(w, "a")
		g.Expect(w.yard.created["a"]).To(HaveLen(1))
		g.Expect(w.machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	})
	t.Run("one at a time of a cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, append(newPodMachine(t, "a"), newPodMachine(t, "b")...))
		w.yard.stuck = true
		w.wish("a", "")
		w.round(m)
		w.wish("b", "")
		w.settle(m)
		w.expectTold("a", infrav1.RunningCondition, infrav1.WipingReason)
		found := w.told("b", infrav1.ReprovisioningCondition)
		g.Expect(found.Reason).To(Equal(infrav1.ReprovisioningBlockedReason))
		g.Expect(found.Message).To(ContainSubstring("TalosMachine a"))
		w.yard.stuck = false
		w.yard.pull = "later"
		w.settle(m)
		g.Expect(w.told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ApplyingConfigurationReason))
		g.Expect(w.machine("a").Annotations).To(HaveKey(infrav1.ReprovisionAnnotation), "it is taken away once the machine runs")
		g.Expect(w.told("b", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ReprovisioningBlockedReason), "a member that was wiped is none before it runs")
		g.Expect(w.yard.created["b"]).To(HaveLen(1))
		w.yard.pull = ""
		w.settle(m)
		w.settle(m)
		expectRuns(w, "a")
		expectRuns(w, "b")
		g.Expect(w.yard.created["b"]).To(HaveLen(2))
	})
	t.Run("not without its configuration", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodMachine(t, "a"))
		w.remove(get(w, &corev1.Secret{}, "a"))
		w.wish("a", "")
		w.settle(m)
		g.Expect(w.told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ReprovisionDataMissingReason))
		expectRuns(w, "a")
	})
}

func TestAMachineInAPodIsDeleted(t *testing.T) {
	t.Run("its Pod first, and nothing is left", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a", onVolume))
		w.yard.stuck = true
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.leftOf("a")).To(HaveLen(5))
		deleting := w.told("a", infrav1.DeletingCondition)
		g.Expect(deleting.Reason).To(Equal(infrav1.WaitingForPodDeletionReason))
		g.Expect(deleting.Message).To(And(ContainSubstring("Pod a"), ContainSubstring("node node-1 has to confirm")))
		w.setReady("node-1", corev1.ConditionUnknown)
		w.live(m, time.Minute)
		deleting = w.told("a", infrav1.DeletingCondition)
		g.Expect(deleting.Reason).To(Equal(infrav1.NodeNotReadyReason))
		g.Expect(deleting.Message).To(And(ContainSubstring("delete the Node"), ContainSubstring(corev1.TaintNodeOutOfService)))
		w.expectTold("a", infrav1.ReadyCondition, infrav1.DeletingReason, "delete the Node")
		g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NodeNotReady: ")))
		w.yard.stuck = false
		w.settle(m)
		g.Expect(w.leftOf("a")).To(BeEmpty())
		g.Expect(w.yard.deleted).To(Equal([]string{"*v1alpha1.TalosMachine", "*v1.Pod", "*v1.Secret", "*v1.PersistentVolumeClaim", "*v1.Service"}))
		g.Expect(w.recorded()).To(ContainElement(HavePrefix("Normal PodDeleted ")))
	})
	t.Run("a control plane without etcd may begin with another one then", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a"))
		gone := func() []string {
			return infrav1.GoneMachines(get(w, &infrav1.TalosCluster{}, testCluster).Annotations)
		}
		providerID := w.machine("a").Spec.ProviderID
		w.yard.stuck = true
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(gone()).To(BeEmpty(), "its Pod is still there")
		w.yard.stuck = false
		w.settle(m)
		g.Expect(gone()).To(Equal([]string{providerID}))
	})
	t.Run("with its Machine and its Cluster gone", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a", onVolume))
		w.remove(w.machine("a"))
		w.remove(get(w, &clusterv1.Machine{}, "a"))
		w.remove(get(w, &clusterv1.Cluster{}, testCluster))
		w.settle(m)
		g.Expect(w.leftOf("a")).To(BeEmpty())
	})
	t.Run("before it has a Pod", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, newPodControlPlane(t, "a", onVolume)...)
		w.yard.refuse = refusePods
		m := w.manager()
		w.settle(m)
		g.Expect(w.leftOf("a")).To(ContainElements("*v1.PersistentVolumeClaim", "*v1.Service"))
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.leftOf("a")).To(BeEmpty())
	})
	t.Run("after a move nothing is done to its Pod", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a"))
		change(w, w.machine("a"), func(m *infrav1.TalosMachine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, infrav1.DeleteForMoveAnnotation, "")
		})
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.yard.deleted).To(Equal([]string{"*v1alpha1.TalosMachine"}))
		g.Expect(w.yard.running()).To(ConsistOf("a"))
		g.Expect(w.told("a", infrav1.DeletingCondition).Reason).To(Equal(infrav1.DeletedForMoveReason))
	})
	t.Run("without its Pod, which it leaves to nobody", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodMachine(t, "a"))
		change(w, get(w, &corev1.Pod{}, "a"), func(p *corev1.Pod) { p.OwnerReferences = nil })
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
		g.Expect(w.yard.running()).To(ConsistOf("a"), "somebody has wished so")
		g.Expect(get(w, &corev1.Pod{}, "a").Finalizers).NotTo(ContainElement(infrav1.TalosPodFinalizer), "nobody would let it go")
	})
	t.Run("what nobody owns any more is let go", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodMachine(t, "a"))
		machine := w.machine("a")
		change(w, machine, func(m *infrav1.TalosMachine) { m.Finalizers = nil })
		w.remove(machine)
		request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(machine)}
		_, err := m.machines.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.yard.running()).To(ConsistOf("a"), "it is for the garbage collector to end it")
		w.remove(get(w, &corev1.Pod{}, "a"))
		_, err = m.machines.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		w.yard.work()
		w.yard.work()
		g.Expect(w.exists(&corev1.Pod{}, "a")).To(BeFalse())
	})
}

func refusePods(object client.Object) error {
	if _, isPod := object.(*corev1.Pod); isPod {
		return forbidden(object, `violates PodSecurity "restricted:latest": privileged`)
	}

	return nil
}
