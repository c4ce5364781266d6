package plan

import (
	"errors"
	"fmt"
	"slices"
	"time"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// restart is a manager that dies, and another that starts.
func (p *play) restart() {
	p.leaving, p.silentSince = map[string]bool{}, map[string]time.Time{}
	p.namelessSince, p.orphanSince = map[uint64]time.Time{}, map[uint64]time.Time{}
	p.askedAt, p.takenBack = map[string]time.Time{}, map[string]time.Time{}
	p.note("the manager restarts")
}

// act is one pass. dies tells that the manager dies after its first write; between is
// what happens after the facts were gathered, nil for nothing.
func (p *play) act(dies bool, between func()) Decision {
	facts := p.facts()
	p.used = p.used || p.serves(true)
	p.last = p.decide(facts)
	decision := p.last
	if decision.Action != Stable {
		p.note("%s %s %x: %s", decision.Action, decision.Machine, decision.MemberID, decision.Message)
	}
	if between != nil {
		p.known = p.answering()
		between()
	}
	before := p.hasQuorum()
	for name := range p.leaving {
		if m := p.machine(name); decision.Action == WaitForLeave && decision.Machine == name && m != nil {
			p.leave(m)
		} else {
			delete(p.leaving, name) // What has become unsafe is taken back.
			p.takenBack[name] = p.now
		}
	}
	p.effect(facts, decision, dies)
	if p.known == nil && before && !p.hasQuorum() && p.used {
		p.offend("%s %s took the quorum", decision.Action, decision.Machine)
	}
	p.known = nil
	p.initialized = p.initialized || p.intent != nil && p.intent.Initialized
	return decision
}

func (p *play) effect(facts Facts, decision Decision, dies bool) {
	m := p.machine(decision.Machine)
	switch decision.Action {
	case CreateMachine:
		p.create(dies)
	case HandOver:
		if p.joining() {
			p.offend("%s is handed over while another member learns", m.name)
		}
		m.held = false
	case RecordBootstrapIntent:
		if p.override != "" {
			p.override, p.used = "", false // A person has given up what was stored.
		}
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID}
	case RecordBootstrapped:
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID, Bootstrapped: true}
	case RecordInitialized:
		p.intent = &controlplanev1.BootstrapIntent{Name: m.name, ProviderID: m.providerID, Bootstrapped: true, Initialized: true}
	case Bootstrap:
		p.bootstrap(m)
	case DeleteMachine:
		m.deleting, m.least = true, int(p.replicas)-1
	case RemediateMachine:
		record := Verdicts(facts)[m.name].Record
		p.inProgress = &record
		p.excuse()
		if !dies {
			m.deleting = true
		}
	case RestartNode:
		p.reboot(m)
	case LeaveEtcd:
		p.leaving[m.name] = true
		p.leave(m)
	case RemoveMember:
		p.remove(decision.MemberID)
	case ReleaseHook:
		if p.used && p.isMember(m) {
			p.offend("%s is let go and has a member", m.name)
		}
		p.dropHook(m, decision.Left)
	default:
	}
	if dies {
		p.restart()
	}
}

// dropHook lets a Machine go; out tells that etcd is known to be rid of it.
func (p *play) dropHook(m *machinePlay, out bool) {
	m.hook, m.out, m.unborn = HookGone, out, p.intent == nil || !p.intent.Initialized
}

func (p *play) create(dies bool) {
	p.serial++
	p.machines = append(p.machines, &machinePlay{
		name: fmt.Sprintf("cp-%03d", p.serial), created: p.now, release: p.release, held: len(p.machines) > 0,
		hook: HookEarly, domain: string(rune('a' + p.serial%3)), retries: p.inProgress,
	})
	if !dies {
		p.inProgress = nil
	}
}

// bootstrap asks a node to bootstrap etcd. The call is an offence also where the node
// refuses it: it stops etcd there.
func (p *play) bootstrap(m *machinePlay) {
	beside := p.lives() || slices.ContainsFunc(slices.Concat(p.machines, p.lost), func(other *machinePlay) bool { return other != m && other.preparing })
	switch {
	case beside:
		p.offend("etcd is bootstrapped on %s beside data", m.name)
	case p.used:
		p.offend("etcd is bootstrapped anew on %s, and no person has given up what was stored", m.name)
	}
	if !p.answers(m) {
		return
	}
	p.askedAt[m.name] = p.now
	// A call stops what the last one has started, and finds its data there at times:
	// Talos gives the bootstrap up then, and leaves etcd stopped.
	if m.preparing && p.chance(2) {
		m.preparing, m.halted = false, true
		_ = p.nodes.Bootstrap(group, m.name, m.name, m.peerURL())
		p.nodes.Stop(m.name)
		return
	}
	p.interrupt(m)
	m.preparing, m.left = true, false
}

// remove removes a member through another one.
func (p *play) remove(id uint64) {
	cluster := p.cluster()
	if cluster == nil {
		return
	}
	least := 0
	for _, m := range p.machines {
		data, has := p.nodes.Data(m.name)
		switch {
		case !has || data.ID != id:
		case m.deleting:
			least = m.least
		default:
			p.offend("the member of %s is removed, which stays", m.name)
		}
	}
	_ = p.change(etcdmodel.CallRemove, "", cluster, id, least, func() error { return cluster.Remove(id) })
}

// leave is one try of a node to leave etcd. Learners cannot.
func (p *play) leave(m *machinePlay) {
	if m.parted || m.stopped || m.silent {
		return
	}
	data, has := p.nodes.Data(m.name)
	if !has {
		return
	}
	if member, found := data.Cluster.Member(data.ID); found && member.Learner {
		return
	}
	if !m.deleting {
		p.offend("%s is asked to leave, which stays", m.name)
	}
	err := p.change(etcdmodel.CallLeave, m.name, data.Cluster, data.ID, m.least, func() error { return p.nodes.Leave(m.name) })
	if err == nil || errors.Is(err, etcdmodel.ErrNoData) {
		m.left = true
		delete(p.leaving, m.name)
		p.note("%s has left", m.name)
	}
}

// change has the judge of the model look at a change of the membership. What broke
// after the facts were gathered is not the decision's fault: it counts as answering.
func (p *play) change(call etcdmodel.Call, node string, cluster *etcdmodel.Cluster, id uint64, least int, do func() error) error {
	judge := etcdmodel.NewJudge(&p.nodes)
	judge.Least = least
	before := p.count(cluster)
	err := judge.Change(call, node, cluster, id, do)
	act := judge.Acts()[0]
	act.Before, act.After = before, p.count(cluster)
	if offence := act.Offence(); offence != nil {
		p.offend("%v", offence)
	}
	return err
}

// count counts the voters, and those of them that answer, as far as is known.
func (p *play) count(cluster *etcdmodel.Cluster) etcdmodel.Count {
	count := cluster.Count()
	if p.known == nil {
		return count
	}
	count.Answering = 0
	for _, member := range cluster.Members() {
		if !member.Learner && p.known[member.ID] {
			count.Answering++
		}
	}
	return count
}

// answering are the members that answer now.
func (p *play) answering() map[uint64]bool {
	found := map[uint64]bool{}
	if cluster := p.cluster(); cluster != nil {
		for _, member := range cluster.Members() {
			found[member.ID] = member.Up
		}
	}
	return found
}

// excuse allows for one voter less: somebody else than the manager has taken one.
func (p *play) excuse() {
	for _, m := range p.machines {
		m.least--
	}
}
