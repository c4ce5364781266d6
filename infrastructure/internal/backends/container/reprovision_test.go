package container_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestTheOnlyControlPlaneMachineInAPodIsNotReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
	w.ControlPlane()
	w.Wish("a", "")
	w.Settle(m)
	g.Expect(w.Told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.EtcdQuorumAtRiskReason))
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))

	w.Wish("a", infrav1.ReprovisionDespiteOthers)
	w.Wait(time.Minute)
	w.Settle(m)
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(2))
	harness.ExpectRuns(w, "a")
}

func TestAMachineInAPodIsReprovisioned(t *testing.T) {
	for name, make := range map[string]func(*infrav1.TalosMachine){"without a volume": harness.Limited, "on a volume": harness.OnVolume} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", make))
			before, first := w.Machine("a"), w.UserDataOf("a")
			w.PodRuntime.Stuck = true
			w.Wish("a", "")
			w.Settle(m)
			g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReprovisioningCondition)).To(BeTrue())
			g.Expect(w.Exists(&corev1.Secret{}, "a-userdata")).To(BeTrue(), "the Pod goes first")
			w.PodRuntime.Stuck = false
			w.Settle(m)
			harness.ExpectRuns(w, "a")
			machine := w.Machine("a")
			g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
			g.Expect(machine.Spec.ProviderID).To(Equal(before.Spec.ProviderID))
			g.Expect(machine.Spec.Pod.EtcdAddress).To(Equal(before.Spec.Pod.EtcdAddress))
			g.Expect(w.UserDataOf("a")).To(Equal(first))
			g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(2))
			g.Expect(conditions.IsFalse(machine, infrav1.ReprovisioningCondition)).To(BeTrue())
			w.Settle(m)
			g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(2), "the annotation is used up")
		})
	}
	t.Run("when it is lost", func(t *testing.T) {
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		w.Wish("a", "")
		w.Settle(m)
		harness.ExpectRuns(w, "a")
		NewWithT(t).Expect(w.Machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	})
	t.Run("needlessly, before it has run", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, harness.NewPodMachine(t, "a")...)
		w.Wish("a", "")
		w.Settle(w.Manager())
		harness.ExpectRuns(w, "a")
		g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
		g.Expect(w.Machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	})
	t.Run("one at a time of a cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, append(harness.NewPodMachine(t, "a"), harness.NewPodMachine(t, "b")...))
		w.PodRuntime.Stuck = true
		w.Wish("a", "")
		w.Round(m)
		w.Wish("b", "")
		w.Settle(m)
		w.ExpectTold("a", infrav1.RunningCondition, infrav1.WipingReason)
		found := w.Told("b", infrav1.ReprovisioningCondition)
		g.Expect(found.Reason).To(Equal(infrav1.ReprovisioningBlockedReason))
		g.Expect(found.Message).To(ContainSubstring("TalosMachine a"))
		w.PodRuntime.Stuck = false
		w.PodRuntime.Pull = "later"
		w.Settle(m)
		g.Expect(w.Told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ApplyingConfigurationReason))
		g.Expect(w.Machine("a").Annotations).To(HaveKey(infrav1.ReprovisionAnnotation), "it is taken away once the machine runs")
		g.Expect(w.Told("b", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ReprovisioningBlockedReason), "a member that was wiped is none before it runs")
		g.Expect(w.PodRuntime.Created["b"]).To(HaveLen(1))
		w.PodRuntime.Pull = ""
		w.Settle(m)
		w.Settle(m)
		harness.ExpectRuns(w, "a")
		harness.ExpectRuns(w, "b")
		g.Expect(w.PodRuntime.Created["b"]).To(HaveLen(2))
	})
	t.Run("not without its configuration", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
		w.Remove(harness.Get(w, &corev1.Secret{}, "a"))
		w.Wish("a", "")
		w.Settle(m)
		g.Expect(w.Told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.ReprovisionDataMissingReason))
		harness.ExpectRuns(w, "a")
	})
}
