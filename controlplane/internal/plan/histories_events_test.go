package plan

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// event is one thing that happens in a history: what kind, and which of the
// Machines it hits.
type event struct {
	kind string
	pick int
}

// kinds are what may happen, as often as they are listed: what users do, what
// breaks, what heals, and passes of managers, of which some die, and some see
// something break between what they look at and what they do.
func kinds() []string {
	return []string{
		"pass", "pass", "pass", "pass", "pass", "pass", "pass", "pass", "pass", "dying pass", "restart",
		"pass into a silence", "pass into a part", "pass into a stop",
		"scale", "scale", "surge", "version", "delete", "mark", "delete two", "condemn",
		"delete in a join", "delete in a join", "delete in a join", "part in a join", "part in a join", "part in a join",
		"silence", "part", "part", "stop", "wipe", "sicken", "mute", "corrupt", "reboot", "disaster", "API down", "API up",
		"heal", "heal", "heal", "heal", "flag", "unflag", "the template goes", "the template comes", "the template comes",
		"lose the status", "lose the intent", "a person looks",
	}
}

func generate(seed uint64) []event {
	random := rand.New(rand.NewPCG(seed, 0))
	var events []event
	some := func(count int) {
		for range count {
			events = append(events, event{kind: kinds()[random.IntN(len(kinds()))], pick: random.IntN(60)})
		}
	}
	some(random.IntN(20))
	for range 20 {
		events = append(events, event{kind: "pass"})
	}
	some(200)

	return events
}

// happen is one event.
func (p *play) happen(event event) {
	switch event.kind {
	case "pass", "dying pass":
		p.act(event.kind == "dying pass", nil)
		return
	case "restart":
		p.restart()
		return
	case "scale":
		p.replicas = []int32{1, 3, 3, 3, 5}[event.pick%5]
		for _, m := range p.machines {
			m.least = min(m.least, int(p.replicas)-1)
		}
	case "surge":
		p.surge = int32(event.pick % 2)
	case "version":
		p.release++
	case "API down", "API up":
		p.apiDown = event.kind == "API down"
	case "the template goes":
		p.template = "the infrastructure machine template is not there"
	case "the template comes":
		p.template = ""
	case "lose the status": // One of the two is always there.
		p.initialized = p.initialized && (p.intent == nil || !p.intent.Initialized)
	case "lose the intent":
		if p.initialized {
			p.intent = nil
		}
	case "a person looks":
		p.person()
	case "disaster":
		if event.pick%30 == 0 {
			p.disaster()
		}
	}
	if p.replicas < 3 {
		p.surge = 1 // Admission refuses another.
	}
	p.choose(event)
}

// choose has an event hit the Machine that it picks.
func (p *play) choose(event event) {
	// Most joins are over before anything happens, so some events wait for one, and
	// hit those who vote meanwhile.
	among := p.machines
	kind, inJoin := strings.CutSuffix(event.kind, " in a join")
	if inJoin {
		among = p.voting()
		if !p.joining() {
			return
		}
	}
	if kind, into := strings.CutPrefix(kind, "pass into a "); into {
		p.act(false, func() { p.hit(kind, event.pick, p.machines) })
		return
	}
	p.hit(kind, event.pick, among)
	if kind == "delete two" {
		p.hit(kind, event.pick+1, among)
	}
}

// joining reports whether etcd has a learner.
func (p *play) joining() bool {
	cluster := p.cluster()

	return cluster != nil && slices.ContainsFunc(cluster.Members(), func(member etcdmodel.Member) bool { return member.Learner })
}

// voting are the Machines whose nodes have data of etcd, and do not learn.
func (p *play) voting() []*machinePlay {
	return slices.DeleteFunc(slices.Clone(p.machines), func(m *machinePlay) bool {
		data, has := p.nodes.Data(m.name)
		return !has || !slices.ContainsFunc(data.Cluster.Members(), func(member etcdmodel.Member) bool {
			return member.ID == data.ID && !member.Learner
		})
	})
}

// hit is one event that is about a Machine.
func (p *play) hit(kind string, pick int, among []*machinePlay) {
	if len(among) == 0 {
		return
	}
	m := among[pick%len(among)]
	switch kind {
	case "delete", "delete two":
		m.deleting = true
	case "mark":
		m.marked = true
	case "silence":
		m.silent = true
	case "mute":
		m.mute = true
	case "part":
		p.part(m)
	case "stop":
		p.stop(m)
	case "reboot":
		p.reboot(m)
	case "wipe":
		p.wipe(m)
	case "corrupt":
		p.corrupt(m)
	case "sicken":
		m.sick = true
	case "heal":
		p.heal(m)
		return
	case "flag":
		m.unhealthy = m.silent || m.parted || m.stopped || m.sick
	case "condemn":
		m.unhealthy = true
	case "unflag":
		m.unhealthy = false
		return
	default:
		return
	}
	p.excuse()
}

func (p *play) part(m *machinePlay) {
	if data, has := p.nodes.Data(m.name); has && !m.parted {
		m.list = data.Cluster.Members()
		p.nodes.Silence(m.name)
	}
	m.parted = true
}

func (p *play) stop(m *machinePlay) {
	m.stopped = true
	p.nodes.Stop(m.name)
	p.interrupt(m)
}

// reboot ends what the node was about to do.
func (p *play) reboot(m *machinePlay) {
	if m.ended {
		return
	}
	if !m.parted {
		p.nodes.Stop(m.name)
	}
	p.interrupt(m)
	m.preparing, m.halted = false, false
}

// interrupt is the end of a join: Talos promotes a member only in the start that has
// added it, and a node that was listed and had no data yet finds its own address
// taken (Talos v1.13.9, internal/app/machined/pkg/system/services/etcd.go).
func (p *play) interrupt(m *machinePlay) {
	data, has := p.nodes.Data(m.name)
	if !has {
		return
	}
	member, found := data.Cluster.Member(data.ID)
	m.late = found && member.Learner
	if m.starting {
		p.nodes.Wipe(m.name)
		m.starting = false
	}
}

func (p *play) corrupt(m *machinePlay) {
	if data, has := p.nodes.Data(m.name); has && !m.starting {
		_ = data.Cluster.Raise(etcdmodel.Alarm{Member: data.ID, Kind: etcdmodel.Corrupt})
	}
}

// disarm is what a person does about alarms.
func (p *play) disarm() {
	if cluster := p.cluster(); cluster != nil {
		for _, alarm := range cluster.Alarms() {
			_ = cluster.Disarm(alarm.Member)
		}
	}
}

// wipe loses the data of a node, if the others are a majority without it: no
// provider can bring back what is nowhere.
func (p *play) wipe(m *machinePlay) {
	data, has := p.nodes.Data(m.name)
	if !has || !data.Cluster.HasQuorum() || m.parted || slices.ContainsFunc(p.lost, p.isMember) {
		return
	}
	up, voters := 0, 0
	for _, member := range data.Cluster.Members() {
		if member.Learner {
			return
		}
		voters++
		if member.Up && member.ID != data.ID {
			up++
		}
	}
	if up > voters/2 {
		p.nodes.Wipe(m.name)
		m.left = true // Found without a configuration, it is not configured again.
	}
}

// disaster loses the data of all nodes.
func (p *play) disaster() {
	for _, m := range slices.Concat(p.machines, p.lost) {
		p.nodes.Wipe(m.name)
		m.starting, m.preparing, m.left = false, false, false
	}
}

func (p *play) heal(m *machinePlay) {
	if m.ended {
		return
	}
	m.silent, m.mute, m.parted, m.stopped, m.sick = false, false, false, false, false
	p.start(m)
	p.disarm()
}

// attend plays a MachineHealthCheck, and a person who looks now and then: Machines are
// given up whose nodes have lost their data or cannot join.
func (p *play) attend() {
	p.disarm()
	for _, machine := range p.machines {
		_, has := p.nodes.Data(machine.name)
		if !machine.deleting && (!has && machine.left || machine.barred && p.chance(10) || machine.late && p.learns(machine)) {
			machine.unhealthy = true
		}
	}
	for _, machine := range p.machines {
		if machine.halted && machine.deleting && p.chance(4) {
			p.note("a person restarts %s", machine.name)
			p.reboot(machine)
		}
	}
	if p.chance(4) {
		p.person()
	}
}

// learns reports whether the member of a Machine is a learner.
func (p *play) learns(m *machinePlay) bool {
	data, has := p.nodes.Data(m.name)
	if !has {
		return false
	}
	member, found := data.Cluster.Member(data.ID)
	return found && member.Learner
}

// person does what only a person may. Members of nodes without a Machine that have
// voted before anybody noticed are removed where the Machines' own are no majority.
// Once no data is left anywhere, Machines go that wait for a quorum, and a person says
// where a new cluster may begin.
func (p *play) person() {
	if p.lives() {
		p.removeLost()
		return
	}
	staying := slices.DeleteFunc(slices.Clone(p.machines), func(m *machinePlay) bool { return m.deleting })
	switch p.last.Action {
	case WaitForMachineDeletion:
		if m := p.machine(p.last.Machine); m != nil && m.deleting && m.hook == HookDue {
			p.note("a person lets %s go", m.name)
			p.dropHook(m, false)
		}
	case WaitForOverride:
		if len(staying) > 0 {
			p.override = staying[0].name
			p.note("a person gives the data up, for %s", p.override)
		}
	default:
	}
}

func (p *play) removeLost() {
	cluster := p.cluster()
	if cluster == nil || p.facts().Etcd.HasQuorum() {
		return
	}
	for _, m := range p.lost {
		if data, has := p.nodes.Data(m.name); has && data.Cluster == cluster && !p.learns(m) {
			p.note("a person removes the member of %s", m.name)
			_ = cluster.Remove(data.ID)
		}
	}
}

// settled reports whether the control plane is as wanted.
func (p *play) settled() bool {
	cluster := p.cluster()
	if cluster == nil || len(p.machines) != int(p.replicas) || len(cluster.Members()) != len(p.machines) {
		return false
	}

	return !slices.ContainsFunc(p.machines, func(m *machinePlay) bool { return m.deleting || m.release != p.release })
}
