package controllers

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

func newFalse(conditionType string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse, Reason: "Test"}
}

func newWorker(name string) *clusterv1.Machine {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: testNamespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: testCluster},
	}}
}

// hold makes deleted Machines stay, as the Machine controller does.
func (w *world) hold() {
	w.t.Helper()
	g := NewWithT(w.t)
	for _, machine := range w.machines() {
		if len(machine.Finalizers) == 0 {
			machine.Finalizers = []string{clusterv1.MachineFinalizer}
			g.Expect(w.client.Update(w.t.Context(), machine)).To(Succeed())
			conditions.Set(machine, metav1.Condition{Type: clusterv1.MachineDeletingCondition, Status: metav1.ConditionTrue,
				Reason: clusterv1.MachineDeletingWaitingForPreTerminateHookReason})
			g.Expect(w.client.Status().Update(w.t.Context(), machine)).To(Succeed())
		}
	}
}

// release lets deleted Machines go, as the Machine controller does once no hook
// is left.
func (w *world) release() {
	w.t.Helper()
	if apierrors.IsNotFound(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(newCluster()), &clusterv1.Cluster{})) {
		return // It asks for the Cluster first.
	}
	for _, machine := range w.machines() {
		_, hooked := machine.Annotations[controlplanev1.EtcdPreTerminateHookAnnotation]
		if machine.DeletionTimestamp.IsZero() || hooked {
			continue
		}
		machine.Finalizers = nil
		NewWithT(w.t).Expect(w.client.Update(w.t.Context(), machine)).To(Succeed())
		if node := w.talos[machine.Name]; node != nil {
			node.SetSilent(true)
			delete(w.talos, machine.Name)
			w.gone = append(w.gone, node)
		}
	}
}

func TestDeletionWaitsForWorkersThenDropsHooksThenGoes(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	w.hold()
	worker := newWorker("worker-1")
	g.Expect(w.client.Create(t.Context(), worker)).To(Succeed())
	g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())

	g.Expect(w.reconcile(r)).To(Succeed())
	deleting := conditions.Get(w.controlPlane(), controlplanev1.DeletingCondition)
	g.Expect(deleting.Reason).To(Equal(controlplanev1.DeletingWaitingForWorkersDeletionReason))
	g.Expect(deleting.Message).To(ContainSubstring("Machine worker-1"))
	g.Expect(w.cpMachine().DeletionTimestamp.IsZero()).To(BeTrue())

	g.Expect(w.client.Delete(t.Context(), worker)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.cpMachine().DeletionTimestamp.IsZero()).To(BeFalse())
	g.Expect(w.cpMachine().Annotations).NotTo(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.DeletingCondition)).To(Equal(controlplanev1.DeletingWaitingForMachineDeletionReason))
	g.Expect(conditions.IsFalse(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())

	w.release()
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(client.IgnoreNotFound(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{}))).To(Succeed())
	g.Expect(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{})).NotTo(Succeed())
	g.Expect(w.bootstraps()).To(Equal(1))
}

func TestDeletionBeforeAnythingExists(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Finalizers = []string{controlplanev1.TalosControlPlaneFinalizer}
	w := newWorld(t, newCluster(), controlPlane)
	g.Expect(w.client.Delete(t.Context(), controlPlane)).To(Succeed())
	r := w.manager()

	for range 2 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}

	g.Expect(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{})).NotTo(Succeed())
	g.Expect(w.machines()).To(BeEmpty())
}

func TestDeletionRemovesWhatAnAbortedCreationLeft(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	for len(w.talosConfigs()) == 0 {
		if len(w.infraMachines()) == 1 {
			w.life.DieAt(2) // After the TalosConfig, before the Machine.
		}
		w.step(r)
	}
	w.life.Restart()
	machines := w.machines()
	for _, machine := range machines {
		g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	}
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		if controlPlane.Annotations == nil {
			controlPlane.Annotations = map[string]string{}
		}
		controlPlane.Annotations[controlplanev1.NextMachineAnnotation] = w.talosConfigs()[0].Name
	})
	g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())

	for range 3 {
		w.step(w.manager())
	}

	g.Expect(w.infraMachines()).To(BeEmpty())
	g.Expect(w.talosConfigs()).To(BeEmpty())
	g.Expect(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{})).NotTo(Succeed())
}

func TestDeletedMachineIsHeldWithoutAMajority(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 3)
	w.hold()
	for _, silent := range w.machines()[1:] {
		w.talos[silent.Name].SetSilent(true)
	}
	g.Expect(w.client.Delete(t.Context(), w.machines()[0])).To(Succeed())

	w.settle(r)
	w.release()

	g.Expect(w.machines()).To(HaveLen(3))
	machine := w.machines()[0]
	g.Expect(machine.Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	condition := conditions.Get(machine, controlplanev1.MachineEtcdMemberHealthyCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.MachineEtcdMemberDeletingReason))
	g.Expect(condition.Message).To(ContainSubstring(controlplanev1.EtcdPreTerminateHookOverrideAnnotation))

	machine.Annotations[controlplanev1.EtcdPreTerminateHookOverrideAnnotation] = ""
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.machines()[0].Annotations).NotTo(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	g.Expect(w.recorded()).To(ContainElement(And(HavePrefix("Warning EtcdMemberAbandoned "), ContainSubstring(machine.Name))))
}

// brokenProber cannot ask: the kubeconfig of a user is of no use.
type brokenProber struct{}

func (brokenProber) Probe(context.Context, []byte) (health.APIServerState, error) {
	return health.APIServerUnknown, errors.New("no kubeconfig")
}

// TestAMachineIsAbandonedThoughNothingCanBeDecided: the way out that a person takes must
// not depend on what keeps the control plane from being looked at.
func TestAMachineIsAbandonedThoughNothingCanBeDecided(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 3)
	w.hold()
	r.Prober = brokenProber{}
	abandoned, kept := w.machines()[0], w.machines()[1]
	for _, machine := range []*clusterv1.Machine{abandoned, kept} {
		w.talos[machine.Name].SetSilent(true)
		g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	}
	abandoned = w.machines()[0]
	abandoned.Annotations[controlplanev1.EtcdPreTerminateHookOverrideAnnotation] = ""
	g.Expect(w.client.Update(t.Context(), abandoned)).To(Succeed())

	g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("no kubeconfig")))
	g.Expect(w.machines()[0].Annotations).NotTo(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
	g.Expect(w.machines()[1].Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
}

// recorded are the events since it was asked last.
func (w *world) recorded() []string {
	var found []string
	for {
		select {
		case event := <-w.events.Events:
			found = append(found, event)
		default:
			return found
		}
	}
}

// lateProber is asked what answers at the endpoint.
type lateProber struct{ asked func() health.APIServerState }

func (p lateProber) Probe(context.Context, []byte) (health.APIServerState, error) {
	return p.asked(), nil
}

// TestAnEndpointThatHangsDelaysNoLeave: whoever reaches the API server of a node that
// has left etcd waits in vain, and so would the manager. It lets the Machine go first.
func TestAnEndpointThatHangsDelaysNoLeave(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	leaving := w.machines()[0]
	member := w.talos[leaving.Name].Snapshot().EtcdStatus.MemberID
	isOut := func() bool {
		return !slices.ContainsFunc(w.talos[w.machines()[1].Name].Snapshot().Members, func(m talosclient.EtcdMember) bool { return m.ID == member })
	}
	var outBefore bool
	r.Prober = lateProber{asked: func() health.APIServerState {
		if !outBefore {
			return health.APIServerReady
		}
		if len(w.machines()) == 3 {
			g.Expect(w.machines()[0].Annotations).NotTo(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
		}
		return health.APIServerSilent
	}}
	g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
	g.Eventually(func() bool {
		outBefore = isOut() // it may get out while the reconcile runs, too late to be seen
		g.Expect(w.reconcile(r)).To(Succeed())
		return metav1.HasAnnotation(w.machines()[0].ObjectMeta, controlplanev1.EtcdPreTerminateHookAnnotation)
	}).WithTimeout(30 * time.Second).WithPolling(time.Millisecond).Should(BeFalse())
	g.Expect(isOut()).To(BeTrue())
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue(), "what was known last is told")
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.AvailableCondition)).To(ContainSubstring("Nothing answers at the control plane endpoint"))
}

// TestOnlySilenceIsCountedAgainstALeave: a node that answers has all the time that it
// needs; of one that is silent the member is removed through another one, once
// spec.etcd.leaveTimeoutSeconds are over.
func TestOnlySilenceIsCountedAgainstALeave(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	leaving := w.machines()[0]
	node := w.talos[leaving.Name]
	node.OnLeave = func(*talosfake.Machine) error { return errors.New("etcd finds its cluster unhealthy") }
	g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
	w.settle(r)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(w.machines()[0].Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))

	node.SetSilent(true)
	w.settle(r)
	w.clock.SetTime(w.clock.Now().Add(time.Duration(controlplanev1.DefaultEtcdLeaveTimeoutSeconds-1) * time.Second))
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3))
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.settle(r)
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning EtcdMemberRemoved ")))
	w.until(r, func() bool { return len(w.machines()) == 3 && w.machines()[0].Name != leaving.Name && w.has(3)() })
}

// TestALeaveAsksNoOtherMember: a connection outlives the machine at its end, and leads
// to the next one at the address. It is not asked to leave.
func TestALeaveAsksNoOtherMember(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	leaving := w.machines()[0]
	node := w.talos[leaving.Name]
	var asked atomic.Int32
	node.OnForfeit = func(next *talosfake.Machine) error {
		asked.Add(1)
		next.Update(func(s *talosfake.State) { s.EtcdStatus.MemberID++ })
		return nil
	}
	node.OnLeave = func(*talosfake.Machine) error {
		t.Error("the next one was asked to leave")
		return nil
	}
	g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
	w.settle(r)
	g.Eventually(asked.Load).Should(BeEquivalentTo(1))
	g.Eventually(func() bool { return r.leaves.Running(nodes.KeyOf(leaving)) }).Should(BeFalse())
	g.Expect(w.members()).To(HaveLen(3))
}

// TestAMachineThatWaitsIsNotWritten: the webhook of Cluster API gives every Machine a
// time limit. Taking it away at each pass would meet the Machine controller's own
// writes, again and again.
func TestAMachineThatWaitsIsNotWritten(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 3)
	w.hold()
	for _, silent := range w.machines()[1:] {
		w.talos[silent.Name].SetSilent(true)
	}
	machine := w.machines()[0]
	machine.Spec.Deletion.NodeDeletionTimeoutSeconds = ptr.To(int32(10))
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())
	g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	w.settle(r)

	before := w.life.Effects()
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.life.Effects()).To(Equal(before))
	g.Expect(w.machines()[0].Spec.Deletion.NodeDeletionTimeoutSeconds).To(HaveValue(BeEquivalentTo(10)))
}

func TestDeletedMachineThatNeverBecameANodeIsReplaced(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	for len(w.machines()) == 0 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}
	w.hold()
	old := w.machines()[0]
	g.Expect(w.client.Delete(t.Context(), old)).To(Succeed())

	for range 3 {
		g.Expect(w.reconcile(r)).To(Succeed())
		w.release()
	}
	w.settle(r)

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.machines()[0].Name).NotTo(Equal(old.Name))
	g.Expect(w.bootstraps()).To(Equal(1))
}

// step is a pass of which the outcome does not matter.
func (w *world) step(r *Reconciler) {
	if err := w.reconcile(r); err != nil {
		w.t.Log(err)
	}
}

// cpMachine is the control plane Machine.
func (w *world) cpMachine() *clusterv1.Machine {
	w.t.Helper()
	for _, machine := range w.machines() {
		if _, ok := machine.Labels[clusterv1.MachineControlPlaneLabel]; ok {
			return machine
		}
	}
	w.t.Fatal("no control plane Machine")

	return nil
}
