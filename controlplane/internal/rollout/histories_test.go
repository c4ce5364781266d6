package rollout

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/test/etcdmodel"
)

var histories = flag.Uint64("histories", 400, "how many random histories TestHistories runs")

// event is one thing that happens in a history: what kind, and which of the
// Machines it hits.
type event struct {
	kind string
	pick int
}

// kinds are what may happen, as often as they are listed: what users do, what
// breaks, what heals, and passes of managers, of which some die.
func kinds() []string {
	return []string{
		"delete in a join", "part of a join", "delete in a join", "part of a join",
		"pass", "pass", "pass", "pass", "pass", "pass", "pass", "pass", "pass", "dying pass", "restart",
		"scale", "scale", "surge", "version", "delete", "delete in a join", "mark", "delete two",
		"silence", "part", "part of a join", "stop", "wipe", "sicken", "API down", "API up",
		"heal", "heal", "heal", "flag", "unflag", "lose intent status",
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

// outcome is how a history ended.
type outcome struct {
	offences []string
	// stuck says what was decided last when the control plane did not become as
	// wanted after all faults had ended.
	stuck string
	trace []string
}

func (o outcome) bad() bool { return len(o.offences) > 0 || o.stuck != "" }

// run plays a history, then ends all faults and lets the control plane settle.
func run(seed uint64, events []event, decide func(Facts) Decision) outcome {
	p := newPlay(rand.New(rand.NewPCG(seed, 1)), decide)
	for _, event := range events {
		p.note("-- %s %d", event.kind, event.pick)
		p.happen(event)
		p.world()
	}
	p.note("-- the faults end")
	p.apiDown = false
	for _, machine := range p.machines {
		p.heal(machine)
		machine.unhealthy = false
	}
	var last Decision
	for range 400 {
		last = p.act(false)
		p.world()
		if last.Action == Stable && p.settled() {
			return outcome{offences: p.offences, trace: p.trace}
		}
		p.check()
	}

	return outcome{offences: p.offences, stuck: fmt.Sprintf("%s %s: %s", last.Action, last.Machine, last.Message), trace: p.trace}
}

// check plays a MachineHealthCheck: it gives up nodes that have lost their data.
func (p *play) check() {
	for _, machine := range p.machines {
		if _, has := p.nodes.Data(machine.name); !has && machine.left && !machine.deleting {
			machine.unhealthy = true
		}
	}
}

// settled tells that the control plane is as wanted.
func (p *play) settled() bool {
	cluster := p.cluster()
	if cluster == nil || len(p.machines) != int(p.replicas) || len(cluster.Members()) != len(p.machines) {
		return false
	}

	return !slices.ContainsFunc(p.machines, func(m *machinePlay) bool { return m.deleting || m.release != p.release })
}

// happen is one event.
func (p *play) happen(event event) {
	switch event.kind {
	case "pass":
		p.act(false)
		return
	case "dying pass":
		p.act(true)
		return
	case "restart":
		p.restart()
		return
	case "scale":
		p.replicas = []int32{1, 3, 3, 5}[event.pick%4]
	case "surge":
		p.surge = int32(event.pick % 2)
	case "version":
		p.release++
	case "API down", "API up":
		p.apiDown = event.kind == "API down"
	}
	if p.replicas < 3 {
		p.surge = 1 // Admission refuses another.
	}
	if len(p.machines) == 0 {
		return
	}
	// Most joins are over before anything happens, so some events wait for one, and
	// hit those who vote meanwhile.
	if strings.HasSuffix(event.kind, " a join") {
		if voting := p.voting(); p.joining() && len(voting) > 0 {
			p.hit(event, voting[event.pick%len(voting)])
		}
		return
	}
	p.hit(event, p.machines[event.pick%len(p.machines)])
	if event.kind == "delete two" {
		p.hit(event, p.machines[(event.pick+1)%len(p.machines)])
	}
}

// joining tells that etcd has a learner.
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
func (p *play) hit(event event, m *machinePlay) {
	switch event.kind {
	case "delete", "delete two", "delete in a join":
		m.deleting = true
	case "mark":
		m.marked = true
	case "silence":
		m.silent = true
	case "part", "part of a join":
		p.part(m)
	case "stop":
		m.stopped = true
		p.nodes.Stop(m.name)
	case "wipe":
		p.wipe(m)
	case "sicken":
		m.sick = true
	case "heal":
		p.heal(m)
	case "flag":
		m.unhealthy = m.silent || m.parted || m.stopped || m.sick
	case "unflag":
		m.unhealthy = false
	case "lose intent status":
		// The status of a TalosControlPlane holds nothing that is needed.
	}
}

func (p *play) part(m *machinePlay) {
	if data, has := p.nodes.Data(m.name); has && !m.parted {
		m.list = data.Cluster.Members()
		p.nodes.Silence(m.name)
	}
	m.parted = true
}

// wipe loses the data of a node, if the others are a majority without it: no
// provider can bring back what is nowhere.
func (p *play) wipe(m *machinePlay) {
	data, has := p.nodes.Data(m.name)
	if !has || !data.Cluster.HasQuorum() || m.parted {
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

func (p *play) heal(m *machinePlay) {
	m.silent, m.parted, m.stopped, m.sick = false, false, false, false
	_ = p.nodes.Start(m.name, m.name)
}

// shrink takes events out of a bad history while it stays bad.
func shrink(seed uint64, events []event, decide func(Facts) Decision) []event {
	for size := len(events) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(events); {
			shorter := slices.Delete(slices.Clone(events), from, from+size)
			if run(seed, shorter, decide).bad() {
				events = shorter
			} else {
				from += size
			}
		}
	}

	return events
}

// worst is the first bad history, shrunk; empty when all are good.
func worst(count uint64, decide func(Facts) Decision) string {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		found = count
	)
	next := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := range next {
				if run(seed, generate(seed), decide).bad() {
					mu.Lock()
					found = min(found, seed)
					mu.Unlock()
				}
			}
		})
	}
	for seed := range count {
		mu.Lock()
		done := found < count
		mu.Unlock()
		if done {
			break
		}
		next <- seed
	}
	close(next)
	group.Wait()
	if found == count {
		return ""
	}
	events := shrink(found, generate(found), decide)
	bad := run(found, events, decide)

	return fmt.Sprintf("seed %d: %v %s\n%s", found, bad.offences, bad.stuck, strings.Join(slices.Compact(bad.trace), "\n"))
}

// TestHistories: no act breaks the quorum, etcd is bootstrapped once, and the
// control plane becomes as wanted once the faults end.
func TestHistories(t *testing.T) {
	if found := worst(*histories, Decide); found != "" {
		t.Fatal(found)
	}
}

// TestHistoriesCatchWrongDecisions: the histories are worth something.
func TestHistoriesCatchWrongDecisions(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"a learner counts as a voter": func(f *Facts) {
			f.Etcd.Members = slices.Clone(f.Etcd.Members)
			for i := range f.Etcd.Members {
				if f.Etcd.Members[i].Learner {
					f.Etcd.Members[i].Learner = false
					f.Etcd.Answering = append(slices.Clone(f.Etcd.Answering), f.Etcd.Members[i].ID)
				}
			}
		},
		"a silent node counts": func(f *Facts) {
			f.Etcd.Answering = nil
			for _, member := range f.Etcd.Members {
				f.Etcd.Answering = append(f.Etcd.Answering, member.ID)
			}
		},
		"the intent is ignored": func(f *Facts) { f.Intent, f.Initialized = nil, false },
		"two changes at once":   twoAtOnce,
		"a name instead of an ID": func(f *Facts) {
			for i, machine := range f.Machines {
				f.Machines[i].MemberID, f.Machines[i].Addresses = 0, nil
				for _, member := range f.Etcd.Members {
					if strings.HasPrefix(member.Name, machine.Name[:len(machine.Name)-1]) {
						f.Machines[i].MemberID = member.ID
					}
				}
			}
		},
		"unknown is taken as absent": func(f *Facts) {
			for i := range f.Machines {
				if f.Machines[i].EtcdData == health.EtcdDataUnknown {
					f.Machines[i].EtcdData, f.Machines[i].Answers, f.Machines[i].Provisioned = health.EtcdDataAbsent, true, true
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(worst(10000, func(facts Facts) Decision {
				change(&facts)
				return Decide(facts)
			})).NotTo(BeEmpty())
		})
	}
}

// twoAtOnce takes every other voter for one that stays and is well.
func twoAtOnce(f *Facts) {
	for i := range f.Machines {
		f.Machines[i].MemberProblem, f.Machines[i].ComponentProblems = "", nil
		f.Machines[i].Answers, f.Machines[i].Provisioned, f.Machines[i].Deleting = true, true, f.Machines[i].Deleting && f.Machines[i].Hook == HookDue
	}
	f.Etcd.Problems = nil
	f.Etcd.Members = slices.Clone(f.Etcd.Members)
	for _, member := range f.Etcd.Members {
		if !f.Etcd.Answers(member.ID) {
			f.Etcd.Answering = append(slices.Clone(f.Etcd.Answering), member.ID)
		}
	}
}
