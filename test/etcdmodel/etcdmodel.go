// Package etcdmodel is etcd's membership as far as it decides about quorum:
// voters, learners, who answers, who leads. It is pure, and the judge of tests.
package etcdmodel

import (
	"errors"
	"slices"
)

// Errors of a membership change, as etcd refuses them.
var (
	// ErrNoQuorum says that fewer than a majority of the voters answer.
	ErrNoQuorum = errors.New("etcdserver: no leader")
	// ErrTooManyLearners says that there is a learner already: etcd takes one at
	// a time.
	ErrTooManyLearners = errors.New("etcdserver: too many learner members in cluster")
	// ErrMemberNotFound says that there is no such member.
	ErrMemberNotFound = errors.New("etcdserver: member not found")
	// ErrNotLearner says that a member votes already.
	ErrNotLearner = errors.New("etcdserver: can only promote a learner member")
	// ErrWouldLoseQuorum says that the voters that answer would be no majority
	// of those that are left.
	ErrWouldLoseQuorum = errors.New("etcdserver: re-configuration failed due to not enough started members")
)

// Member is one member.
type Member struct {
	// ID is never used again.
	ID uint64
	// Name is the host name of its node.
	Name string
	// PeerURL is where its peers reach it.
	PeerURL string
	// Learner tells that it does not vote.
	Learner bool
	// Up tells that it answers.
	Up bool
}

// Cluster is one etcd cluster. The zero value has never been bootstrapped. It
// is not safe for concurrent use.
type Cluster struct {
	members    []Member
	nextID     uint64
	bootstraps int
}

// firstID makes IDs look like etcd's own.
const firstID = 0x8e9e05c52164694d

// Bootstrap makes a new cluster of one member, whatever was there before.
func (c *Cluster) Bootstrap(name, peerURL string) uint64 {
	c.bootstraps++
	c.members = []Member{{ID: c.id(), Name: name, PeerURL: peerURL, Up: true}}
	return c.members[0].ID
}

func (c *Cluster) id() uint64 {
	if c.nextID == 0 {
		c.nextID = firstID
	}
	c.nextID++
	return c.nextID
}

// Bootstraps counts how often the cluster was made anew.
func (c *Cluster) Bootstraps() int { return c.bootstraps }

// Members are all members, in the order in which they joined.
func (c *Cluster) Members() []Member { return slices.Clone(c.members) }

// HasQuorum tells whether a majority of the voters answers.
func (c *Cluster) HasQuorum() bool { return hasQuorum(c.members) }

func hasQuorum(members []Member) bool {
	voters, up := 0, 0
	for _, member := range members {
		if !member.Learner {
			voters++
			if member.Up {
				up++
			}
		}
	}
	return voters > 0 && up > voters/2
}

// Leader is the ID of the leader; 0 without quorum. It is the voter that
// answers and joined first.
func (c *Cluster) Leader() uint64 {
	if !c.HasQuorum() {
		return 0
	}
	for _, member := range c.members {
		if member.Up && !member.Learner {
			return member.ID
		}
	}
	return 0
}

// AddLearner adds a member that does not vote. A member of the same name goes
// first, as Talos does when a node joins with an empty data directory.
func (c *Cluster) AddLearner(name, peerURL string) (uint64, error) {
	if !c.HasQuorum() {
		return 0, ErrNoQuorum
	}
	for _, member := range c.members {
		if member.Name == name {
			if err := c.Remove(member.ID); err != nil {
				return 0, err
			}
		}
	}
	if slices.ContainsFunc(c.members, func(member Member) bool { return member.Learner }) {
		return 0, ErrTooManyLearners
	}
	added := Member{ID: c.id(), Name: name, PeerURL: peerURL, Learner: true, Up: true}
	c.members = append(c.members, added)
	return added.ID, nil
}

// Promote makes a learner vote.
func (c *Cluster) Promote(id uint64) error {
	i := c.index(id)
	switch {
	case i < 0:
		return ErrMemberNotFound
	case !c.HasQuorum():
		return ErrNoQuorum
	case !c.members[i].Learner:
		return ErrNotLearner
	}
	c.members[i].Learner = false
	return nil
}

// Remove takes a member out, if the voters that answer stay a majority.
func (c *Cluster) Remove(id uint64) error {
	i := c.index(id)
	switch {
	case i < 0:
		return ErrMemberNotFound
	case !c.HasQuorum():
		return ErrNoQuorum
	}
	left := slices.Delete(slices.Clone(c.members), i, i+1)
	if !c.members[i].Learner && !hasQuorum(left) {
		return ErrWouldLoseQuorum
	}
	c.members = left
	return nil
}

// SetUp says whether a member answers.
func (c *Cluster) SetUp(id uint64, up bool) {
	if i := c.index(id); i >= 0 {
		c.members[i].Up = up
	}
}

func (c *Cluster) index(id uint64) int {
	return slices.IndexFunc(c.members, func(member Member) bool { return member.ID == id })
}
