package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// group is the one group of etcd nodes of a history.
const group = "one"

// passTime is how much time passes between two passes.
const passTime = 30 * time.Second

// play is a control plane as a history sees it: what the management cluster
// stores, what runs on the nodes, and a manager that may die at any time.
type play struct {
	random   *rand.Rand
	decide   func(Facts) Decision
	nodes    etcdmodel.Nodes
	now      time.Time
	serial   int
	hosts    []string
	machines []*machinePlay
	// lost are machines whose Machines are gone, and whose hosts were not wiped: their
	// nodes run on.
	lost []*machinePlay

	replicas   int32
	surge      int32
	release    int
	template   string
	intent     *controlplanev1.BootstrapIntent
	inProgress *controlplanev1.RemediationRecord
	// initialized is what the status says; override is what a person says.
	initialized bool
	override    string
	apiDown     bool
	// used reports whether the API server has answered, and so may have stored something.
	used        bool
	wiped       map[string]bool
	leaving     map[string]bool
	silentSince map[string]time.Time
	// namelessSince and orphanSince are since when the manager sees members without a
	// name, and members of no Machine; askedAt is when it told a node to bootstrap, and
	// takenBack when it took a leave back.
	namelessSince, orphanSince map[uint64]time.Time
	askedAt, takenBack         map[string]time.Time

	last Decision
	// known are the members that answered when the facts were gathered; nil when
	// nothing has happened since.
	known    map[uint64]bool
	offences []string
	trace    []string
}

// machinePlay is a Machine, its infrastructure and its node.
type machinePlay struct {
	name, providerID, domain string
	// host is where it runs, and peer the address at which its etcd is: that of a
	// second network on some hosts. told tells that the node has said so.
	host, peer        string
	told              bool
	created           time.Time
	release           int
	held, configured  bool
	provisioned       bool
	deleting          bool
	hook              HookState
	unhealthy, marked bool
	memberID          uint64
	retries           *controlplanev1.RemediationRecord
	// least is how many voters must be left when it goes, because nobody but the
	// manager wanted it deleted; 0 for all others.
	least int

	// silent nodes do not answer managers, mute ones tell all but whether they have
	// data; parted ones do not reach their peers; stopped ones have a dead etcd; sick
	// ones have a dead component.
	silent, mute, parted, stopped, sick bool
	// left nodes have left etcd in this boot; out are Machines that were let go
	// because they had no member, unborn those that went before etcd was in use.
	left, out, unborn bool
	// preparing nodes were told to bootstrap etcd, starting ones are listed by etcd;
	// both have no data yet. barred ones cannot join: etcd has a member at their address.
	preparing, starting, barred bool
	// halted is an etcd with data that somebody stopped: it starts at the next boot only.
	halted bool
	// late nodes have restarted while their member learnt: Talos does not promote it
	// any more.
	late bool
	// ended are Machines whose host is let go, and may be another's.
	ended bool
	// list is the member list that the node knew before it was parted.
	list []etcdmodel.Member
}

func newPlay(random *rand.Rand, decide func(Facts) Decision) *play {
	p := &play{
		random: random, decide: decide, now: time.Unix(0, 0), replicas: 1, surge: 1,
		hosts: []string{"host-1", "host-2", "host-3", "host-4", "host-5", "host-6", "host-7"},
		wiped: map[string]bool{},
	}
	p.restart()
	return p
}

func (p *play) note(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

func (p *play) offend(format string, args ...any) {
	p.offences = append(p.offences, fmt.Sprintf(format, args...))
	p.note("OFFENCE: "+format, args...)
}

// chance is true once in so many times.
func (p *play) chance(of int) bool { return p.random.IntN(of) == 0 }

func (p *play) machine(name string) *machinePlay {
	i := slices.IndexFunc(p.machines, func(m *machinePlay) bool { return m.name == name })
	if i < 0 {
		return nil
	}
	return p.machines[i]
}

// cluster is the etcd cluster; nil before the bootstrap.
func (p *play) cluster() *etcdmodel.Cluster {
	for _, machine := range slices.Concat(p.machines, p.lost) {
		if data, found := p.nodes.Data(machine.name); found {
			if _, member := data.Cluster.Member(data.ID); member {
				return data.Cluster
			}
		}
	}
	return nil
}

func (p *play) hasQuorum() bool {
	cluster := p.cluster()
	return cluster != nil && cluster.HasQuorum()
}

// lives reports whether etcd runs, or can run again: most voters of a cluster have their
// data somewhere.
func (p *play) lives() bool {
	voters := map[*etcdmodel.Cluster]int{}
	for _, machine := range slices.Concat(p.machines, p.lost) {
		data, has := p.nodes.Data(machine.name)
		if !has {
			continue
		}
		if member, found := data.Cluster.Member(data.ID); found && !member.Learner {
			voters[data.Cluster]++
		}
		if voters[data.Cluster] > data.Cluster.Count().Voters/2 {
			return true
		}
	}
	return false
}

// serves reports whether an API server answers on a Machine that is there, or on one that
// was not let go.
func (p *play) serves(kept bool) bool {
	return !p.apiDown && p.hasQuorum() && slices.ContainsFunc(p.machines, func(m *machinePlay) bool {
		data, has := p.nodes.Data(m.name)
		if !has || m.ended || kept && m.deleting && m.hook == HookGone {
			return false
		}
		member, found := data.Cluster.Member(data.ID)
		return found && member.Up && !member.Learner
	})
}

// world lets time pass: everything but the manager.
func (p *play) world() {
	p.now = p.now.Add(passTime)
	for _, machine := range slices.Clone(p.machines) {
		p.live(machine)
	}
	for _, machine := range slices.Clone(p.lost) {
		p.linger(machine)
	}
}

// live is what becomes of one Machine and its node.
func (p *play) live(m *machinePlay) {
	switch {
	case m.ended:
		if p.chance(3) {
			p.machines = slices.DeleteFunc(p.machines, func(other *machinePlay) bool { return other == m })
		}
	case m.deleting && m.hook == HookGone:
		p.letGo(m)
	case m.deleting && m.hook == HookEarly && p.chance(2):
		m.hook = HookDue
	case !m.held && !m.configured:
		m.configured = true
	case m.configured && !m.provisioned && !m.deleting && len(p.hosts) > 0 && p.chance(3):
		m.host, p.hosts = p.hosts[0], p.hosts[1:]
		m.peer = m.host
		if m.host >= "host-4" {
			m.peer = "storage-of-" + m.host
		}
		m.provisioned, m.providerID = true, "talos://"+m.name
	case m.provisioned:
		p.boot(m)
	}
}

// letGo is what becomes of a Machine that was let go. Its node may restart, and
// joins again then. One that was let go without a member is not reset while the
// others, or their silence, say that it may vote.
func (p *play) letGo(m *machinePlay) {
	if m.provisioned && p.chance(4) {
		m.left = false
		p.boot(m)
	}
	if p.chance(3) && (!m.out || !p.mayVote(m)) {
		p.gone(m)
	}
}

// isMember reports whether etcd has the node of a Machine as a member.
func (p *play) isMember(m *machinePlay) bool {
	data, has := p.nodes.Data(m.name)
	if !has {
		return false
	}
	_, found := data.Cluster.Member(data.ID)
	return found
}

// mayVote reports whether a majority knows the node of a Machine as a voter, or that
// there is none to ask.
func (p *play) mayVote(m *machinePlay) bool {
	data, has := p.nodes.Data(m.name)
	if !has {
		return false
	}
	member, found := data.Cluster.Member(data.ID)
	return found && (!member.Learner || !data.Cluster.HasQuorum())
}

// gone is the end of the infrastructure of a Machine. A host that does not answer is
// not wiped, and some that do are not either: nothing is known of them. One that went
// before etcd was in use has no power then, and keeps its data. The Machine lasts a
// little longer.
func (p *play) gone(m *machinePlay) {
	m.ended = true
	delete(p.leaving, m.name)
	switch {
	case !m.provisioned:
	case m.silent || p.chance(8):
		p.note("the host of %s is not wiped", m.name)
		p.lost = append(p.lost, m)
		if m.unborn {
			p.stop(m)
			m.preparing = false
		}
	default:
		p.wipeHost(m)
	}
}

// wipeHost wipes the host of a Machine, which is the first to be taken then.
func (p *play) wipeHost(m *machinePlay) {
	before := p.hasQuorum()
	p.nodes.Wipe(m.name)
	if before && !p.hasQuorum() && p.used && !m.unborn {
		p.offend("the wipe of %s took the quorum", m.name)
	}
	m.preparing, m.starting = false, false
	p.hosts = append([]string{m.host}, p.hosts...)
	p.wiped[m.providerID] = true
}

// linger is what becomes of a machine whose Machine is gone: it runs on, restarts, and
// is wiped in the end.
func (p *play) linger(m *machinePlay) {
	switch {
	case p.chance(10):
		m.revive()
	case p.chance(4):
		m.left = false
		p.boot(m)
	case p.chance(6) && !m.silent && (!m.out || !p.mayVote(m)):
		p.lost = slices.DeleteFunc(p.lost, func(other *machinePlay) bool { return other == m })
		p.wipeHost(m)
		p.note("the host of %s is wiped", m.name)
	}
}

// revive heals a machine whose Machine is gone; one that has no power stays so.
func (m *machinePlay) revive() {
	m.silent, m.parted, m.stopped = false, false, m.unborn
}

// boot is what the node of a Machine does with etcd.
func (p *play) boot(m *machinePlay) {
	m.told = m.told || !m.silent
	if m.parted || m.stopped || m.left || m.halted {
		return
	}
	data, has := p.nodes.Data(m.name)
	switch {
	case !has && m.preparing:
		if p.chance(2) { // Talos pulls the image of etcd first.
			m.preparing = false
			_ = p.nodes.Bootstrap(group, m.name, m.name, m.peerURL())
		}
	case !has:
		p.join(m)
	case m.starting:
		if p.chance(2) {
			m.starting = false
			p.start(m)
		}
	default:
		p.start(m)
		if member, found := data.Cluster.Member(data.ID); found && member.Learner && !m.late && p.chance(5) {
			_ = data.Cluster.Promote(data.ID)
		}
	}
}

// join has etcd list a node as a learner, which has no name and no data yet.
func (p *play) join(m *machinePlay) {
	if p.nodes.Answering(group) == nil {
		return
	}
	before := p.hasQuorum()
	err := p.nodes.Add(group, m.name, m.name, m.peerURL())
	m.barred = errors.Is(err, etcdmodel.ErrPeerURLExists)
	if err == nil {
		m.starting, m.late = true, false
		p.note("%s is listed", m.name)
	}
	if before && !p.hasQuorum() {
		p.offend("the join of %s took the quorum", m.name)
	}
}

// start runs etcd where it does not.
func (p *play) start(m *machinePlay) {
	data, has := p.nodes.Data(m.name)
	if !has || m.starting || m.halted {
		return
	}
	if member, found := data.Cluster.Member(data.ID); found && !member.Up {
		_ = p.nodes.Start(m.name, m.name)
	}
}

func (m *machinePlay) peerURL() string { return "https://" + m.peer + ":2380" }
