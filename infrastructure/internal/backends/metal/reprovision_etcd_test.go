package metal_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestAMachineThatEtcdNeedsIsNotReprovisioned: a control plane machine is wiped only
// while the others have a majority of all votes, or a person lets it be.
func TestAMachineThatEtcdNeedsIsNotReprovisioned(t *testing.T) {
	corrupt := func(_ *harness.Environment, b, _ *talosfake.Machine) {
		b.Update(func(s *talosfake.State) {
			s.Alarms = []talosclient.EtcdAlarm{{MemberID: 2, Alarm: "CORRUPT"}}
			s.EtcdStatus.Errors = []string{"memberID:2 alarm:CORRUPT "}
		})
	}
	for name, tt := range map[string]struct {
		act   func(w *harness.Environment, b, c *talosfake.Machine)
		value string
		// held is what the condition says; empty when the machine is wiped.
		held string
	}{
		"the others have a majority": {},
		"another one is silent":      {act: func(_ *harness.Environment, b, _ *talosfake.Machine) { b.SetSilent(true) }, held: "no majority"},
		"another one learns":         {act: func(_ *harness.Environment, _, c *talosfake.Machine) { c.Fail("EtcdMembers", talosfake.ErrUnreachable) }, held: "no majority"},
		"another one knows no leader": {act: func(_ *harness.Environment, b, _ *talosfake.Machine) {
			b.Update(func(s *talosfake.State) { s.EtcdStatus.Leader = 0 })
		}, held: "no majority"},
		"data of another one differ": {act: corrupt, held: "CORRUPT"},
		"nobody can be asked": {act: func(w *harness.Environment, _, _ *talosfake.Machine) {
			w.Remove(harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster)))
		}, held: "no majority"},
		"a person wipes it all the same": {act: func(_ *harness.Environment, b, c *talosfake.Machine) { b.SetSilent(true); c.SetSilent(true) }, value: infrav1.ReprovisionDespiteOthers},
		"the API server never answered": {act: func(w *harness.Environment, b, c *talosfake.Machine) {
			b.SetSilent(true)
			c.SetSilent(true)
			cluster := harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster)
			cluster.Status.Initialization.ControlPlaneInitialized = nil
			NewWithT(w.T).Expect(w.Client.Status().Update(w.T.Context(), cluster)).To(Succeed())
		}},
		"it is a worker": {act: func(w *harness.Environment, b, c *talosfake.Machine) {
			b.SetSilent(true)
			c.SetSilent(true)
			harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { delete(m.Labels, clusterv1.MachineControlPlaneLabel) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			w.ControlPlane()
			b, c := w.Voters()
			if tt.act != nil {
				tt.act(w, b, c)
			}
			w.Wish("a", tt.value)
			w.Settle(m)
			if tt.held == "" {
				g.Expect(metal.Resets()).To(HaveLen(1))
				return
			}
			found := w.Reprovisioning("a")
			g.Expect(found.Reason).To(Equal(infrav1.EtcdQuorumAtRiskReason))
			g.Expect(found.Message).To(And(ContainSubstring(tt.held), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.Host("h1").Spec.Release).To(BeZero())
		})
	}
}

func TestAMachineThatEtcdNeedsIsReprovisionedOnceItCanBe(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.ControlPlane()
	b, _ := w.Voters()
	b.SetSilent(true)
	w.Wish("a", "")
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	b.SetSilent(false)
	w.Wait(time.Minute)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
}

// TestAMachineThatEtcdNeedsByNowIsNotReprovisioned: between the wish and the wipe of a
// machine that was silent another one may have died, and its data are the last then.
func TestAMachineThatEtcdNeedsByNowIsNotReprovisioned(t *testing.T) {
	for name, tt := range map[string]struct {
		act  func(w *harness.Environment, b *talosfake.Machine)
		held bool
	}{
		"the others have a majority": {},
		"another one has died":       {act: func(_ *harness.Environment, b *talosfake.Machine) { b.SetSilent(true) }, held: true},
		"nobody can be asked any more": {act: func(w *harness.Environment, _ *talosfake.Machine) {
			w.Remove(harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster)))
		}, held: true},
		"a person wipes it all the same": {act: func(w *harness.Environment, b *talosfake.Machine) {
			b.SetSilent(true)
			w.Wish("a", infrav1.ReprovisionDespiteOthers)
		}},
		"it is a worker": {act: func(w *harness.Environment, b *talosfake.Machine) {
			b.SetSilent(true)
			harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { delete(m.Labels, clusterv1.MachineControlPlaneLabel) })
		}},
		"its TalosMachine is deleted by now, which is no matter of etcd's": {act: func(w *harness.Environment, b *talosfake.Machine) {
			b.SetSilent(true)
			w.Remove(w.Machine("a"))
		}},
		"its Machine is gone": {act: func(w *harness.Environment, b *talosfake.Machine) {
			b.SetSilent(true)
			w.Remove(harness.Get(w, &clusterv1.Machine{}, "a"))
		}, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			w.ControlPlane()
			b, _ := w.Voters()
			metal.SetSilent(true)
			w.Wish("a", "")
			w.Settle(m)
			g.Expect(w.Host("h1").Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem), "it is wiped once it answers")

			if tt.act != nil {
				tt.act(w, b)
			}
			metal.SetSilent(false)
			w.Wait(time.Hour)
			w.Settle(m)
			if !tt.held {
				g.Expect(metal.Resets()).To(HaveLen(1))
				return
			}
			g.Expect(metal.Resets()).To(BeEmpty())
			released := conditions.Get(w.Host("h1"), infrav1.ReleasedCondition)
			g.Expect(released.Reason).To(Equal(infrav1.EtcdQuorumAtRiskReason))
			g.Expect(released.Message).To(And(ContainSubstring("no majority"), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
		})
	}
}

func TestAMachineThatEtcdNeedsNoMoreIsReprovisioned(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.ControlPlane()
	b, _ := w.Voters()
	before := w.Machine("a")
	metal.SetSilent(true)
	w.Wish("a", "")
	w.Settle(m)
	b.SetSilent(true)
	metal.SetSilent(false)
	w.Wait(time.Hour)
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(w.Reprovisioning("a").Message).To(ContainSubstring("no majority"))
	b.SetSilent(false)
	w.Wait(time.Minute)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectReprovisioned(w, before, "a", "h1")
}
