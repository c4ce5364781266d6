package container_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestTheClaimOfAMachineIsNotMadeAgain: on an empty volume a blank member would come up at
// the address of the one that was lost.
func TestTheClaimOfAMachineIsNotMadeAgain(t *testing.T) {
	claimOf := func(w *harness.Environment) *corev1.PersistentVolumeClaim {
		return harness.Get(w, &corev1.PersistentVolumeClaim{}, "a-data")
	}
	expectLost := func(w *harness.Environment) {
		t.Helper()
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodLostReason, "The volume claim of the machine is gone, or is being deleted")
		NewWithT(w.T).Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
		NewWithT(w.T).Expect(w.Exists(&corev1.Pod{}, "a")).To(BeFalse())
	}
	t.Run("it goes once its Pod is gone", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		harness.Change(w, claimOf(w), func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"kubernetes.io/pvc-protection"} })
		w.Remove(claimOf(w))
		w.Settle(m)
		harness.ExpectRuns(w, "a")
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		expectLost(w)
		harness.Change(w, claimOf(w), func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
		w.Settle(m)
		expectLost(w)
		g.Expect(w.Exists(&corev1.PersistentVolumeClaim{}, "a-data")).To(BeFalse())
	})
	for name, full := range map[string]bool{"it goes while its Pod is made again": false, "also before the machine has run": true} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", harness.OnVolume)...)
			w.PodRuntime.Full = full
			w.Settle(w.Manager())
			w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
			w.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, into, opts...)
					if claim, isClaim := into.(*corev1.PersistentVolumeClaim); isClaim && err == nil && !w.Exists(&corev1.Pod{}, "a") {
						g.Expect(c.Delete(ctx, claim.DeepCopy())).To(Succeed())
					}
					return err
				},
			})
			w.Settle(w.Manager())
			expectLost(w)
			g.Expect(w.Exists(&corev1.PersistentVolumeClaim{}, "a-data")).To(BeFalse())
		})
	}
	t.Run("it is somebody else's by now", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		harness.Change(w, claimOf(w), func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil })
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.NameConflictReason, "PersistentVolumeClaim a-data")
		g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
	})
}
