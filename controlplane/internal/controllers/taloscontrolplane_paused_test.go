package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// pause sets spec.paused of the Cluster, and lets a manager see it.
func (w *world) pause(r *Reconciler, paused bool) {
	w.t.Helper()
	cluster := w.cluster()
	cluster.Spec.Paused = ptr.To(paused)
	NewWithT(w.t).Expect(w.client.Update(w.t.Context(), cluster)).To(Succeed())
	NewWithT(w.t).Expect(w.reconcile(r)).To(Succeed())
}

// pauseItself sets the annotation that pauses the control plane, or takes it away, and lets
// a manager see it.
func (w *world) pauseItself(r *Reconciler, paused bool) {
	w.t.Helper()
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		delete(controlPlane.Annotations, clusterv1.PausedAnnotation)
		if paused {
			metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, clusterv1.PausedAnnotation, "")
		}
	})
	NewWithT(w.t).Expect(w.reconcile(r)).To(Succeed())
}

// loseCluster is what is left when somebody takes the finalizer from a Cluster and deletes
// it: the garbage collector deletes the control plane.
func (w *world) loseCluster() {
	w.t.Helper()
	g := NewWithT(w.t)
	g.Expect(w.client.Delete(w.t.Context(), w.controlPlane())).To(Succeed())
	g.Expect(w.client.Delete(w.t.Context(), w.cluster())).To(Succeed())
}

// isUntouched reports whether no Machine is deleted or has lost our hook.
func (w *world) isUntouched() bool {
	w.t.Helper()
	for _, machine := range w.machines() {
		if !machine.DeletionTimestamp.IsZero() || !metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.EtcdPreTerminateHookAnnotation) {
			return false
		}
	}

	return len(w.machines()) > 0
}

// TestAPauseOutlivesTheCluster: a control plane that its Cluster has paused deletes nothing
// when the Cluster is gone, and says what a person can do.
func TestAPauseOutlivesTheCluster(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	w.pause(r, true)
	w.loseCluster()
	w.settle(r)
	g.Expect(w.isUntouched()).To(BeTrue())
	g.Expect(conditions.IsTrue(w.controlPlane(), clusterv1.PausedCondition)).To(BeTrue())
	g.Expect(conditions.GetMessage(w.controlPlane(), clusterv1.PausedCondition)).To(And(
		ContainSubstring("Cluster one does not exist any more, and it was paused"), ContainSubstring("Create a Cluster of that name again")))

	version := w.controlPlane().ResourceVersion
	w.settle(w.manager())
	g.Expect(w.controlPlane().ResourceVersion).To(Equal(version), "another manager knows as much")
	g.Expect(w.isUntouched()).To(BeTrue())

	again := newCluster()
	again.Spec.Paused = ptr.To(true)
	g.Expect(w.client.Create(t.Context(), again)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.GetMessage(w.controlPlane(), clusterv1.PausedCondition)).NotTo(ContainSubstring("does not exist"))
	g.Expect(w.isUntouched()).To(BeTrue())

	w.pause(r, false)
	g.Expect(conditions.IsFalse(w.controlPlane(), clusterv1.PausedCondition)).To(BeTrue())
	g.Expect(w.machines()).To(HaveEach(HaveField("DeletionTimestamp", Not(BeNil()))))
}

// TestWhichPauseOutlivesTheCluster: the last one that the Cluster has asked for.
func TestWhichPauseOutlivesTheCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after func(*world, *Reconciler)
		stays         bool
	}{
		"that of the Cluster":                    {func(w *world, r *Reconciler) { w.pause(r, true) }, nil, true},
		"none":                                   {nil, nil, false},
		"none that was over before":              {func(w *world, r *Reconciler) { w.pause(r, true); w.pause(r, false) }, nil, false},
		"none of which nothing is known":         {func(w *world, r *Reconciler) { w.pause(r, true); w.loseStatus() }, nil, false},
		"its own":                                {func(w *world, r *Reconciler) { w.pauseItself(r, true) }, nil, true},
		"its own, until it is taken away":        {func(w *world, r *Reconciler) { w.pauseItself(r, true) }, func(w *world, r *Reconciler) { w.pauseItself(r, false) }, false},
		"that of the Cluster, beside its own":    {func(w *world, r *Reconciler) { w.pauseItself(r, true); w.pause(r, true) }, func(w *world, r *Reconciler) { w.pauseItself(r, false) }, true},
		"that of the Cluster, and then its own":  {func(w *world, r *Reconciler) { w.pause(r, true) }, func(w *world, r *Reconciler) { w.pauseItself(r, true); w.pauseItself(r, false) }, true},
		"its own, when that of the Cluster ends": {func(w *world, r *Reconciler) { w.pauseItself(r, true); w.pause(r, true); w.pause(r, false) }, func(w *world, r *Reconciler) { w.pauseItself(r, false) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := changing(t, 1)
			if tc.before != nil {
				tc.before(w, r)
			}
			w.loseCluster()
			g.Expect(w.reconcile(r)).To(Succeed())
			if tc.after != nil {
				g.Expect(w.isUntouched()).To(BeTrue())
				tc.after(w, r)
			}
			g.Expect(w.reconcile(r)).To(Succeed())

			g.Expect(w.isUntouched()).To(Equal(tc.stays))
			g.Expect(conditions.IsTrue(w.controlPlane(), clusterv1.PausedCondition)).To(Equal(tc.stays))
		})
	}
}
