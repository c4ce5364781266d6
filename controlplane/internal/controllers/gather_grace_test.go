package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

const leaveTimeout = time.Duration(controlplanev1.DefaultEtcdLeaveTimeoutSeconds) * time.Second

// restarting lets time pass, with a manager that is started anew every half a minute.
func (w *world) restarting(long time.Duration) {
	w.t.Helper()
	for until := w.clock.Now().Add(long); w.clock.Now().Before(until); {
		w.clock.SetTime(w.clock.Now().Add(min(30*time.Second, until.Sub(w.clock.Now()))))
		w.settle(w.manager())
	}
}

// TestAManagerThatRestartsRemovesASilentMemberInTime: a manager that is killed again and
// again would give a silent node its time anew, each time.
func TestAManagerThatRestartsRemovesASilentMemberInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		// lose changes what was recorded, half way.
		lose    func(*controlplanev1.TalosControlPlaneStatus)
		removed bool
	}{
		"recorded": {func(*controlplanev1.TalosControlPlaneStatus) {}, true},
		"a status that was lost": {func(status *controlplanev1.TalosControlPlaneStatus) {
			*status = controlplanev1.TalosControlPlaneStatus{Initialization: status.Initialization}
		}, false},
		"a record that is old": {func(status *controlplanev1.TalosControlPlaneStatus) {
			status.GracePeriods.ObservedTime = metav1.NewTime(status.GracePeriods.ObservedTime.Add(-time.Hour))
		}, false},
		"a record from the future": {func(status *controlplanev1.TalosControlPlaneStatus) {
			status.GracePeriods.ObservedTime = metav1.NewTime(status.GracePeriods.ObservedTime.Add(time.Hour))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := changing(t, 3)
			leaving := w.machines()[0]
			w.talos[leaving.Name].SetSilent(true)
			g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
			w.settle(r)

			w.restarting(leaveTimeout / 2)
			controlPlane := w.controlPlane()
			g.Expect(controlPlane.Status.GracePeriods.Running).To(ContainElement(And(
				HaveField("Type", controlplanev1.EtcdSilentGracePeriod), HaveField("Name", leaving.Name))))
			tc.lose(&controlPlane.Status)
			g.Expect(w.client.Status().Update(t.Context(), controlPlane)).To(Succeed())
			w.restarting(leaveTimeout/2 - time.Second)
			removed := HavePrefix("Warning EtcdMemberRemoved ")
			g.Expect(w.recorded()).NotTo(ContainElement(removed), "never sooner")
			w.restarting(2 * time.Second)
			if !tc.removed {
				g.Expect(w.recorded()).NotTo(ContainElement(removed))
				w.restarting(leaveTimeout)
			}
			g.Expect(w.recorded()).To(ContainElement(removed))
		})
	}
}

// TestAManagerThatRestartsRemovesAMemberWithoutAMachineInTime: the same with a voter that
// nobody has left behind properly.
func TestAManagerThatRestartsRemovesAMemberWithoutAMachineInTime(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	const orphan = 4711
	for _, node := range w.talos {
		node.Update(func(s *talosfake.State) {
			s.Members = append(s.Members, talosclient.EtcdMember{ID: orphan, Hostname: "gone", PeerURLs: []string{"https://10.9.9.9:2380"}})
		})
	}
	w.settle(r)
	g.Expect(w.controlPlane().Status.GracePeriods.Running).To(ConsistOf(And(
		HaveField("Type", controlplanev1.WithoutMachineGracePeriod), HaveField("Name", etcd.FormatID(orphan)))))
	w.restarting(leaveTimeout - time.Second)
	g.Expect(w.members()).To(ContainElement(HaveField("ID", BeEquivalentTo(orphan))))
	w.restarting(2 * time.Second)
	g.Expect(w.members()).NotTo(ContainElement(HaveField("ID", BeEquivalentTo(orphan))))
	g.Expect(w.controlPlane().Status.GracePeriods).To(BeZero())
}

// TestAManagerThatRestartsRemovesAMemberWithoutANameInTime: the same with a learner that may
// have been joining, but does not start.
func TestAManagerThatRestartsRemovesAMemberWithoutANameInTime(t *testing.T) {
	g := NewWithT(t)
	w, r, _ := twoNetworks(t, func(_ *talosclient.EtcdMember, spec *talosclient.EtcdSpec) {
		spec.AdvertisedAddresses = []string{"10.8.8.3"}
	})
	members := func() []talosclient.EtcdMember { return w.talos[w.machines()[0].Name].Snapshot().Members }
	g.Expect(w.reconcile(r)).To(Succeed())
	for range 4 {
		w.clock.SetTime(w.clock.Now().Add(leaveTimeout / 4))
		g.Expect(members()).To(HaveLen(3))
		g.Expect(w.reconcile(w.manager())).To(Succeed())
	}
	g.Expect(members()).To(HaveLen(2))
}

// TestConditionsOfASilentNodeBecomeUnknownInTime: what was known of a node is kept for a
// while, and not for a while longer with each restart.
func TestConditionsOfASilentNodeBecomeUnknownInTime(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 3)
	w.settle(r)
	silent := w.machines()[0]
	status := func() metav1.ConditionStatus {
		return conditions.Get(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition).Status
	}
	g.Expect(status()).To(Equal(metav1.ConditionTrue))
	w.talos[silent.Name].SetSilent(true)
	w.settle(r)
	w.restarting(remoteGracePeriod - time.Second)
	g.Expect(status()).To(Equal(metav1.ConditionTrue))
	w.restarting(2 * time.Second)
	g.Expect(status()).To(Equal(metav1.ConditionUnknown))
	g.Expect(w.machines()[0].Status.Phase).NotTo(Equal(string(clusterv1.MachinePhaseDeleting)))
}
