package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// changing is a control plane whose Machines can be deleted.
func changing(t *testing.T, replicas int32) (*world, *Reconciler) {
	t.Helper()
	w, r := scaled(t, replicas)
	w.core = true
	w.hold()

	return w, r
}

// until lets a manager and the others take turns until done.
func (w *world) until(r *Reconciler, done func() bool) {
	w.t.Helper()
	g := NewWithT(w.t)
	g.Eventually(func() bool {
		g.Expect(w.reconcile(r)).To(Succeed())
		w.others()
		return done()
	}).WithTimeout(30*time.Second).WithPolling(time.Millisecond).Should(BeTrue(), func() string {
		controlPlane := w.controlPlane()
		return conditions.GetMessage(controlPlane, controlplanev1.ScalingDownCondition) + conditions.GetMessage(controlPlane, controlplanev1.RollingOutCondition)
	})
}

// staying counts the Machines that are not being deleted.
func (w *world) staying() int {
	staying := 0
	for _, machine := range w.machines() {
		if machine.DeletionTimestamp.IsZero() {
			staying++
		}
	}

	return staying
}

func (w *world) has(count int) func() bool {
	return func() bool {
		w.t.Helper()
		return len(w.machines()) == count && len(w.members()) == count
	}
}

func TestScaleDown(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 5)
	w.scale(3)
	w.until(r, w.has(3))
	w.scale(1)
	w.until(r, w.has(1))
	w.settle(r)
	g.Expect(w.has(1)()).To(BeTrue())
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
	g.Expect(w.bootstraps()).To(Equal(1))
}

func TestScaleDownSurvivesADeathAtEachWrite(t *testing.T) {
	for at := 1; ; at++ {
		w, r := changing(t, 3)
		w.scale(1)
		died := false
		w.life.DieAt(at)
		for range 40 {
			w.step(r)
			if !w.life.IsOver() {
				w.others()
				continue
			}
			died = true
			w.life.Restart()
			r = w.manager()
		}
		w.life.DieAt(0)
		w.until(r, w.has(1))
		if !died {
			NewWithT(t).Expect(at).To(BeNumerically(">", 5))
			return
		}
	}
}

func TestRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas int32
		surge    int
		most     int
	}{
		"one machine":             {1, 1, 2},
		"three, one more at once": {3, 1, 4},
		"three, one fewer":        {3, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := changing(t, tc.replicas)
			before := w.machines()
			w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
				controlPlane.Spec.Version = "v1.36.4"
				controlPlane.Spec.Rollout.Strategy.Type = controlplanev1.RollingUpdateStrategyType
				controlPlane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt(tc.surge))
			})
			most := 0
			w.until(r, func() bool {
				most = max(most, w.staying())
				for _, machine := range w.machines() {
					if machine.Spec.Version != "v1.36.4" {
						return false
					}
				}
				return w.has(int(tc.replicas))()
			})
			g.Expect(most).To(Equal(tc.most))
			for _, old := range before {
				for _, machine := range w.machines() {
					g.Expect(machine.Name).NotTo(Equal(old.Name))
				}
			}
			w.settle(r)
			g.Expect(conditions.IsFalse(w.controlPlane(), controlplanev1.RollingOutCondition)).To(BeTrue())
			g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
		})
	}
}

func TestOnDeleteReplacesOnlyWhatSomebodyDeletes(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Version = "v1.36.4"
		controlPlane.Spec.Rollout.Strategy.Type = controlplanev1.OnDeleteStrategyType
	})
	w.settle(r)
	g.Expect(w.controlPlane().Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(0)))
	g.Expect(w.machines()).To(HaveLen(3))

	g.Expect(w.client.Delete(t.Context(), w.machines()[1])).To(Succeed())
	w.until(r, func() bool { return w.has(3)() && ptr.Deref(w.controlPlane().Status.UpToDateReplicas, 0) == 1 })
}

func TestADeletedMachineOfThreeIsReplaced(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	gone := w.machines()[0]
	g.Expect(w.client.Delete(t.Context(), gone)).To(Succeed())
	w.until(r, func() bool {
		for _, machine := range w.machines() {
			if machine.Name == gone.Name {
				return false
			}
		}
		return w.has(3)()
	})
}

func TestTheOnlyMachineIsReplacedBeforeItGoes(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	old := w.machines()[0]
	g.Expect(w.client.Delete(t.Context(), old)).To(Succeed())
	w.until(r, func() bool { return w.has(1)() && w.machines()[0].Name != old.Name })
	g.Expect(w.bootstraps()).To(Equal(1))
}

// flag marks a Machine as a MachineHealthCheck does.
func (w *world) flag(machine *clusterv1.Machine) {
	w.t.Helper()
	for _, conditionType := range []string{clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition} {
		conditions.Set(machine, metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: "Test"})
	}
	NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), machine)).To(Succeed())
}

func TestAnUnhealthyMachineIsReplaced(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	broken := w.machines()[2]
	w.talos[broken.Name].SetSilent(true)
	w.flag(broken)
	w.until(r, func() bool { return !w.machines()[2].DeletionTimestamp.IsZero() || len(w.machines()) != 3 })
	g.Expect(w.controlPlane().Annotations).To(HaveKey(controlplanev1.RemediationInProgressAnnotation))
	g.Expect(w.controlPlane().Status.LastRemediation.Machine).To(Equal(broken.Name))
	w.until(r, func() bool {
		w.clock.SetTime(w.clock.Now().Add(time.Minute))
		return w.has(3)() && !metav1.HasAnnotation(w.controlPlane().ObjectMeta, controlplanev1.RemediationInProgressAnnotation)
	})
	replacements := 0
	for _, machine := range w.machines() {
		g.Expect(machine.Name).NotTo(Equal(broken.Name))
		if metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.RemediationForAnnotation) {
			replacements++
		}
	}
	g.Expect(replacements).To(Equal(1))
}

func TestTheOnlyMachineIsNotRemediated(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	w.flag(w.machines()[0])
	w.settle(r)
	machine := w.machines()[0]
	g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue())
	g.Expect(conditions.GetReason(machine, clusterv1.MachineOwnerRemediatedCondition)).To(Equal(controlplanev1.MachineCannotBeRemediatedReason))
}
