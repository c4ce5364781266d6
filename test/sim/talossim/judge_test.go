package talossim_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// ofThree is a ready cluster of three control plane nodes.
func (w *world) ofThree() (first, second, third *talossim.Machine) {
	w.t.Helper()
	first = w.bootstrapped()
	second, third = w.joins(), w.joins()
	w.ready(second)
	w.ready(third)
	w.voters(first, 3)
	return first, second, third
}

// remove removes the member of a machine, through another one.
func (w *world) remove(through, m *talossim.Machine) {
	w.t.Helper()
	members, err := w.admin(through).EtcdMembers(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	for _, member := range members {
		if member.Hostname == m.Hostname() {
			_, err := w.raw(through, secrets.RoleAdmin).MachineClient.EtcdRemoveMemberByID(w.t.Context(), &machine.EtcdRemoveMemberByIDRequest{MemberId: member.ID})
			w.Expect(err).NotTo(HaveOccurred())
		}
	}
}

func (w *world) leave(m *talossim.Machine) {
	w.t.Helper()
	_, err := w.raw(m, secrets.RoleAdmin).MachineClient.EtcdLeaveCluster(w.t.Context(), &machine.EtcdLeaveClusterRequest{})
	w.Expect(err).NotTo(HaveOccurred())
}

func TestTheJudgeSeesGoodActs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	first, second, third := w.ofThree()
	w.Expect(w.sim.Voters(first)).To(Equal(etcdmodel.Count{Voters: 3, Answering: 3}))
	w.leave(third)
	w.Expect(w.admin(third).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(third.Wiped).Should(Succeed())
	w.Expect(w.sim.Voters(third)).To(Equal(etcdmodel.Count{}))
	w.leave(second)
	w.Expect(w.sim.Acts()).To(HaveExactElements(
		And(HaveField("Call", etcdmodel.CallBootstrap), HaveField("Node", "m1")),
		And(HaveField("Call", etcdmodel.CallLeave), HaveField("Node", "m3"), HaveField("Before", etcdmodel.Count{Voters: 3, Answering: 3}), HaveField("After", etcdmodel.Count{Voters: 2, Answering: 2})),
		And(HaveField("Call", etcdmodel.CallLeave), HaveField("Node", "m2"), HaveField("After", etcdmodel.Count{Voters: 1, Answering: 1})),
	))
	w.Expect(w.sim.Offences()).To(BeEmpty())
}

// TestTheJudgeSeesOffences commits each of them.
func TestTheJudgeSeesOffences(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		commit  func(w *world, first, second, third *talossim.Machine)
		offence string
	}{
		"a member is removed while another is parted": {
			commit: func(w *world, first, second, third *talossim.Machine) {
				third.Break(talossim.Faults{Parted: true})
				w.remove(first, second)
			},
			offence: "EtcdRemoveMemberByID on m1",
		},
		"a member leaves while another has no power": {
			commit: func(w *world, _, second, third *talossim.Machine) {
				third.Break(talossim.Faults{Gone: true})
				w.Eventually(third.ServesAPI).Should(BeFalse())
				w.leave(second)
			},
			offence: "EtcdLeaveCluster on m2",
		},
		"a member is wiped while another is dead": {
			commit: func(w *world, _, second, third *talossim.Machine) {
				third.Break(talossim.Faults{DeadEtcd: true})
				w.Eventually(third.ServesAPI).Should(BeFalse())
				w.Expect(w.admin(second).Reset(w.t.Context(), talosclient.ResetOptions{})).To(Succeed())
			},
			offence: "Reset on m2",
		},
		"another machine is bootstrapped": {
			commit: func(w *world, _, _, _ *talossim.Machine) {
				other := w.add()
				other.Break(talossim.Faults{DeadEtcd: true}) // Else it joins before it is told.
				w.configure(other, configgen.RoleControlPlane)
				w.Eventually(func() error { return w.admin(other).Bootstrap(w.t.Context()) }).Should(Succeed())
			},
			offence: "bootstrapped a second time: m1, m2, m3 had data of the same cluster",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: talossim.Metal})
			first, second, third := w.ofThree()
			w.Expect(w.sim.Offences()).To(BeEmpty())
			test.commit(w, first, second, third)
			w.Expect(w.sim.Offences()).To(ConsistOf(MatchError(ContainSubstring(test.offence))))
		})
	}
}

// TestTheJudgeCountsVoters: a second one that goes is too much where one may.
func TestTheJudgeCountsVoters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	_, second, third := w.ofThree()
	w.sim.Expect(2)
	w.leave(third)
	w.Expect(w.sim.Offences()).To(BeEmpty())
	w.leave(second)
	w.Expect(w.sim.Offences()).To(ConsistOf(MatchError(ContainSubstring("it left fewer than 2 voters"))))
}
