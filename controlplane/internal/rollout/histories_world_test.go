package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/test/etcdmodel"
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

	replicas    int32
	surge       int32
	release     int
	intent      *controlplanev1.BootstrapIntent
	inProgress  *controlplanev1.RemediationRecord
	apiDown     bool
	used        bool
	wiped       map[string]bool
	leaving     map[string]bool
	silentSince map[string]time.Time
	// namelessSince is since when the manager sees members without a name.
	namelessSince map[uint64]time.Time

	offences []string
	trace    []string
}

// machinePlay is a Machine, its infrastructure and its node.
type machinePlay struct {
	name, providerID, domain string
	// host is where it runs; its address stays on the Machine to the end.
	host              string
	created           time.Time
	release           int
	held, configured  bool
	provisioned       bool
	deleting          bool
	hook              HookState
	unhealthy, marked bool
	memberID          uint64
	retries           *controlplanev1.RemediationRecord

	// silent nodes do not answer managers; parted ones do not reach their peers;
	// stopped ones have a dead etcd; sick ones have a dead component.
	silent, parted, stopped, sick bool
	// left nodes have left etcd in this boot; out are Machines that were let go
	// because they had no member, unborn those that went before etcd was in use.
	left, out, unborn bool
	// starting nodes are listed by etcd and have no data yet. ended are Machines whose
	// host is wiped, and may be another's.
	starting, ended bool
	// list is the member list that the node knew before it was parted.
	list []etcdmodel.Member
}

func newPlay(random *rand.Rand, decide func(Facts) Decision) *play {
	return &play{
		random: random, decide: decide, now: time.Unix(0, 0), replicas: 1, surge: 1,
		hosts: []string{"host-1", "host-2", "host-3", "host-4", "host-5", "host-6"},
		wiped: map[string]bool{}, leaving: map[string]bool{}, silentSince: map[string]time.Time{},
		namelessSince: map[uint64]time.Time{},
	}
}

func (p *play) note(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

func (p *play) offend(format string, args ...any) {
	p.offences = append(p.offences, fmt.Sprintf(format, args...))
	p.note("OFFENCE: "+format, args...)
}

func (p *play) machine(name string) *machinePlay {
	i := slices.IndexFunc(p.machines, func(m *machinePlay) bool { return m.name == name })
	if i < 0 {
		return nil
	}
	return p.machines[i]
}

// cluster is the etcd cluster; nil before the bootstrap.
func (p *play) cluster() *etcdmodel.Cluster {
	for _, machine := range p.machines {
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

// world lets time pass: everything but the manager.
func (p *play) world() {
	p.now = p.now.Add(passTime)
	for _, machine := range slices.Clone(p.machines) {
		p.live(machine)
	}
}

// live is what becomes of one Machine and its node.
func (p *play) live(m *machinePlay) {
	switch {
	case m.ended:
		if p.random.IntN(3) == 0 {
			p.machines = slices.DeleteFunc(p.machines, func(other *machinePlay) bool { return other == m })
		}
	case m.deleting && m.hook == HookGone:
		p.letGo(m)
	case m.deleting && m.hook == HookEarly && p.random.IntN(2) == 0:
		m.hook = HookDue
	case !m.held && !m.configured:
		m.configured = true
	case m.configured && !m.provisioned && !m.deleting && len(p.hosts) > 0:
		m.host, p.hosts = p.hosts[0], p.hosts[1:]
		m.provisioned, m.providerID = true, "talos://"+m.name
	case m.provisioned:
		p.boot(m)
	}
}

// letGo is what becomes of a Machine that was let go. Its node may restart, and
// joins again then. One that was let go without a member is not reset while the
// others, or their silence, say that it may vote.
func (p *play) letGo(m *machinePlay) {
	if m.provisioned && p.random.IntN(4) == 0 {
		m.left = false
		p.boot(m)
	}
	if p.random.IntN(3) == 0 && (!m.out || !p.mayVote(m)) {
		p.gone(m)
	}
}

// isMember tells that etcd has the node of a Machine as a member.
func (p *play) isMember(m *machinePlay) bool {
	data, has := p.nodes.Data(m.name)
	if !has {
		return false
	}
	_, found := data.Cluster.Member(data.ID)
	return found
}

// mayVote tells that a majority knows the node of a Machine as a voter, or that
// there is none to ask.
func (p *play) mayVote(m *machinePlay) bool {
	data, has := p.nodes.Data(m.name)
	if !has {
		return false
	}
	member, found := data.Cluster.Member(data.ID)
	return found && (!member.Learner || !data.Cluster.HasQuorum())
}

// gone is the end of the infrastructure of a Machine: its host is wiped and the first
// to be taken. The Machine lasts a little longer.
func (p *play) gone(m *machinePlay) {
	m.ended = true
	if m.provisioned {
		before := p.hasQuorum()
		p.nodes.Wipe(m.name)
		if before && !p.hasQuorum() && p.used && !m.unborn {
			p.offend("the wipe of %s took the quorum", m.name)
		}
		p.hosts = append([]string{m.host}, p.hosts...)
		p.wiped[m.providerID] = true
	}
	delete(p.leaving, m.name)
}

// boot is what the node of a Machine does with etcd.
func (p *play) boot(m *machinePlay) {
	data, has := p.nodes.Data(m.name)
	if m.parted || m.stopped || m.left {
		return
	}
	m.starting = false
	if !has {
		cluster := p.nodes.Answering(group)
		if cluster == nil {
			return
		}
		before := p.hasQuorum()
		if err := p.nodes.Join(group, m.name, m.name, m.peerURL()); err == nil {
			m.starting = true
			p.note("%s joins", m.name)
		}
		if before && !p.hasQuorum() {
			p.offend("the join of %s took the quorum", m.name)
		}
		return
	}
	_ = p.nodes.Start(m.name, m.name)
	if member, found := data.Cluster.Member(data.ID); found && member.Learner && p.random.IntN(5) == 0 {
		_ = data.Cluster.Promote(data.ID)
	}
}

func (m *machinePlay) peerURL() string { return "https://" + m.host + ":2380" }

// view is what the node of a Machine says about etcd; nil when it says nothing.
func (p *play) view(m *machinePlay) *etcd.View {
	data, has := p.nodes.Data(m.name)
	if !has || !p.answers(m) || m.stopped || m.starting {
		return nil
	}
	member, found := data.Cluster.Member(data.ID)
	if !found {
		return nil
	}
	view := &etcd.View{Self: data.ID, Learner: member.Learner}
	list := data.Cluster.Members()
	if m.parted {
		list = m.list
	} else {
		view.Leader = data.Cluster.Leader()
	}
	for _, other := range list {
		view.Members = append(view.Members, etcd.Member{ID: other.ID, Name: other.Name, PeerURLs: []string{other.PeerURL}, Learner: other.Learner})
	}
	return view
}

func (p *play) answers(m *machinePlay) bool { return m.provisioned && !m.silent && !m.ended }

// facts is what a manager finds out.
func (p *play) facts() Facts {
	facts := Facts{
		InfrastructureProvisioned: true, EndpointSet: true, Certificates: CertificatesPresent,
		Replicas: p.replicas, RollingUpdate: true, MaxSurge: p.surge, LeaveTimeout: 2 * time.Minute,
		Intent: p.intent, Initialized: p.intent != nil && p.intent.Initialized,
		APIServer:   health.APIServerSilent,
		Remediation: RemediationFacts{InProgress: p.inProgress, MinHealthyPeriod: time.Hour, Now: p.now},
	}
	if p.hasQuorum() && !p.apiDown {
		facts.APIServer, p.used = health.APIServerReady, true
	}
	if p.intent != nil && p.machine(p.intent.Name) == nil {
		facts.IntentWiped = p.wiped[p.intent.ProviderID]
	}
	var views []etcd.View
	for _, machine := range p.machines {
		if view := p.view(machine); view != nil {
			views = append(views, *view)
			if _, listed := view.Own(); listed {
				machine.memberID = view.Self
			}
		}
	}
	facts.Etcd, facts.NamelessFor = etcd.Judge(views), map[uint64]time.Duration{}
	for _, member := range facts.Etcd.Members {
		if _, known := p.namelessSince[member.ID]; !known && member.Name == "" {
			p.namelessSince[member.ID] = p.now
		}
		facts.NamelessFor[member.ID] = p.now.Sub(p.namelessSince[member.ID])
	}
	for _, machine := range p.machines {
		facts.Machines = append(facts.Machines, p.machineFacts(machine, facts.Etcd))
	}
	slices.SortFunc(facts.Machines, func(a, b MachineFacts) int { return cmp.Compare(a.Name, b.Name) })
	return facts
}

func (p *play) machineFacts(m *machinePlay, judged etcd.Health) MachineFacts {
	facts := MachineFacts{
		Name: m.name, Created: m.created, ProviderID: m.providerID, FailureDomain: m.domain, Provisioned: m.provisioned,
		Held: m.held, Configured: m.configured, Outdated: m.release != p.release, Marked: m.marked,
		Answers: p.answers(m), MemberID: m.memberID, Deleting: m.deleting, Hook: m.hook, HookWaitsFor: "the drain",
		Leaving: p.leaving[m.name], Unhealthy: m.unhealthy, Retries: m.retries,
		MemberProblem: "the etcd member does not answer",
	}
	if m.provisioned {
		facts.Addresses = []string{m.host}
	}
	if facts.Answers {
		facts.EtcdData = health.EtcdDataAbsent
		if _, has := p.nodes.Data(m.name); has && !m.starting {
			facts.EtcdData = health.EtcdDataPresent
		}
		if m.sick {
			facts.ComponentProblems = []string{"a component is broken"}
		}
	}
	if view := p.view(m); view != nil && view.Leader != 0 && !view.Learner {
		facts.MemberProblem = ""
	}
	if facts.MemberID != 0 && judged.Answers(facts.MemberID) || p.view(m) != nil && p.view(m).Leader != 0 {
		delete(p.silentSince, m.name)
		return facts
	}
	if _, known := p.silentSince[m.name]; !known {
		p.silentSince[m.name] = p.now
	}
	facts.EtcdSilentFor = max(p.now.Sub(p.silentSince[m.name]), time.Nanosecond)
	return facts
}

// restart is a manager that dies, and another that starts.
func (p *play) restart() {
	p.leaving, p.silentSince, p.namelessSince = map[string]bool{}, map[string]time.Time{}, map[uint64]time.Time{}
	p.note("the manager restarts")
}

// act is one pass. dies tells that the manager dies after its first write.
func (p *play) act(dies bool) Decision {
	decision := p.decide(p.facts())
	if decision.Action != Stable {
		p.note("%s %s %x: %s", decision.Action, decision.Machine, decision.MemberID, decision.Message)
	}
	before := p.hasQuorum()
	for name := range p.leaving {
		if m := p.machine(name); decision.Action == WaitForLeave && decision.Machine == name && m != nil {
			p.leave(m)
		} else {
			delete(p.leaving, name) // What has become unsafe is taken back.
		}
	}
	p.effect(decision, dies)
	if before && !p.hasQuorum() && p.used {
		p.offend("%s %s took the quorum", decision.Action, decision.Machine)
	}
	return decision
}

func (p *play) effect(decision Decision, dies bool) {
	m := p.machine(decision.Machine)
	switch decision.Action {
	case CreateMachine:
		p.serial++
		created := &machinePlay{
			name: fmt.Sprintf("cp-%03d", p.serial), created: p.now, release: p.release, held: len(p.machines) > 0,
			hook: HookEarly, domain: string(rune('a' + p.serial%3)), retries: p.inProgress,
		}
		p.machines = append(p.machines, created)
		if !dies {
			p.inProgress = nil
		}
	case HandOver:
		m.held = false
	case RecordBootstrapIntent:
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID}
	case RecordBootstrapped:
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID, Bootstrapped: true}
	case RecordInitialized:
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID, Bootstrapped: true, Initialized: true}
	case Bootstrap:
		if p.nodes.HasData(group) {
			p.offend("etcd is bootstrapped on %s beside data", m.name)
		}
		_ = p.nodes.Bootstrap(group, m.name, m.name, m.peerURL())
	case DeleteMachine:
		m.deleting = true
	case RemediateMachine:
		verdict := Verdicts(p.facts())[m.name]
		p.inProgress = &verdict.Record
		if !dies {
			m.deleting = true
		}
	case LeaveEtcd:
		p.leaving[m.name] = true
		p.leave(m)
	case RemoveMember:
		if cluster := p.cluster(); cluster != nil {
			_ = cluster.Remove(decision.MemberID)
		}
	case ReleaseHook:
		m.hook, m.out, m.unborn = HookGone, !p.isMember(m), p.intent == nil || !p.intent.Initialized
	default:
	}
	if dies {
		p.restart()
	}
}

// leave is one try of a node to leave etcd.
func (p *play) leave(m *machinePlay) {
	if m.parted || m.stopped || m.silent {
		return
	}
	if err := p.nodes.Leave(m.name); err == nil || errors.Is(err, etcdmodel.ErrNoData) {
		m.left = true
		delete(p.leaving, m.name)
		p.note("%s has left", m.name)
	}
}
