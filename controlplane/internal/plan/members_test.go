package plan

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// learns adds a learner that no Machine of three has.
func learns(facts *Facts) {
	facts.Etcd.Members = append(facts.Etcd.Members, etcd.Member{ID: 9, Hostname: "cp-x", PeerURLs: []string{"https://192.0.2.9:2380"}, Learner: true})
}

// fourth adds a Machine that never told which member is its.
func fourth(changes ...func(*MachineFacts)) func(*Facts) {
	return func(facts *Facts) {
		machine := MachineFacts{Name: "cp-d", Configured: true, MemberProblem: "none"}
		for _, change := range changes {
			change(&machine)
		}
		facts.Replicas = 5
		facts.Machines = append(facts.Machines, machine)
	}
}

// empty is a node that says that it has no etcd data.
func empty(machine *MachineFacts) {
	machine.ProviderID, machine.Provisioned, machine.Answers, machine.Addresses = "talos://d", true, true, []string{"192.0.2.4"}
	machine.EtcdData = health.EtcdDataAbsent
}

// atItsAddress puts a Machine to where that learner is.
func atItsAddress(machine *MachineFacts) { machine.Addresses = []string{"192.0.2.9"} }

// nameless makes that learner one whose etcd has not started (yet).
func nameless(facts *Facts) { facts.Etcd.Members[3].Hostname, facts.LeaveTimeout = "", leaveTimeout }

// leaveTimeout is the time after which nobody waits for a silent etcd.
const leaveTimeout = 5 * time.Minute

// namelessFor makes that learner one that etcd has listed without a name for so long.
func namelessFor(since time.Duration) func(*Facts) {
	return func(facts *Facts) {
		facts.NamelessFor = map[uint64]time.Duration{9: since}
	}
}

// TestALearnerOfNobodyIsRemovedFirst: etcd has one learner at a time, so nobody
// joins or goes while a node that was given back has left its own behind.
func TestALearnerOfNobodyIsRemovedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"while all are well":                                            {three(learns), RemoveMember},
		"while another goes":                                            {three(learns, func(f *Facts) { f.Machines[1].Deleting, f.Machines[1].Hook = true, HookDue }), RemoveMember},
		"while another is to be mended":                                 {three(learns, func(f *Facts) { f.Machines[1].Unhealthy, f.Machines[1].Answers = true, false }), RemoveMember},
		"while another that is elsewhere waits to join":                 {three(learns, fourth(empty)), RemoveMember},
		"not without a name while another waits to join":                {three(learns, nameless, fourth(empty)), WaitForPreflight},
		"without a name while nobody waits to join":                     {three(learns, nameless), RemoveMember},
		"without a name for long":                                       {three(learns, nameless, namelessFor(leaveTimeout), fourth(empty)), RemoveMember},
		"not without a name for less":                                   {three(learns, nameless, namelessFor(leaveTimeout-1), fourth(empty)), WaitForPreflight},
		"not while one whose member was removed may join anew":          {three(learns, nameless, fourth(empty, func(m *MachineFacts) { m.MemberID = 5 })), WaitForPreflight},
		"without a name while another has the data of a removed member": {three(learns, nameless, fourth(empty, func(m *MachineFacts) { m.MemberID, m.EtcdData = 5, health.EtcdDataPresent })), RemoveMember},
		"without a name while another that was let go may return":       {three(learns, nameless, fourth(empty, func(m *MachineFacts) { m.Deleting, m.Hook = true, HookGone })), RemoveMember},
		"at the address of one that is held back":                       {three(learns, fourth(empty, atItsAddress, func(m *MachineFacts) { m.Held, m.Configured = true, false })), RemoveMember},
		"at the address of one without data, with the name of another":  {three(learns, fourth(empty, atItsAddress)), RemoveMember},
		"not while it may be a Machine's":                               {three(learns, fourth()), WaitForPreflight},
		"not at a Machine's address without a name":                     {three(learns, nameless, fourth(empty, atItsAddress)), WaitForPreflight},
		"not at the address of a Machine that does not answer":          {three(learns, fourth(atItsAddress)), WaitForPreflight},
		"not when nobody knows where a Machine is":                      {three(learns, fourth(empty, func(m *MachineFacts) { m.Addresses = nil })), WaitForPreflight},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			if tc.want == RemoveMember {
				g.Expect(decision.MemberID).To(BeEquivalentTo(9))
			}
		})
	}
}

// TestALearnerIsAMachinesByElimination: a machine that dies while it joins never
// tells which member is its; it is remediated all the same.
func TestALearnerIsAMachinesByElimination(t *testing.T) {
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"the only one left":            {three(learns, fourth()), true},
		"not one that votes":           {three(learns, fourth(), func(f *Facts) { f.Etcd.Members[3].Learner = false }), false},
		"not one of two":               {three(learns, learns, fourth()), false},
		"not while another may be its": {three(learns, fourth(), fourth(func(m *MachineFacts) { m.Name = "cp-e" })), false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.Machines[3].Unhealthy = true
			verdict := Verdicts(tc.facts)["cp-d"]
			NewWithT(t).Expect(verdict.Remediate).To(Equal(tc.want), verdict.Message)
		})
	}
}

// TestAMemberThatReturnsIsRemoved: a node that restarts between its leave and its
// reset joins etcd again.
func TestAMemberThatReturnsIsRemoved(t *testing.T) {
	letGo := func(f *Facts) { f.Machines[1].Deleting, f.Machines[1].Hook = true, HookGone }
	for name, tc := range map[string]struct {
		facts  Facts
		want   Action
		member uint64
	}{
		"it votes":                         {three(letGo), RemoveMember, 2},
		"it learns":                        {three(letGo, func(f *Facts) { f.Etcd.Members[1].Learner, f.Etcd.Answering = true, []uint64{1, 3} }), RemoveMember, 2},
		"not where a majority hangs on it": {three(letGo, func(f *Facts) { f.Machines[2].Answers, f.Etcd.Answering = false, []uint64{1, 2} }), WaitForMachineDeletion, 0},
		"not while it may be that of the next Machine on its host": {three(letGo, func(f *Facts) {
			f.Machines[1].MemberID, f.Machines[1].Addresses, f.Etcd.Members[1].PeerURLs = 7, []string{"192.0.2.2"}, []string{"https://192.0.2.2:2380"}
			f.Machines = append(f.Machines, MachineFacts{Name: "cp-d", Configured: true, MemberProblem: "none"})
		}), WaitForMachineDeletion, 0},
		"not at the address at which the next Machine joins": {three(letGo, func(f *Facts) {
			f.Machines[1].MemberID, f.Machines[1].Addresses = 7, []string{"192.0.2.4"}
			f.Etcd.Members[1] = etcd.Member{ID: 2, PeerURLs: []string{"https://192.0.2.4:2380"}, Learner: true}
			f.Etcd.Answering = []uint64{1, 3}
		}, fourth(empty)), WaitForPreflight, 0},
		"while another Machine has not told which is its": {three(letGo, fourth()), RemoveMember, 2},
		"not before what comes first, where a drain holds the last data": {three(letGo, func(f *Facts) {
			f.Machines[1].Hook, f.Machines[1].HookWaitsFor = HookEarly, "the drain"
			f.Replicas, f.Machines, f.Etcd.Members, f.Etcd.Answering, f.Etcd.Leader = 1, f.Machines[1:2], f.Etcd.Members[1:2], []uint64{2}, 2
		}), WaitForMachineDeletion, 0},
		"another is made where it holds the last data": {three(letGo, func(f *Facts) {
			f.Replicas, f.Machines, f.Etcd.Members, f.Etcd.Answering, f.Etcd.Leader = 1, f.Machines[1:2], f.Etcd.Members[1:2], []uint64{2}, 2
		}), CreateMachine, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.MemberID).To(Equal(tc.member))
		})
	}
}

// TestTheHookGoesOnceTheMemberIsOut: Talos removes its member first, and stops etcd and
// wipes its data after that, which is not waited for: its API server is of no use.
func TestTheHookGoesOnceTheMemberIsOut(t *testing.T) {
	gone := func(change func(*MachineFacts)) Facts {
		return three(func(facts *Facts) {
			machine := &facts.Machines[2]
			machine.Deleting, machine.Hook, machine.MemberID, machine.Leaving = true, HookDue, 3, true
			change(machine)
			facts.Etcd.Members = facts.Etcd.Members[:2]
			facts.Etcd.Answering = facts.Etcd.Answering[:2]
		})
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"while its node goes on":  {gone(func(*MachineFacts) {}), ReleaseHook},
		"once its node has ended": {gone(func(m *MachineFacts) { m.Leaving = false }), ReleaseHook},
		"when its node is silent": {gone(func(m *MachineFacts) { m.Answers = false }), ReleaseHook},
	} {
		t.Run(name, func(t *testing.T) {
			decision := Decide(tc.facts)
			NewWithT(t).Expect(decision.Action).To(Equal(tc.want), decision.Message)
			NewWithT(t).Expect(decision.Left).To(BeTrue())
			NewWithT(t).Expect(tc.facts.HasLeft(tc.facts.Machines[2].Name)).To(BeTrue())
			NewWithT(t).Expect(tc.facts.HasLeft(tc.facts.Machines[1].Name)).To(BeFalse())
		})
	}
}

// TestAMemberThatSomebodyRemoved: only a majority says so, and only of a Machine that
// stays, whose node has the data of that very member.
func TestAMemberThatSomebodyRemoved(t *testing.T) {
	removed := func(facts *Facts) {
		facts.Etcd.Members, facts.Etcd.Answering = facts.Etcd.Members[:2], facts.Etcd.Answering[:2]
		facts.Machines[2].MemberProblem = "the etcd member does not answer"
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"removed":                     {three(removed), true},
		"listed, and silent":          {three(func(f *Facts) { f.Machines[2].MemberProblem = "silent" }), false},
		"without a majority":          {three(removed, func(f *Facts) { f.Etcd.Answering = f.Etcd.Answering[:1] }), false},
		"it never told which":         {three(removed, func(f *Facts) { f.Machines[2].MemberID = 0 }), false},
		"its data is gone":            {three(removed, func(f *Facts) { f.Machines[2].EtcdData = health.EtcdDataAbsent }), false},
		"its node does not say":       {three(removed, func(f *Facts) { f.Machines[2].EtcdData = health.EtcdDataUnknown }), false},
		"it goes":                     {three(removed, func(f *Facts) { f.Machines[2].Deleting = true }), false},
		"another member joins for it": {three(removed, learns, func(f *Facts) { f.Machines[2].Addresses = []string{"192.0.2.9"} }), false},
		"its etcd is well":            {three(removed, func(f *Facts) { f.Machines[2].MemberProblem = "" }), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(tc.facts.LostItsMember("cp-c")).To(Equal(tc.want))
			g.Expect(tc.facts.LostItsMember("cp-a")).To(BeFalse())
		})
	}
}
