package etcd

import (
	"testing"

	. "github.com/onsi/gomega"
)

func members(ids ...uint64) []Member {
	var list []Member
	for _, id := range ids {
		list = append(list, Member{ID: id, PeerURLs: []string{"https://10.0.0.1:2380"}})
	}

	return list
}

func view(self, leader uint64, list []Member) View {
	return View{Self: self, Leader: leader, Members: list}
}

func TestHasQuorum(t *testing.T) {
	three := members(1, 2, 3)
	withLearner := append(members(1), Member{ID: 2, Learner: true})

	for name, tc := range map[string]struct {
		views []View
		want  bool
	}{
		"nobody answers":                                {nil, false},
		"a single voter that leads":                     {[]View{view(1, 1, members(1))}, true},
		"a single voter without a leader":               {[]View{view(1, 0, members(1))}, false},
		"a single voter that is not in its own list":    {[]View{view(9, 1, members(1))}, false},
		"three of three answer":                         {[]View{view(1, 1, three), view(2, 1, three), view(3, 1, three)}, true},
		"two of three answer":                           {[]View{view(1, 1, three), view(3, 1, three)}, true},
		"one of three answers":                          {[]View{view(1, 1, three)}, false},
		"two of three answer with different leaders":    {[]View{view(1, 1, three), view(3, 3, three)}, false},
		"two of three answer and one knows no leader":   {[]View{view(1, 1, three), view(3, 0, three)}, false},
		"the same node twice does not vote twice":       {[]View{view(1, 1, three), view(1, 1, three)}, false},
		"a learner is no voter":                         {[]View{view(1, 1, withLearner)}, true},
		"a learner that answers does not vote":          {[]View{{Self: 2, Leader: 1, Learner: true, Members: withLearner}}, false},
		"one of four answers two, which is no majority": {[]View{view(1, 1, members(1, 2, 3, 4)), view(2, 1, members(1, 2, 3, 4))}, false},
		"a member that one node alone knows counts":     {[]View{view(1, 1, members(1)), view(2, 1, members(1, 2, 3, 4))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Judge(tc.views).HasQuorum()).To(Equal(tc.want))
		})
	}
}

func TestAMemberIsFoundByItsID(t *testing.T) {
	g := NewWithT(t)
	health := Health{Members: members(3, 5, 7)}
	for _, id := range []uint64{3, 5, 7} {
		member, found := health.Member(id)
		g.Expect(found).To(BeTrue())
		g.Expect(member.ID).To(Equal(id))
	}
	_, found := health.Member(4)
	g.Expect(found).To(BeFalse())
	for _, self := range []uint64{3, 5, 7} {
		own, listed := (&View{Self: self, Members: health.Members}).Own()
		g.Expect(listed).To(BeTrue())
		g.Expect(own.ID).To(Equal(self))
	}
}

func TestHasQuorumNeedsVotersAndALeader(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Health{Leader: 1, Members: members(1, 2, 3), Answering: []uint64{1, 2}}.HasQuorum()).To(BeTrue())
	g.Expect(Health{Members: members(1, 2, 3), Answering: []uint64{1, 2}}.HasQuorum()).To(BeFalse(), "nobody knows a leader")
	g.Expect(Health{Leader: 1, Answering: []uint64{1}}.HasQuorum()).To(BeFalse(), "nobody knows a voter")
}

func TestMajority(t *testing.T) {
	g := NewWithT(t)
	for voters, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 7: 4} {
		g.Expect(Majority(voters)).To(Equal(want))
	}
}

func TestJudgeNamesProblemsInAStableOrder(t *testing.T) {
	g := NewWithT(t)
	list := []Member{{ID: 0x2a, Hostname: "cp-b", Learner: true}, {ID: 1, Hostname: "cp-a"}}
	one := View{Self: 1, Leader: 1, Members: list, Alarms: []Alarm{{MemberID: 0x2a, Alarm: AlarmCorrupt}, {MemberID: 1, Alarm: "NOSPACE"}}}
	other := View{Self: 0x2a, Leader: 1, Learner: true, Members: list, Alarms: []Alarm{{MemberID: 1, Alarm: "NOSPACE"}}}

	want := []string{
		"member cp-b (2a) is a learner and does not vote",
		"alarm NOSPACE is raised by member 1",
		"alarm CORRUPT is raised by member 2a",
	}
	g.Expect(Judge([]View{one, other}).Problems).To(Equal(want))
	g.Expect(Judge([]View{other, one}).Problems).To(Equal(want))
}

func TestJudgeCountsAPromotedMemberAsVoting(t *testing.T) {
	g := NewWithT(t)
	stale := []Member{{ID: 1}, {ID: 2, Learner: true}}

	health := Judge([]View{view(1, 1, stale), view(2, 1, members(1, 2))})

	g.Expect(health.Voters()).To(Equal(2))
	g.Expect(health.Answering).To(Equal([]uint64{1, 2}))
	g.Expect(health.HasQuorum()).To(BeTrue())
}

func TestIsAlmostFull(t *testing.T) {
	g := NewWithT(t)
	const quota = 1000
	for size, want := range map[int64]bool{0: false, 800: false, 801: true, 1000: true, 5000: true} {
		g.Expect((&View{DBSizeBytes: size, DBQuotaBytes: quota}).IsAlmostFull()).To(Equal(want), "%d", size)
	}
	g.Expect((&View{DBSizeBytes: quota}).IsAlmostFull()).To(BeFalse(), "nobody knows the quota, or there is none")
}

func TestWipeProblems(t *testing.T) {
	g := NewWithT(t)
	three := members(1, 2, 3)
	g.Expect(Judge([]View{view(2, 1, three), view(3, 1, three)}).WipeProblems()).To(BeEmpty(), "the two others are a majority of three")
	g.Expect(Judge([]View{view(2, 1, three)}).WipeProblems()).To(ConsistOf(ContainSubstring("no majority")))
	g.Expect(Judge(nil).WipeProblems()).To(ConsistOf(ContainSubstring("no majority")), "it is the only one")
	one := view(2, 1, three)
	one.Alarms = []Alarm{{MemberID: 1, Alarm: AlarmCorrupt}, {MemberID: 3, Alarm: "NOSPACE"}}
	g.Expect(Judge([]View{one, view(3, 1, three)}).WipeProblems()).To(ConsistOf(ContainSubstring("CORRUPT")))
}
