// Package etcd judges the membership of an etcd cluster from what its nodes say
// through the Talos API. It is pure: it reads facts and changes nothing.
//
// A member is identified by its ID and its peer URLs, never by its name.
package etcd

import (
	"cmp"
	"slices"
	"strconv"
)

// AlarmCorrupt is the alarm that etcd raises when data of members differ.
const AlarmCorrupt = "CORRUPT"

// Member is one entry of a member list.
type Member struct {
	// ID is the member ID that etcd gave.
	ID uint64
	// Name is the name that the member announced. It is for messages only.
	Name string
	// PeerURLs are the URLs at which the other members reach it.
	PeerURLs []string
	// Learner tells that the member does not vote (yet).
	Learner bool
}

// Alarm is an alarm that a member has raised.
type Alarm struct {
	MemberID uint64
	Name     string
}

// View is what one node says about etcd.
type View struct {
	// Self is the ID of the node's own member.
	Self uint64
	// Leader is the ID of the leader that the node follows; 0 when it knows
	// none.
	Leader uint64
	// Learner tells that the own member does not vote (yet).
	Learner bool
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

// Health is the state of an etcd cluster, judged from the views of the nodes
// that answered.
type Health struct {
	// Members are the members in the order of their IDs.
	Members []Member
	// Voters is the number of voting members.
	Voters int
	// Answering is the number of voting members whose node answered and that
	// follow the leader on which the answering nodes agree.
	Answering int
	// Leader is that leader; 0 when they know none or do not agree.
	Leader uint64
	// Problems are sentences about what is wrong, in a stable order. They name
	// members by name and ID.
	Problems []string
}

// Majority is the number of votes that decide among the given number of voting
// members.
func Majority(voters int) int {
	return voters/2 + 1
}

// HasQuorum tells that the voters that answer, and agree on one leader, are a
// majority of all voters. Learners and silent members do not count.
func (h Health) HasQuorum() bool {
	return h.Voters > 0 && h.Leader != 0 && h.Answering >= Majority(h.Voters)
}

// Judge makes one picture of the views of the nodes that answered. Without
// views the result has no members, and no quorum.
func Judge(views []View) Health {
	health := Health{Members: mergeMembers(views)}
	for _, member := range health.Members {
		if !member.Learner {
			health.Voters++
		}
	}
	health.Leader = agreedLeader(views)
	health.Answering = answeringVoters(views, health.Leader)
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

func answeringVoters(views []View, leader uint64) int {
	if leader == 0 {
		return 0
	}
	voters := map[uint64]bool{}
	for _, view := range views {
		own, listed := view.Own()
		if listed && !own.Learner && !view.Learner && view.Leader == leader {
			voters[view.Self] = true
		}
	}

	return len(voters)
}

func problems(views []View, health Health) []string {
	var found []string
	for _, member := range health.Members {
		if member.Learner {
			found = append(found, "member "+Describe(member)+" is a learner and does not vote")
		}
	}
	for _, alarm := range mergeAlarms(views) {
		found = append(found, "alarm "+alarm.Name+" is raised by member "+formatID(alarm.MemberID))
	}
	if len(views) > 0 && health.Leader == 0 {
		found = append(found, "the members that answer know no leader, or do not agree on one")
	}
	if len(views) > 0 && !health.HasQuorum() {
		found = append(found, "the voting members that answer are no majority")
	}

	return found
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
		return cmp.Or(cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Name, b.Name))
	})

	return alarms
}

// Describe names a member for messages.
func Describe(member Member) string {
	if member.Name == "" {
		return formatID(member.ID)
	}

	return member.Name + " (" + formatID(member.ID) + ")"
}

// formatID writes a member ID as etcd's own tools do.
func formatID(id uint64) string {
	return strconv.FormatUint(id, 16)
}
