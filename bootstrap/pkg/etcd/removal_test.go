package etcd

import (
	"testing"

	. "github.com/onsi/gomega"
)

// voting is the health of a cluster of that many voters, of which those answer, and
// follow the first.
func voting(voters int, answering ...uint64) Health {
	health := Health{Answering: answering}
	if len(answering) > 0 {
		health.Leader = answering[0]
	}
	for id := range voters {
		health.Members = append(health.Members, Member{ID: uint64(id) + 1, Hostname: string(rune('a' + id))})
	}

	return health
}

// learning adds a learner with ID 9.
func learning(health Health) Health {
	health.Members = append(health.Members, Member{ID: 9, Hostname: "new", Learner: true})

	return health
}

func alarmed(health Health, name string) Health {
	health.Alarms = append(health.Alarms, Alarm{MemberID: 2, Alarm: name})

	return health
}

func TestRemovalProblems(t *testing.T) {
	const (
		noMajority = "the voting members that answer are no majority"
		leftOver   = "the voting members that would be left and answer are no majority"
		last       = "it is the last voting member, and holds the data of the cluster"
		learner    = "member new (9) is a learner; one member changes at a time"
		corrupt    = "alarm CORRUPT is raised by member 2"
	)
	for name, tc := range map[string]struct {
		health Health
		id     uint64
		want   []string
	}{
		"one of three":                                    {voting(3, 1, 2, 3), 3, nil},
		"the leader of three":                             {voting(3, 1, 2, 3), 1, nil},
		"the silent one of three":                         {voting(3, 1, 2), 3, nil},
		"one that answers, of three with a silent one":    {voting(3, 1, 2), 2, []string{leftOver}},
		"one of two":                                      {voting(2, 1, 2), 2, nil},
		"the only one":                                    {voting(1, 1), 1, []string{last}},
		"one of four, another is silent":                  {voting(4, 1, 2, 3), 3, nil},
		"one of four, two others are silent":              {voting(4, 1, 2), 2, []string{noMajority}},
		"the silent one of four":                          {voting(4, 1, 2, 3), 4, nil},
		"one of five, another is silent":                  {voting(5, 1, 2, 3, 4), 4, nil},
		"one of five, two others are silent":              {voting(5, 1, 2, 3), 3, []string{leftOver}},
		"a silent one of five of two":                     {voting(5, 1, 2, 3), 5, nil},
		"a dead one without a majority":                   {voting(3, 1), 3, []string{noMajority}},
		"any while nobody leads":                          {func() Health { h := voting(3, 1, 2, 3); h.Leader = 0; return h }(), 3, []string{noMajority}},
		"any where nobody answers":                        {voting(3), 3, []string{noMajority}},
		"one of three while another learns":               {learning(voting(3, 1, 2, 3)), 3, []string{learner}},
		"one that answers while another learns, and more": {learning(voting(3, 1, 2)), 2, []string{learner, leftOver}},
		"the learner":                                     {learning(voting(3, 1, 2, 3)), 9, nil},
		"the learner beside a single voter":               {learning(voting(1, 1)), 9, nil},
		"the learner beside a silent voter":               {learning(voting(3, 1, 2)), 9, nil},
		"the last voter beside a learner":                 {learning(voting(1, 1)), 1, []string{learner, last}},
		"one of three while data differ":                  {alarmed(voting(3, 1, 2, 3), AlarmCorrupt), 3, []string{corrupt}},
		"the learner while data differ":                   {alarmed(learning(voting(3, 1, 2, 3)), AlarmCorrupt), 9, []string{corrupt}},
		"one of three while a database is full":           {alarmed(voting(3, 1, 2, 3), "NOSPACE"), 3, nil},
		"one that is no member":                           {voting(3, 1, 2, 3), 7, nil},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.health.RemovalProblems(tc.id)).To(Equal(tc.want))
		})
	}
}

// TestRemovalLeavesAMajority goes through all clusters of up to seven voters: what is
// allowed leaves a majority that answers, and what is refused would not.
func TestRemovalLeavesAMajority(t *testing.T) {
	g := NewWithT(t)
	for voters := 1; voters <= 7; voters++ {
		for up := range 1 << voters {
			var answering []uint64
			for id := range voters {
				if up>>id&1 == 1 {
					answering = append(answering, uint64(id)+1)
				}
			}
			for id := uint64(1); id <= uint64(voters); id++ {
				left := len(answering)
				if up>>(id-1)&1 == 1 {
					left--
				}
				safe := 2*len(answering) > voters && voters > 1 && 2*left > voters-1
				g.Expect(len(voting(voters, answering...).RemovalProblems(id)) == 0).To(Equal(safe), "member %d of %d, %v answer", id, voters, answering)
			}
		}
	}
}

func TestIsLast(t *testing.T) {
	g := NewWithT(t)
	g.Expect(voting(1, 1).IsLast(1)).To(BeTrue())
	g.Expect(learning(voting(1, 1)).IsLast(1)).To(BeTrue(), "a learner does not vote")
	g.Expect(learning(voting(1, 1)).IsLast(9)).To(BeFalse(), "another one votes")
	g.Expect(voting(2, 1, 2).IsLast(2)).To(BeFalse())
	g.Expect(voting(2, 1).IsLast(1)).To(BeFalse(), "a silent one has the data, too")
}

func TestWipeIsRefusedWithoutALeader(t *testing.T) {
	g := NewWithT(t)
	health := voting(3, 1, 2)
	g.Expect(health.WipeProblems()).To(BeEmpty())
	health.Leader = 0
	g.Expect(health.WipeProblems()).To(ConsistOf(ContainSubstring("no majority")))
	g.Expect(alarmed(voting(3, 1, 2), "NOSPACE").WipeProblems()).To(BeEmpty())
}

// TestJudgeTakesTheListsOfThoseWhoFollow: a member that was cut off has an old list,
// which counts as long as there is nothing better.
func TestJudgeTakesTheListsOfThoseWhoFollow(t *testing.T) {
	g := NewWithT(t)
	stale := view(3, 0, members(1, 2, 3, 4))
	health := Judge([]View{view(1, 1, members(1, 2, 3)), view(2, 1, members(1, 2, 3)), stale})
	g.Expect(health.Members).To(HaveLen(3))
	g.Expect(health.Answering).To(Equal([]uint64{1, 2}))
	g.Expect(health.Problems).To(BeEmpty())

	health = Judge([]View{view(1, 1, members(1, 2, 3)), stale})
	g.Expect(health.Members).To(HaveLen(4), "without a majority all that anybody knows counts")
	g.Expect(health.Problems).To(ConsistOf("the voting members that answer are no majority"))
	g.Expect(health.Answers(1)).To(BeTrue())
	g.Expect(health.Answers(3)).To(BeFalse())

	health = Judge([]View{view(1, 1, members(1, 2, 3)), view(2, 2, members(1, 2, 3))})
	g.Expect(health.Problems).To(ConsistOf(ContainSubstring("know no leader, or do not agree"), ContainSubstring("no majority")))
	g.Expect(Judge(nil).Problems).To(BeEmpty(), "nobody says anything")
}

func TestJudgeKnowsMembers(t *testing.T) {
	g := NewWithT(t)
	health := Judge([]View{view(1, 1, members(2, 1))})
	g.Expect(health.Members).To(HaveExactElements(HaveField("ID", uint64(1)), HaveField("ID", uint64(2))))
	member, found := health.Member(2)
	g.Expect(found).To(BeTrue())
	g.Expect(member.ID).To(Equal(uint64(2)))
	_, found = health.Member(3)
	g.Expect(found).To(BeFalse())
	g.Expect(member.IsAt([]string{"10.0.0.1"})).To(BeTrue())
	g.Expect(member.IsAt([]string{"10.0.0.2"})).To(BeFalse())
	g.Expect(Describe(Member{ID: 255})).To(Equal("ff"))
	g.Expect(Describe(Member{ID: 255, Hostname: "a"})).To(Equal("a (ff)"))
}

func TestJudgeCountsNobodyWithoutALeader(t *testing.T) {
	g := NewWithT(t)
	health := Judge([]View{view(1, 0, members(1, 2, 3)), view(2, 0, members(1, 2, 3))})
	g.Expect(health.Answering).To(BeEmpty())
	g.Expect(health.Members).To(HaveLen(3))
}

// TestJudgeAndLearners: a learner neither votes nor says who leads, and a promotion
// counts from the first node that tells of it, in whatever order they are asked.
func TestJudgeAndLearners(t *testing.T) {
	g := NewWithT(t)
	stale := []Member{{ID: 1}, {ID: 2, Learner: true}}
	g.Expect(Judge([]View{view(2, 1, members(1, 2)), view(1, 1, stale)}).Voters()).To(Equal(2))

	lost := View{Self: 2, Leader: 7, Learner: true, Members: stale}
	health := Judge([]View{view(1, 1, stale), lost})
	g.Expect(health.Leader).To(Equal(uint64(1)))
	g.Expect(health.HasQuorum()).To(BeTrue())

	for name, own := range map[string]View{
		"by its status":       {Self: 2, Leader: 1, Learner: true, Members: members(1, 2)},
		"by its list":         {Self: 2, Leader: 1, Members: stale},
		"not in its own list": {Self: 2, Leader: 1, Members: members(1)},
	} {
		g.Expect(Judge([]View{view(1, 1, members(1, 2)), own}).Answering).To(Equal([]uint64{1}), name)
	}
}
