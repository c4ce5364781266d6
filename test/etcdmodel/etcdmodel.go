// Package etcdmodel is etcd as far as membership and quorum go: voters,
// learners, who answers, who leads, which node keeps whose data. It is pure, and
// the judge of tests.
//
// The refusals are those of etcd v3.6.16 with its strict reconfiguration check
// (server/etcdserver/server.go: mayAddMember, mayRemoveMember,
// mayPromoteMember). What the model leaves out: time (a member that answers has
// answered for long enough) and partitions between two members that both answer.
package etcdmodel

import (
	"errors"
	"slices"
)

// Errors of a membership change, in etcd's own words.
var (
	// ErrNoLeader says that fewer than a majority of the voters answer.
	ErrNoLeader = errors.New("etcdserver: no leader")
	// ErrUnhealthy says that too few voters answer for the change to be safe.
	ErrUnhealthy = errors.New("etcdserver: unhealthy cluster")
	// ErrNotEnoughStarted says that too few voters that have ever run would be
	// left.
	ErrNotEnoughStarted = errors.New("etcdserver: re-configuration failed due to not enough started members")
	// ErrTooManyLearners says that there is a learner already: etcd takes one at
	// a time.
	ErrTooManyLearners = errors.New("etcdserver: too many learner members in cluster")
	// ErrPeerURLExists says that another member has that peer URL.
	ErrPeerURLExists = errors.New("etcdserver: Peer URLs already exists")
	// ErrMemberNotFound says that there is no such member.
	ErrMemberNotFound = errors.New("etcdserver: member not found")
	// ErrNotLearner says that a member votes already.
	ErrNotLearner = errors.New("etcdserver: can only promote a learner member")
	// ErrLearnerNotReady says that a learner does not answer, and so cannot have
	// caught up.
	ErrLearnerNotReady = errors.New("etcdserver: can only promote a learner member which is in sync with leader")
)

// maxLearners is etcd's default of --max-learners.
const maxLearners = 1

// Member is one member.
type Member struct {
	// ID is never used again.
	ID uint64
	// Name is the host name of its node; empty until the member has run once.
	Name string
	// PeerURL is where its peers reach it.
	PeerURL string
	// Learner tells that it does not vote.
	Learner bool
	// Up tells that it answers.
	Up bool
}

// Cluster is one etcd cluster. It is not safe for concurrent use.
type Cluster struct {
	members []Member
	newID   func() uint64
	leader  uint64
	term    uint64
}

// newCluster makes a cluster of one member that answers.
func newCluster(newID func() uint64, name, peerURL string) *Cluster {
	c := &Cluster{newID: newID, members: []Member{{ID: newID(), Name: name, PeerURL: peerURL, Up: true}}}
	c.elect()
	return c
}

// Members are all members, in the order in which they joined.
func (c *Cluster) Members() []Member { return slices.Clone(c.members) }

// Member is the member of that ID.
func (c *Cluster) Member(id uint64) (Member, bool) {
	if i := c.index(id); i >= 0 {
		return c.members[i], true
	}
	return Member{}, false
}

// voters counts the voters, and those of them that answer.
func (c *Cluster) voters() (all, up int) {
	for _, member := range c.members {
		if !member.Learner {
			all++
			if member.Up {
				up++
			}
		}
	}
	return all, up
}

func quorum(voters int) int { return voters/2 + 1 }

// HasQuorum tells whether a majority of the voters answers.
func (c *Cluster) HasQuorum() bool {
	all, up := c.voters()
	return up >= quorum(all)
}

// Leader is the ID of the leader; 0 without quorum. A leader stays one until it
// no longer answers, leaves or hands over.
func (c *Cluster) Leader() uint64 { return c.leader }

// Term counts the elections.
func (c *Cluster) Term() uint64 { return c.term }

// elect keeps the leader, or finds the voter that answers and joined first.
func (c *Cluster) elect() {
	if !c.HasQuorum() {
		c.leader = 0
		return
	}
	if i := c.index(c.leader); i >= 0 && c.members[i].Up && !c.members[i].Learner {
		return
	}
	i := slices.IndexFunc(c.members, func(member Member) bool { return member.Up && !member.Learner })
	c.leader = c.members[i].ID
	c.term++
}

// MoveLeader makes another voter that answers the leader.
func (c *Cluster) MoveLeader(to uint64) error {
	i := c.index(to)
	switch {
	case c.leader == 0:
		return ErrNoLeader
	case i < 0 || c.members[i].Learner:
		return ErrMemberNotFound
	case !c.members[i].Up:
		return ErrUnhealthy
	case c.leader != to:
		c.leader = to
		c.term++
	}
	return nil
}

// AddLearner adds a member that does not vote and has not run yet.
func (c *Cluster) AddLearner(peerURL string) (uint64, error) {
	voters, up := c.voters()
	learners := len(c.members) - voters
	switch {
	case c.leader == 0:
		return 0, ErrNoLeader
	case voters > 1 && up < quorum(voters+1):
		return 0, ErrUnhealthy
	case slices.ContainsFunc(c.members, func(member Member) bool { return member.PeerURL == peerURL }):
		return 0, ErrPeerURLExists
	case learners >= maxLearners:
		return 0, ErrTooManyLearners
	}
	id := c.newID()
	c.members = append(c.members, Member{ID: id, PeerURL: peerURL, Learner: true})
	return id, nil
}

// Start runs a member, under that name.
func (c *Cluster) Start(id uint64, name string) error {
	i := c.index(id)
	if i < 0 {
		return ErrMemberNotFound
	}
	c.members[i].Name, c.members[i].Up = name, true
	c.elect()
	return nil
}

// Stop makes a member not answer.
func (c *Cluster) Stop(id uint64) {
	if i := c.index(id); i >= 0 {
		c.members[i].Up = false
		c.elect()
	}
}

// Promote makes a learner vote.
func (c *Cluster) Promote(id uint64) error {
	i := c.index(id)
	switch {
	case c.leader == 0:
		return ErrNoLeader
	case i < 0:
		return ErrMemberNotFound
	case !c.members[i].Learner:
		return ErrNotLearner
	case !c.members[i].Up:
		return ErrLearnerNotReady
	}
	c.members[i].Learner = false
	c.elect()
	return nil
}

// Remove takes a member out. A voter that answers is refused when those that
// would be left are no safe majority.
func (c *Cluster) Remove(id uint64) error {
	i := c.index(id)
	switch {
	case c.leader == 0:
		return ErrNoLeader
	case i < 0:
		return ErrMemberNotFound
	}
	if err := c.mayRemove(c.members[i]); err != nil {
		return err
	}
	c.members = slices.Delete(c.members, i, i+1)
	c.elect()
	return nil
}

func (c *Cluster) mayRemove(member Member) error {
	if member.Learner {
		return nil
	}
	left, started := 0, 0
	for _, other := range c.members {
		if other.ID != member.ID && !other.Learner {
			left++
			if other.Name != "" {
				started++
			}
		}
	}
	if started < quorum(left) {
		return ErrNotEnoughStarted
	}
	voters, up := c.voters()
	if member.Up && up-1 < 1+(voters-1)/2 {
		return ErrUnhealthy
	}
	return nil
}

func (c *Cluster) index(id uint64) int {
	return slices.IndexFunc(c.members, func(member Member) bool { return member.ID == id })
}
