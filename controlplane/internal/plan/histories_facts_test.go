package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// view is what the node of a Machine says about etcd; nil when it says nothing, as
// learners do.
func (p *play) view(m *machinePlay) *etcd.View {
	data, has := p.nodes.Data(m.name)
	if !has || !p.answers(m) || m.stopped || m.halted || m.starting {
		return nil
	}
	member, found := data.Cluster.Member(data.ID)
	if !found || member.Learner {
		return nil
	}
	view := &etcd.View{Self: data.ID}
	list := data.Cluster.Members()
	if m.parted {
		list = m.list
	} else {
		view.Leader = data.Cluster.Leader()
	}
	for _, other := range list {
		view.Members = append(view.Members, etcd.Member{ID: other.ID, Hostname: other.Name, PeerURLs: []string{other.PeerURL}, Learner: other.Learner})
	}
	for _, alarm := range data.Cluster.Alarms() {
		view.Alarms = append(view.Alarms, etcd.Alarm{MemberID: alarm.Member, Alarm: alarm.Kind})
	}
	return view
}

func (p *play) answers(m *machinePlay) bool { return m.provisioned && !m.silent && !m.ended }

// facts is what a manager finds out.
func (p *play) facts() Facts {
	facts := Facts{
		InfrastructureProvisioned: true, EndpointSet: true, Certificates: CertificatesPresent,
		Replicas: p.replicas, RollingUpdate: true, MaxSurge: p.surge, LeaveTimeout: 2 * time.Minute,
		TemplateMissing: p.template, Intent: p.intent, Initialized: p.initialized || p.intent != nil && p.intent.Initialized, Override: p.override,
		APIServer:   health.APIServerSilent,
		Remediation: RemediationFacts{InProgress: p.inProgress, MinHealthyPeriod: time.Hour, Now: p.now},
	}
	if p.serves(false) {
		facts.APIServer = health.APIServerReady
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
	facts.Etcd = etcd.Judge(views)
	for _, machine := range p.machines {
		facts.Machines = append(facts.Machines, p.machineFacts(machine))
	}
	slices.SortFunc(facts.Machines, func(a, b MachineFacts) int { return cmp.Compare(a.Name, b.Name) })
	facts.NamelessFor = p.lasting(p.namelessSince, slices.DeleteFunc(slices.Clone(facts.Etcd.Members), func(m etcd.Member) bool { return m.Hostname != "" }))
	facts.OrphanFor = p.lasting(p.orphanSince, facts.Orphans())
	return facts
}

// since is how long ago a manager did something; very long ago when it never did.
func (p *play) since(when map[string]time.Time, m *machinePlay) time.Duration {
	at, known := when[m.name]
	if !known {
		return time.Hour * 1000
	}
	return p.now.Sub(at)
}

// lasting is for how long members have been seen that are seen now.
func (p *play) lasting(since map[uint64]time.Time, seen []etcd.Member) map[uint64]time.Duration {
	lasts := map[uint64]time.Duration{}
	for _, member := range seen {
		if _, known := since[member.ID]; !known {
			since[member.ID] = p.now
		}
		lasts[member.ID] = p.now.Sub(since[member.ID])
	}
	maps.DeleteFunc(since, func(id uint64, _ time.Time) bool { _, still := lasts[id]; return !still })
	return lasts
}

func (p *play) machineFacts(m *machinePlay) MachineFacts {
	facts := MachineFacts{
		Name: m.name, Created: m.created, ProviderID: m.providerID, FailureDomain: m.domain, Provisioned: m.provisioned,
		Held: m.held, Configured: m.configured, Outdated: m.release != p.release, Marked: m.marked,
		Answers: p.answers(m), MemberID: m.memberID, Deleting: m.deleting, Hook: m.hook, HookWaitsFor: "the drain",
		Leaving: p.leaving[m.name], LeaveStopped: p.since(p.takenBack, m) <= passTime,
		Bootstrapping: p.since(p.askedAt, m) < 10*time.Minute && !m.halted, EtcdStopped: m.halted, Unhealthy: m.unhealthy, Retries: m.retries,
		MemberProblem: "the etcd member does not answer",
	}
	switch {
	case !facts.Answers && m.provisioned:
		facts.Addresses = []string{m.host}
	case m.told:
		facts.Addresses = []string{m.peer}
	}
	if facts.Answers {
		facts.EtcdData = health.EtcdDataAbsent
		if _, has := p.nodes.Data(m.name); has && !m.starting {
			facts.EtcdData = health.EtcdDataPresent
		}
		if m.mute {
			facts.EtcdData = health.EtcdDataUnknown
		}
		if m.sick {
			facts.ComponentProblems = []string{"a component is broken"}
		}
	}
	if view := p.view(m); view != nil {
		facts.MemberProblem = health.MemberProblem(*view)
	}
	if facts.MemberProblem == "" {
		delete(p.silentSince, m.name)
		return facts
	}
	if _, known := p.silentSince[m.name]; !known {
		p.silentSince[m.name] = p.now
	}
	facts.EtcdSilentFor = max(p.now.Sub(p.silentSince[m.name]), time.Nanosecond)
	return facts
}
