package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// controlPlane makes a control plane machine out of "a", in a cluster whose API
// server has answered.
func (w *world) controlPlane() {
	w.t.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: ""}
	change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Labels = labels })
	change(w, w.machine("a"), func(m *infrav1.TalosMachine) { m.Labels = labels })
	cluster := get(w, &clusterv1.Cluster{}, testCluster)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), cluster)).To(Succeed())
}

// voters makes the control plane machines "b" and "c", whose members vote beside that
// of "a".
func (w *world) voters() (b, c *talosfake.Machine) {
	w.t.Helper()
	members := []talosclient.EtcdMember{{ID: 1, Hostname: "a"}, {ID: 2, Hostname: "b"}, {ID: 3, Hostname: "c"}}
	add := func(name, address string, id uint64) *talosfake.Machine {
		machine := newMachine(w.t, name, func(m *infrav1.TalosMachine) {
			m.Labels = map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: ""}
			m.Spec.ProviderID = "talos://" + name
			m.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: address}}
		})[1]
		NewWithT(w.t).Expect(w.client.Create(w.t.Context(), machine)).To(Succeed())

		return w.dialer.Add(address, talosfake.NewMachine(talosfake.State{
			Members: members, EtcdStatus: talosclient.EtcdStatus{MemberID: id, Leader: 1},
		}))
	}

	return add("b", "10.0.0.8", 2), add("c", "10.0.0.9", 3)
}

// TestAMachineThatEtcdNeedsIsNotReprovisioned: a control plane machine is wiped only
// while the others have a majority of all votes, or a person lets it be.
func TestAMachineThatEtcdNeedsIsNotReprovisioned(t *testing.T) {
	corrupt := func(_ *world, b, _ *talosfake.Machine) {
		b.Update(func(s *talosfake.State) {
			s.Alarms = []talosclient.EtcdAlarm{{MemberID: 2, Alarm: "CORRUPT"}}
			s.EtcdStatus.Errors = []string{"memberID:2 alarm:CORRUPT "}
		})
	}
	for name, tt := range map[string]struct {
		act   func(w *world, b, c *talosfake.Machine)
		value string
		// held is what the condition says; empty when the machine is wiped.
		held string
	}{
		"the others have a majority": {},
		"another one is silent":      {act: func(_ *world, b, _ *talosfake.Machine) { b.SetSilent(true) }, held: "no majority"},
		"another one learns":         {act: func(_ *world, _, c *talosfake.Machine) { c.Fail("EtcdMembers", talosfake.ErrUnreachable) }, held: "no majority"},
		"another one knows no leader": {act: func(_ *world, b, _ *talosfake.Machine) {
			b.Update(func(s *talosfake.State) { s.EtcdStatus.Leader = 0 })
		}, held: "no majority"},
		"data of another one differ": {act: corrupt, held: "CORRUPT"},
		"nobody can be asked": {act: func(w *world, _, _ *talosfake.Machine) {
			w.remove(get(w, &corev1.Secret{}, secrets.BundleName(testCluster)))
		}, held: "no majority"},
		"a person wipes it all the same": {act: func(_ *world, b, c *talosfake.Machine) { b.SetSilent(true); c.SetSilent(true) }, value: infrav1.ReprovisionDespiteOthers},
		"the API server never answered": {act: func(w *world, b, c *talosfake.Machine) {
			b.SetSilent(true)
			c.SetSilent(true)
			cluster := get(w, &clusterv1.Cluster{}, testCluster)
			cluster.Status.Initialization.ControlPlaneInitialized = nil
			NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), cluster)).To(Succeed())
		}},
		"it is a worker": {act: func(w *world, b, c *talosfake.Machine) {
			b.SetSilent(true)
			c.SetSilent(true)
			change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { delete(m.Labels, clusterv1.MachineControlPlaneLabel) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := provisioned(t)
			w.controlPlane()
			b, c := w.voters()
			if tt.act != nil {
				tt.act(w, b, c)
			}
			w.wish("a", tt.value)
			w.settle(m)
			if tt.held == "" {
				g.Expect(metal.Resets()).To(HaveLen(1))
				return
			}
			found := w.reprovisioning("a")
			g.Expect(found.Reason).To(Equal(infrav1.EtcdQuorumAtRiskReason))
			g.Expect(found.Message).To(And(ContainSubstring(tt.held), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.host("h1").Spec.Release).To(BeZero())
		})
	}
}

func TestAMachineThatEtcdNeedsIsReprovisionedOnceItCanBe(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	w.controlPlane()
	b, _ := w.voters()
	b.SetSilent(true)
	w.wish("a", "")
	w.settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	b.SetSilent(false)
	w.wait(time.Minute)
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
}

func TestTheOnlyControlPlaneMachineInAPodIsNotReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodControlPlane(t, "a", onVolume))
	w.controlPlane()
	w.wish("a", "")
	w.settle(m)
	g.Expect(w.told("a", infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.EtcdQuorumAtRiskReason))
	g.Expect(w.yard.created["a"]).To(HaveLen(1))

	w.wish("a", infrav1.ReprovisionDespiteOthers)
	w.wait(time.Minute)
	w.settle(m)
	g.Expect(w.yard.created["a"]).To(HaveLen(2))
	expectRuns(w, "a")
}
