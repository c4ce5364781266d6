package controllers

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

func TestHealthyNodesAreNotAskedAgainForAWhile(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	g.Expect(w.reconcile(r)).To(Succeed())
	w.quiet = true
	w.clock.SetTime(testTime.Add(healthyInterval - 1))
	node := w.talos[w.machines()[0].Name]
	node.Fail("Hostname", errors.New("must not be asked"))

	w.settle(r)
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())

	w.clock.SetTime(testTime.Add(healthyInterval))
	w.settle(r)
	w.clock.SetTime(testTime.Add(healthyInterval + remoteGracePeriod))
	w.settle(r)
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeFalse())
}

func TestNodesAreAskedBeforeAnythingIsDone(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	g.Expect(w.reconcile(r)).To(Succeed())
	w.quiet = true
	node := w.talos[w.machines()[0].Name]
	node.Fail("Hostname", errors.New("dead"))
	w.scale(3)

	w.settle(r)

	g.Expect(w.machines()).To(HaveLen(1))
}

func TestANodeThatChangesIsAsked(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	g.Expect(w.reconcile(r)).To(Succeed())
	w.quiet = true
	machine := w.machines()[0]
	g.Expect(r.nodeToControlPlane(t.Context(), nodes.MachineOf(nodes.KeyOf(machine)))).To(HaveLen(1))
	w.talos[machine.Name].Fail("EtcdStatus", errors.New("dead"))

	g.Expect(w.reconcile(r)).To(Succeed())
	w.clock.SetTime(testTime.Add(remoteGracePeriod))
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.IsTrue(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition)).To(BeFalse())
}

func TestASilentNodeStartsAPass(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	g.Expect(w.reconcile(r)).To(Succeed())
	name := w.machines()[0].Name
	g.Eventually(func(g Gomega) {
		w.talos[name].SetSilent(true)
		g.Expect(r.Watcher.Events()).To(Receive(HaveField("Object.GetName()", name)))
	}).Should(Succeed())
	g.Eventually(func() bool { return r.Watcher.Watching(nodes.KeyOf(w.machines()[0])) }).Should(BeFalse())
}

// TestAnAlarmOfEtcdIsLookedAtAgainSoon: a person disarms it, of which Talos tells
// nobody. The nodes are healthy meanwhile.
func TestAnAlarmOfEtcdIsLookedAtAgainSoon(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	alarms := func(raised []talosclient.EtcdAlarm, errors []string) {
		for _, node := range w.running() {
			node.Update(func(s *talosfake.State) { s.Alarms, s.EtcdStatus.Errors = raised, errors })
		}
	}
	healthy := func() bool {
		return conditions.IsTrue(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)
	}
	alarms([]talosclient.EtcdAlarm{{MemberID: 1, Alarm: "NOSPACE"}}, []string{"memberID:1 alarm:NOSPACE "})
	w.clock.SetTime(testTime.Add(healthyInterval))
	w.settle(r)
	g.Expect(healthy()).To(BeFalse())

	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w.controlPlane())})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", unhealthyInterval*5/4)))
	alarms(nil, nil)
	w.clock.SetTime(testTime.Add(healthyInterval + result.RequeueAfter))
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(healthy()).To(BeTrue())
}
