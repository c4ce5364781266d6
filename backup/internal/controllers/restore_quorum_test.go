package controllers

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// expectNothingWiped says that a restore has ended so, and nothing of the cluster was touched.
func (b *restoreBed) expectNothingWiped(conditionType, want string) {
	b.t.Helper()
	b.Expect(says(b.theRestore(), conditionType)).To(Equal(want))
	b.Expect(b.theRestore().Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, outcomeFailed))
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(b.wipes).To(BeEmpty())
}

func (b *restoreBed) setLeader(leader uint64) {
	for _, node := range b.nodes {
		node.Update(func(s *fake.State) { s.EtcdStatus.Leader = leader })
	}
}

// TestAQuorumThatIsNotSeen may be there, and is waited for: the network between may be what is
// broken. Nobody is held meanwhile.
func TestAQuorumThatIsNotSeen(t *testing.T) {
	unknown := func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.CheckedCondition) == "Unknown QuorumUnknown"
	}
	for name, tc := range map[string]struct {
		silent []int
		then   func(*restoreBed)
		want   string
	}{
		"and has been there":       {[]int{0, 1, 2}, func(b *restoreBed) { b.setLeader(1) }, "False QuorumPresent"},
		"and was cut off from one": {[]int{1, 2}, func(b *restoreBed) { b.setLeader(2) }, "False QuorumPresent"},
		"and is lost":              {[]int{0, 2}, func(*restoreBed) {}, "True Checked"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRestoreBed(t)
			for _, i := range tc.silent {
				b.nodes[i].SetSilent(true)
			}
			b.restore()
			b.until(unknown)
			for range 5 {
				b.step()
			}
			b.Expect(unknown(b.theRestore())).To(BeTrue())
			b.Expect(b.maker.made).To(BeZero())
			b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
			for _, node := range b.nodes {
				node.SetSilent(false)
			}
			tc.then(b)
			b.until(hasEnded)
			if tc.want != "True Checked" {
				b.expectNothingWiped(backupv1.CheckedCondition, tc.want)
				return
			}
			b.expectRestored(1)
		})
	}
}

// TestNodesFallSilentBeforeTheRestoreBegins: the control plane is let go until they are seen
// again.
func TestNodesFallSilentBeforeTheRestoreBegins(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(*backupv1.TalosEtcdRestore) bool { return b.maker.made == 1 })
	for _, node := range b.nodes {
		node.SetSilent(true)
	}
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.CheckedCondition) == "Unknown QuorumUnknown"
	})
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	for _, node := range b.nodes {
		node.SetSilent(false)
	}
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestALeaderIsEnough: who follows one has a quorum, though the others do not answer here.
func TestALeaderIsEnough(t *testing.T) {
	b := newRestoreBed(t)
	b.setLeader(1)
	b.nodes[1].SetSilent(true)
	b.nodes[2].SetSilent(true)
	b.restore()
	b.until(hasEnded)
	b.expectNothingWiped(backupv1.CheckedCondition, "False QuorumPresent")
}

// TestEtcdComesBackBeforeTheFirstWipe, while the manager was away.
func TestEtcdComesBackBeforeTheFirstWipe(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.MachinesWipedCondition) == "False Wiping"
	})
	b.setLeader(1)
	b.nodes[2].SetSilent(true)
	b.startRestores()
	b.until(hasEnded)
	b.expectNothingWiped(backupv1.CheckedCondition, "False QuorumPresent")
}

// TestAQuorumAtAddressesThatAreNotKnown may be there: as after a move of the management cluster,
// which takes no status along, while the network to the nodes is broken.
func TestAQuorumAtAddressesThatAreNotKnown(t *testing.T) {
	b := newRestoreBed(t)
	addresses := map[string]clusterv1.MachineStatus{}
	for i := range b.nodes {
		machine := b.machine(fmt.Sprintf("cp-%d", i))
		addresses[machine.Name], machine.Status = machine.Status, clusterv1.MachineStatus{}
		b.Expect(b.client.Update(b.t.Context(), machine)).To(Succeed())
	}
	b.restore()
	unknown := func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.CheckedCondition) == "Unknown QuorumUnknown"
	}
	b.until(unknown)
	for range 5 {
		b.step()
	}
	b.Expect(unknown(b.theRestore())).To(BeTrue())
	b.Expect(b.wipes).To(BeEmpty())
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	for name, status := range addresses {
		machine := b.machine(name)
		machine.Status = status
		b.Expect(b.client.Update(b.t.Context(), machine)).To(Succeed())
	}
	b.until(hasEnded)
	b.expectRestored(1)
}
