// Package etcd judges an etcd cluster from what its nodes say through the Talos API.
// It changes nothing; but for Look, it is pure.
//
// A member is identified by its ID and its peer URLs, never by its name.
package etcd

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// AlarmCorrupt is the alarm that etcd raises when data of members differ.
const AlarmCorrupt = "CORRUPT"

// Member is one entry of a member list. Its host name is the name that it announced, and
// for messages only.
type Member = talosclient.EtcdMember

// Alarm is an alarm that a member has raised.
type Alarm = talosclient.EtcdAlarm

// View is what one node says about etcd.
type View struct {
	// Self is the ID of the node's own member.
	Self uint64
	// Leader is the ID of the leader that the node follows; 0 when it knows
	// none.
	Leader uint64
	// Learner reports whether the own member does not vote (yet).
	Learner bool
	// Lag is how many entries of the raft log the own member has not applied yet.
	Lag uint64
	// DBSizeBytes is the size of the own member's database on disk, and
	// DBQuotaBytes its limit; 0 where it is unknown or there is none.
	DBSizeBytes, DBQuotaBytes int64
	// Errors are what the own member complains about.
	Errors []string
	// Members is the member list.
	Members []Member
	// Alarms are the alarms of the whole cluster.
	Alarms []Alarm
}

// Own is the node's own entry in its member list; false when the list lacks it.
func (v *View) Own() (Member, bool) {
	i := slices.IndexFunc(v.Members, func(m Member) bool { return m.ID == v.Self })
	if i < 0 {
		return Member{}, false
	}

	return v.Members[i], true
}

// fullPercent is the share of its quota from which on a database counts as almost
// full: a person still has the time to do something then.
const fullPercent = 80

// IsAlmostFull reports whether the own member's database is near its quota. Once it has
// reached it, the member raises the alarm NOSPACE, and etcd takes no more keys.
func (v *View) IsAlmostFull() bool {
	return v.DBQuotaBytes > 0 && v.DBSizeBytes > v.DBQuotaBytes/100*fullPercent
}

// Health is the state of an etcd cluster, judged from the views of the nodes
// that answered.
type Health struct {
	// Members are the members in the order of their IDs. While the voters that
	// answer are a majority, only their lists count: a member that was cut off
	// has an old one.
	Members []Member
	// Answering are the IDs of the voting members whose node answered and that
	// follow the leader on which the answering nodes agree, in ascending order.
	Answering []uint64
	// Leader is that leader; 0 when they know none or do not agree.
	Leader uint64
	// Alarms are the alarms that are raised, each once.
	Alarms []Alarm
	// Problems are sentences about what is wrong, in a stable order. They name
	// members by name and ID.
	Problems []string
}

// Majority is the number of votes that decide among the given number of voting
// members.
func Majority(voters int) int {
	return voters/2 + 1
}

// Voters is the number of voting members.
func (h Health) Voters() int {
	voters := 0
	for _, member := range h.Members {
		if !member.Learner {
			voters++
		}
	}

	return voters
}

// HasQuorum reports whether the voters that answer, and agree on one leader, are a
// majority of all voters. Learners and silent members do not count.
func (h Health) HasQuorum() bool {
	voters := h.Voters()

	return voters > 0 && h.Leader != 0 && len(h.Answering) >= Majority(voters)
}

// Answers reports whether a member votes, answers and follows the leader.
func (h Health) Answers(id uint64) bool {
	return slices.Contains(h.Answering, id)
}

// Member is the member of that ID; false when there is none.
func (h Health) Member(id uint64) (Member, bool) {
	i := slices.IndexFunc(h.Members, func(member Member) bool { return member.ID == id })
	if i < 0 {
		return Member{}, false
	}

	return h.Members[i], true
}

// IsLast reports whether no voter would be left without a member.
func (h Health) IsLast(id uint64) bool {
	return !slices.ContainsFunc(h.Members, func(member Member) bool { return member.ID != id && !member.Learner })
}

// RemovalProblems says what speaks against taking a member out now; nothing when
// that is safe: the voters that answer, agreeing on one leader, are a majority
// of the voters left, no other member is a learner, and none has found its data
// corrupt. It does not rely on etcd's own check, which counts a peer that hangs
// as connected (etcd v3.6, server/etcdserver/server.go, mayRemoveMember).
func (h Health) RemovalProblems(id uint64) []string {
	if !h.HasQuorum() {
		return []string{"the voting members that answer are no majority"}
	}
	var found []string
	voters := 0
	for _, member := range h.Members {
		switch {
		case member.ID == id:
		case member.Learner:
			found = append(found, "member "+Describe(member)+" is a learner; one member changes at a time")
		default:
			voters++
		}
	}
	answering := len(h.Answering)
	if h.Answers(id) {
		answering--
	}
	switch {
	case voters == 0:
		found = append(found, "it is the last voting member, and holds the data of the cluster")
	case answering < Majority(voters):
		found = append(found, "the voting members that would be left and answer are no majority")
	}

	return append(found, h.corruption()...)
}

// WipeProblems says what speaks against wiping a machine that is not among those
// asked; nothing when etcd can do without it: the voters that answer, agreeing on one
// leader, are a majority of all voters, itself included, and none has found its data
// corrupt.
func (h Health) WipeProblems() []string {
	if !h.HasQuorum() {
		return []string{"the voting members on the other machines that answer are no majority"}
	}

	return h.corruption()
}

// corruption are the alarms CORRUPT.
func (h Health) corruption() []string {
	var found []string
	for _, alarm := range h.Alarms {
		if alarm.Alarm == AlarmCorrupt {
			found = append(found, describeAlarm(alarm))
		}
	}

	return found
}

// Judge makes one picture of the views of the nodes that answered. Without
// views the result has no members, and no quorum.
func Judge(views []View) Health {
	leader := agreedLeader(views)
	health := Health{Leader: leader, Alarms: mergeAlarms(views)}
	following := slices.DeleteFunc(slices.Clone(views), func(view View) bool { return leader == 0 || view.Leader != leader })
	health.Members = mergeMembers(following)
	health.Answering = answeringVoters(following)
	if !health.HasQuorum() {
		health.Members = mergeMembers(views)
	}
	health.Problems = problems(views, health)

	return health
}

// mergeMembers is the union of the member lists: a member that only some nodes
// know still counts, so that a stale list cannot make the quorum look smaller.
func mergeMembers(views []View) []Member {
	var members []Member
	for _, view := range views {
		for _, member := range view.Members {
			i := slices.IndexFunc(members, func(m Member) bool { return m.ID == member.ID })
			if i < 0 {
				members = append(members, member)
				continue
			}
			// A promotion reaches the nodes one after the other: it counts as
			// voting from the first node that says so.
			members[i].Learner = members[i].Learner && member.Learner
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })

	return members
}

// agreedLeader is the one leader that all answering voters follow, or 0.
func agreedLeader(views []View) uint64 {
	var leader uint64
	for _, view := range views {
		if view.Learner || view.Leader == 0 {
			continue
		}
		if leader != 0 && leader != view.Leader {
			return 0
		}
		leader = view.Leader
	}

	return leader
}

// answeringVoters are the voters among the nodes that follow one leader.
func answeringVoters(following []View) []uint64 {
	var voters []uint64
	for _, view := range following {
		own, listed := view.Own()
		if listed && !own.Learner && !view.Learner && !slices.Contains(voters, view.Self) {
			voters = append(voters, view.Self)
		}
	}
	slices.Sort(voters)

	return voters
}

func problems(views []View, health Health) []string {
	var found []string
	for _, member := range health.Members {
		if member.Learner {
			found = append(found, LearnerProblem(member))
		}
	}
	for _, alarm := range health.Alarms {
		found = append(found, describeAlarm(alarm))
	}
	if len(views) > 0 && health.Leader == 0 {
		found = append(found, "the members that answer know no leader, or do not agree on one")
	}
	if len(views) > 0 && !health.HasQuorum() {
		found = append(found, "the voting members that answer are no majority")
	}

	return found
}

// LearnerProblem is what Judge says of a member that is a learner.
func LearnerProblem(member Member) string {
	return "member " + Describe(member) + " is a learner and does not vote"
}

func mergeAlarms(views []View) []Alarm {
	var alarms []Alarm
	for _, view := range views {
		for _, alarm := range view.Alarms {
			if !slices.Contains(alarms, alarm) {
				alarms = append(alarms, alarm)
			}
		}
	}
	slices.SortFunc(alarms, func(a, b Alarm) int {
		return cmp.Or(cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Alarm, b.Alarm))
	})

	return alarms
}

func describeAlarm(alarm Alarm) string {
	return "alarm " + alarm.Alarm + " is raised by member " + FormatID(alarm.MemberID)
}

// Describe names a member for messages.
func Describe(member Member) string {
	if member.Hostname == "" {
		return FormatID(member.ID)
	}

	return member.Hostname + " (" + FormatID(member.ID) + ")"
}

// FormatID writes a member ID as etcd's own tools do: in hexadecimal digits.
func FormatID(id uint64) string {
	return strconv.FormatUint(id, 16)
}
