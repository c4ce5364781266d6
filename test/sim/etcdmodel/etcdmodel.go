// Package etcdmodel is etcd as far as membership and quorum go: voters,
// learners, who answers, who leads, which node keeps whose data. It is pure, and
// the judge of tests.
//
// The refusals are those of etcd v3.6.16 with its strict reconfiguration check
// (server/etcdserver/server.go: mayAddMember, mayRemoveMember,
// mayPromoteMember). What the model leaves out: time (a member that answers has
// answered for long enough, and a learner that answers has caught up) and
// partitions between two members that both answer. test/sim/etcdhistory runs the
// same histories on it and on real etcd.
package etcdmodel

import (
	"errors"
	"slices"
	"time"
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
	// ErrStopped says that the member that was asked is ending.
	ErrStopped = errors.New("etcdserver: server stopped")
	// ErrMemberNotFound says that there is no such member.
	ErrMemberNotFound = errors.New("etcdserver: member not found")
	// ErrNotLearner says that a member votes already.
	ErrNotLearner = errors.New("etcdserver: can only promote a learner member")
	// ErrLearnerNotReady says that the present leader has not seen a member catch
	// up: it has not answered since that leader was elected.
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
	// Learner reports whether it does not vote.
	Learner bool
	// Up reports whether it answers.
	Up bool
	// Silent reports whether it does not answer, though its connections are open: it
	// hangs, or what it sends is lost. Its peers do not notice. Etcd means to give
	// such a connection up after 5 s, but sets its deadlines where net/http does
	// not look (client/pkg/transport/timeout_transport.go sets Dial beside
	// DialContext).
	Silent bool
	// Since is when it was added; zero where Nodes have no clock.
	Since time.Time
	// seen is the last term in which it answered a leader.
	seen uint64
	// started and silenced tell the order of what happened to it.
	started, silenced uint64
}

// counts reports whether a member counts another one as connected.
func (m Member) counts(other Member) bool {
	return m.ID == other.ID || other.Up || other.Silent && m.started < other.silenced
}

// Cluster is one etcd cluster. It is not safe for concurrent use.
type Cluster struct {
	members []Member
	newID   func() uint64
	now     func() time.Time
	leader  uint64
	term    uint64
	// paused is a leader that is silent, and that nobody could replace; 0 without one.
	paused uint64
	// events counts what happens to members.
	events uint64
	alarms []Alarm
}

// newCluster makes a cluster of one member that answers.
func newCluster(newID func() uint64, now func() time.Time, name, peerURL string) *Cluster {
	c := &Cluster{newID: newID, now: now, members: []Member{{ID: newID(), Name: name, PeerURL: peerURL, Up: true, Since: now()}}}
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

// HasQuorum reports whether a majority of the voters answers.
func (c *Cluster) HasQuorum() bool { return c.Count().HasQuorum() }

// Leader is the ID of the leader; 0 without quorum. A leader stays one until it
// is gone, leaves or hands over, or until others have elected one while it was silent.
func (c *Cluster) Leader() uint64 { return c.leader }

// Term counts the elections.
func (c *Cluster) Term() uint64 { return c.term }

// elect keeps the leader, or finds the voter that answers and joined first. A leader that
// was silent, and goes on before others could elect another one, is the leader still: its
// clock has stood still, and who is left cannot campaign (etcd has --pre-vote by default).
func (c *Cluster) elect() {
	if !c.HasQuorum() {
		c.pause()
		return
	}
	if c.leader == 0 && c.isUp(c.paused) {
		c.leader = c.paused
	}
	c.paused = 0
	if !c.isUp(c.leader) {
		i := slices.IndexFunc(c.members, func(member Member) bool { return member.Up && !member.Learner })
		c.leader = c.members[i].ID
		c.term++
	}
	c.see()
}

// pause ends the reign of a leader that has lost its quorum, unless it does not notice.
func (c *Cluster) pause() {
	if c.leader != 0 {
		c.paused, c.leader = c.leader, 0
	}
	if i := c.index(c.paused); i < 0 || !c.members[i].Silent {
		c.paused = 0
	}
}

// isUp reports whether there is a voter of that ID which answers.
func (c *Cluster) isUp(id uint64) bool {
	i := c.index(id)

	return i >= 0 && c.members[i].Up && !c.members[i].Learner
}

// see is what a leader learns of the members: who answers keeps up with it.
func (c *Cluster) see() {
	for i := range c.members {
		if c.members[i].Up {
			c.members[i].seen = c.term
		}
	}
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
		c.see()
	}
	return nil
}

// AddLearner adds a member that does not vote and has not run yet. The leader is
// asked.
func (c *Cluster) AddLearner(peerURL string) (uint64, error) {
	return c.AddLearnerAt(c.leader, peerURL)
}

// AddLearnerAt is AddLearner when a certain member is asked: each has its own
// opinion about who is connected.
func (c *Cluster) AddLearnerAt(asked uint64, peerURL string) (uint64, error) {
	at := c.index(asked)
	if c.leader == 0 || at < 0 {
		return 0, ErrNoLeader
	}
	voters, connected := c.connected(c.members[at])
	learners := len(c.members) - voters
	switch {
	case voters > 1 && connected < quorum(voters+1):
		return 0, ErrUnhealthy
	case slices.ContainsFunc(c.members, func(member Member) bool { return member.PeerURL == peerURL }):
		return 0, ErrPeerURLExists
	case learners >= maxLearners:
		return 0, ErrTooManyLearners
	}
	id := c.newID()
	c.members = append(c.members, Member{ID: id, PeerURL: peerURL, Learner: true, Since: c.now()})
	return id, nil
}

// connected counts the voters, and those of them that a member counts as
// connected.
func (c *Cluster) connected(asked Member) (voters, connected int) {
	for _, member := range c.members {
		if !member.Learner {
			voters++
			if asked.counts(member) {
				connected++
			}
		}
	}
	return voters, connected
}

// Connected reports whether a member counts another one as connected.
func (c *Cluster) Connected(asked, other uint64) bool {
	from, to := c.index(asked), c.index(other)
	return from >= 0 && to >= 0 && c.members[from].counts(c.members[to])
}

// Start runs a member, under that name. One that runs, or was silent, goes on: it
// still counts as connected whom it counted before.
func (c *Cluster) Start(id uint64, name string) error {
	i := c.index(id)
	if i < 0 {
		return ErrMemberNotFound
	}
	member := &c.members[i]
	if !member.Up && !member.Silent {
		c.events++
		member.started = c.events
	}
	member.Name, member.Up, member.Silent = name, true, false
	c.elect()
	return nil
}

// Stop ends a member: its connections break.
func (c *Cluster) Stop(id uint64) {
	if i := c.index(id); i >= 0 {
		c.members[i].Up, c.members[i].Silent = false, false
		c.elect()
	}
}

// Silence makes a member that runs not answer.
func (c *Cluster) Silence(id uint64) {
	if i := c.index(id); i >= 0 && c.members[i].Up {
		c.events++
		c.members[i].Up, c.members[i].Silent, c.members[i].silenced = false, true, c.events
		c.elect()
	}
}

// Promote makes a learner vote. As in etcd a learner that was in sync with the
// present leader is taken even when it no longer answers, which can cost the
// cluster its quorum.
func (c *Cluster) Promote(id uint64) error {
	i := c.index(id)
	switch {
	case c.leader == 0:
		return ErrNoLeader
	case i < 0:
		return ErrMemberNotFound
	case c.members[i].seen != c.term:
		return ErrLearnerNotReady
	case !c.members[i].Learner:
		return ErrNotLearner
	}
	c.members[i].Learner = false
	c.elect()
	return nil
}

// Remove takes a member out. A voter that is connected is refused when those
// that would be left are no safe majority. The leader is asked.
func (c *Cluster) Remove(id uint64) error { return c.RemoveAt(c.leader, id) }

// RemoveAt is Remove when a certain member is asked.
func (c *Cluster) RemoveAt(asked, id uint64) error {
	at, i := c.index(asked), c.index(id)
	switch {
	case c.leader == 0 || at < 0:
		return ErrNoLeader
	case i < 0:
		return ErrMemberNotFound
	}
	if err := c.mayRemove(c.members[at], c.members[i]); err != nil {
		return err
	}
	c.members = slices.Delete(c.members, i, i+1)
	c.elect()
	return nil
}

func (c *Cluster) mayRemove(asked, member Member) error {
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
	voters, connected := c.connected(asked)
	if asked.counts(member) && connected-1 < 1+(voters-1)/2 {
		return ErrUnhealthy
	}
	return nil
}

func (c *Cluster) index(id uint64) int {
	return slices.IndexFunc(c.members, func(member Member) bool { return member.ID == id })
}

// Readdress changes where the peers of a member reach it. Talos has it done when
// the address of a node has changed, before etcd is started: by the other members,
// which need a quorum for it, or alone where the member is the only voter.
func (c *Cluster) Readdress(id uint64, peerURL string) error {
	i := c.index(id)
	if i < 0 {
		return ErrMemberNotFound
	}
	if voters, _ := c.voters(); c.leader == 0 && (voters > 1 || c.members[i].Learner) {
		return ErrNoLeader
	}
	if slices.ContainsFunc(c.members, func(other Member) bool { return other.ID != id && other.PeerURL == peerURL }) {
		return ErrPeerURLExists
	}
	c.members[i].PeerURL = peerURL
	return nil
}
