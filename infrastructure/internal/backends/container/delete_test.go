package container_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineInAPodIsDeleted(t *testing.T) {
	t.Run("its Pod first, and nothing is left", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		w.PodRuntime.Stuck = true
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(HaveLen(5))
		deleting := w.Told("a", infrav1.DeletingCondition)
		g.Expect(deleting.Reason).To(Equal(infrav1.WaitingForPodDeletionReason))
		g.Expect(deleting.Message).To(And(ContainSubstring("Pod a"), ContainSubstring("node node-1 has to confirm")))
		w.SetReady("node-1", corev1.ConditionUnknown)
		w.Live(m, time.Minute)
		deleting = w.Told("a", infrav1.DeletingCondition)
		g.Expect(deleting.Reason).To(Equal(infrav1.NodeNotReadyReason))
		g.Expect(deleting.Message).To(And(ContainSubstring("delete the Node"), ContainSubstring(corev1.TaintNodeOutOfService)))
		w.ExpectTold("a", infrav1.ReadyCondition, infrav1.DeletingReason, "delete the Node")
		g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NodeNotReady: ")))
		w.PodRuntime.Stuck = false
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(BeEmpty())
		g.Expect(w.PodRuntime.Deleted).To(Equal([]string{"*v1alpha1.TalosMachine", "*v1.Pod", "*v1.Secret", "*v1.PersistentVolumeClaim", "*v1.Service"}))
		g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Normal PodDeleted ")))
	})
	t.Run("a control plane without etcd may begin with another one then", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
		gone := func() []string {
			return infrav1.GoneMachines(harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster).Annotations)
		}
		providerID := w.Machine("a").Spec.ProviderID
		w.PodRuntime.Stuck = true
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(gone()).To(BeEmpty(), "its Pod is still there")
		w.PodRuntime.Stuck = false
		w.Settle(m)
		g.Expect(gone()).To(Equal([]string{providerID}))
	})
	t.Run("with its Machine and its Cluster gone", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		w.Remove(w.Machine("a"))
		w.Remove(harness.Get(w, &clusterv1.Machine{}, "a"))
		w.Remove(harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster))
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(BeEmpty())
	})
	t.Run("before it has a Pod", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", harness.OnVolume)...)
		w.PodRuntime.Refuse = refusePods
		m := w.Manager()
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(ContainElements("*v1.PersistentVolumeClaim", "*v1.Service"))
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(BeEmpty())
	})
	t.Run("after a move nothing is done to its Pod", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
		harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, infrav1.DeleteForMoveAnnotation, "")
		})
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.PodRuntime.Deleted).To(Equal([]string{"*v1alpha1.TalosMachine"}))
		g.Expect(w.PodRuntime.Running()).To(ConsistOf("a"))
		g.Expect(w.Told("a", infrav1.DeletingCondition).Reason).To(Equal(infrav1.DeletedForMoveReason))
	})
	t.Run("without its Pod, which it leaves to nobody", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
		harness.Change(w, harness.Get(w, &corev1.Pod{}, "a"), func(p *corev1.Pod) { p.OwnerReferences = nil })
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
		g.Expect(w.PodRuntime.Running()).To(ConsistOf("a"), "somebody has wished so")
		g.Expect(harness.Get(w, &corev1.Pod{}, "a").Finalizers).NotTo(ContainElement(infrav1.TalosPodFinalizer), "nobody would let it go")
	})
	t.Run("what nobody owns any more is let go", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
		machine := w.Machine("a")
		harness.Change(w, machine, func(m *infrav1.TalosMachine) { m.Finalizers = nil })
		w.Remove(machine)
		request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(machine)}
		_, err := m.Machines.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.PodRuntime.Running()).To(ConsistOf("a"), "it is for the garbage collector to end it")
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		_, err = m.Machines.Reconcile(t.Context(), request)
		g.Expect(err).NotTo(HaveOccurred())
		w.PodRuntime.Work()
		w.PodRuntime.Work()
		g.Expect(w.Exists(&corev1.Pod{}, "a")).To(BeFalse())
	})
}

func refusePods(object client.Object) error {
	if _, isPod := object.(*corev1.Pod); isPod {
		return harness.Forbidden(object, `violates PodSecurity "restricted:latest": privileged`)
	}

	return nil
}
