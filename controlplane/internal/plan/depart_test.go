package plan

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// departing deletes the Machine of that index of three, up to our hook.
func departing(index int, changes ...func(*MachineFacts)) func(*Facts) {
	return func(facts *Facts) {
		machine := &facts.Machines[index]
		machine.Deleting, machine.Hook, facts.LeaveTimeout = true, HookDue, 2*time.Minute
		for _, change := range changes {
			change(machine)
		}
	}
}

// silentFor makes a node silent whose etcd does not answer the others either.
func silentFor(index int, duration time.Duration) func(*Facts) {
	return func(facts *Facts) {
		machine := &facts.Machines[index]
		machine.Answers, machine.EtcdData, machine.MemberProblem, machine.EtcdSilentFor = false, health.EtcdDataUnknown, "silent", duration
		facts.Etcd.Answering = slices.DeleteFunc(slices.Clone(facts.Etcd.Answering), func(id uint64) bool { return id == machine.MemberID })
	}
}

// learning makes the member of a Machine of three a learner.
func learning(index int) func(*Facts) {
	return func(facts *Facts) {
		facts.Etcd.Members[index].Learner = true
		facts.Machines[index].MemberProblem = "a learner"
		facts.Etcd.Answering = slices.DeleteFunc(slices.Clone(facts.Etcd.Answering), func(id uint64) bool { return id == facts.Machines[index].MemberID })
	}
}

func early(machine *MachineFacts) { machine.Hook, machine.HookWaitsFor = HookEarly, "the drain" }

func leaving(machine *MachineFacts) { machine.Leaving = true }

// TestDepartures is about Machines that are being deleted, each with a member.
func TestDepartures(t *testing.T) {
	const over = 2 * time.Minute
	for name, tc := range map[string]struct {
		facts   Facts
		want    Action
		machine string
		member  uint64
		says    string
	}{
		"asks a node that answers to leave":               {three(departing(1)), LeaveEtcd, "cp-b", 2, ""},
		"waits while it leaves":                           {three(departing(1, leaving)), WaitForLeave, "cp-b", 0, ""},
		"waits for what comes before our hook":            {three(departing(1, early)), WaitForMachineDeletion, "cp-b", 0, "the drain"},
		"waits for a node that is silent":                 {three(departing(1), silentFor(1, over-time.Second)), WaitForMachineDeletion, "cp-b", 0, "leaveTimeoutSeconds"},
		"removes the member of one that stays silent":     {three(departing(1), silentFor(1, over)), RemoveMember, "cp-b", 2, ""},
		"waits for one that answers and does not follow":  {three(departing(1, func(m *MachineFacts) { m.EtcdSilentFor = time.Second })), WaitForMachineDeletion, "cp-b", 0, ""},
		"waits for one that others do not follow":         {three(departing(1), func(f *Facts) { f.Etcd.Answering = []uint64{1, 3} }), WaitForMachineDeletion, "cp-b", 0, ""},
		"removes a learner at once":                       {three(departing(1), learning(1)), RemoveMember, "cp-b", 2, "a learner"},
		"removes a silent learner at once":                {three(departing(1), learning(1), silentFor(1, time.Second)), RemoveMember, "cp-b", 2, ""},
		"removes no learner of a Machine that is drained": {three(departing(1, early), learning(1)), WaitForMachineDeletion, "cp-b", 0, ""},
		"waits without a majority": {three(departing(1), silentFor(0, over), silentFor(2, over)), WaitForMachineDeletion, "cp-b", 0,
			"no majority"},
		"waits when a majority hangs on it": {three(departing(1), silentFor(2, over)), WaitForMachineDeletion, "cp-b", 0, "no majority"},
		"waits while another learns":        {three(departing(1), learning(2)), WaitForMachineDeletion, "cp-b", 0, "is a learner"},
		"waits while data is corrupt": {three(departing(1), func(f *Facts) { f.Etcd.Alarms = []etcd.Alarm{{MemberID: 3, Alarm: etcd.AlarmCorrupt}} }),
			WaitForMachineDeletion, "cp-b", 0, "CORRUPT"},
		"waits for one that never told which member is its": {three(departing(1, func(m *MachineFacts) { m.MemberID, m.Answers = 0, false }), silentFor(1, over)),
			WaitForMachineDeletion, "cp-b", 0, "nobody knows"},
		"lets go what has no member": {three(departing(1), func(f *Facts) {
			f.Etcd.Members, f.Etcd.Answering = f.Etcd.Members[:1], []uint64{1}
			f.Machines = f.Machines[:2]
		}),
			ReleaseHook, "cp-b", 0, ""},
		"lets go what never had a configuration": {three(departing(1, func(m *MachineFacts) { m.Configured, m.MemberID = false, 0 })), ReleaseHook, "cp-b", 0, ""},
		"the first that can go":                  {three(departing(0, early), departing(2)), LeaveEtcd, "cp-c", 3, ""},
		"replaces a broken one while another waits": {three(departing(0), func(f *Facts) { f.Machines[1].Unhealthy = true }, silentFor(1, over)),
			RemediateMachine, "cp-b", 0, ""},
		"replaces none before the cluster was used": {three(departing(0, early), func(f *Facts) {
			f.Initialized, f.APIServer, f.Intent.Initialized, f.Machines[1].Unhealthy = false, health.APIServerSilent, false, true
			f.Machines = f.Machines[:2]
			f.Machines[0].Held = true
		}), WaitForMachineDeletion, "cp-a", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Machine).To(Equal(tc.machine))
			g.Expect(decision.MemberID).To(Equal(tc.member))
			g.Expect(decision.Message).To(ContainSubstring(tc.says))
		})
	}
}

// TestOneMemberLeavesAtATime: what the others list is not what is so while a node leaves,
// nor just after it was told not to.
func TestOneMemberLeavesAtATime(t *testing.T) {
	takenBack := func(machine *MachineFacts) { machine.LeaveStopped = true }
	isOut := func(facts *Facts) { facts.Etcd.Members, facts.Etcd.Answering = facts.Etcd.Members[:2], []uint64{1, 2} }
	for name, tc := range map[string]struct {
		facts   Facts
		want    Action
		machine string
	}{
		"another is due":                          {three(departing(0), departing(2, leaving)), WaitForLeave, "cp-c"},
		"another is silent for long":              {three(departing(0), departing(2, leaving), silentFor(0, time.Hour)), WaitForMachineDeletion, "cp-a"},
		"another is let go and has come back":     {three(departing(0, func(m *MachineFacts) { m.Hook = HookGone }), departing(2, leaving)), WaitForLeave, "cp-c"},
		"another belongs to no Machine":           {three(departing(2, leaving), learns), WaitForMachineDeletion, "cp-c"},
		"it was taken back":                       {three(departing(2, takenBack)), WaitForMachineDeletion, "cp-c"},
		"it was taken back, and another is due":   {three(departing(0), departing(2, takenBack)), WaitForMachineDeletion, "cp-a"},
		"it was taken back, and an orphan learns": {three(departing(2, takenBack), learns), WaitForMachineDeletion, "cp-c"},
		"it is out":            {three(departing(0, early), departing(2, leaving), isOut), ReleaseHook, "cp-c"},
		"it is out and let go": {three(departing(0), departing(2, leaving, func(m *MachineFacts) { m.Hook = HookGone }), isOut), LeaveEtcd, "cp-a"},
	} {
		t.Run(name, func(t *testing.T) {
			decision := Decide(tc.facts)
			g := NewWithT(t)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Machine).To(Equal(tc.machine))
		})
	}
	NewWithT(t).Expect(three(departing(0)).DepartureMessage("cp-b")).To(Equal("Machine cp-b is being deleted"), "nothing is known of what it waits for")
	says := three(departing(0), departing(2, leaving)).DepartureMessage("cp-a")
	NewWithT(t).Expect(says).To(ContainSubstring("the etcd member of Machine cp-c"))
}

// TestDeparturesBeforeTheClusterIsUsed: nobody has stored anything.
func TestDeparturesBeforeTheClusterIsUsed(t *testing.T) {
	unused := func(changes ...func(*Facts)) Facts {
		facts := three(departing(1), func(f *Facts) { f.Initialized, f.APIServer, f.Intent = false, health.APIServerSilent, nil })
		for _, change := range changes {
			change(&facts)
		}

		return facts
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"its node answers":                     {unused(), ReleaseHook},
		"its node is silent for a while":       {unused(silentFor(1, time.Minute)), WaitForMachineDeletion},
		"its node is silent for long":          {unused(silentFor(1, 2*time.Minute)), ReleaseHook},
		"nobody has asked what answers":        {unused(func(f *Facts) { f.APIServer = health.APIServerUnknown }), ReleaseHook},
		"not while something answers":          {unused(func(f *Facts) { f.APIServer = health.APIServerNotReady }), WaitForMachineDeletion},
		"not while somebody untrusted answers": {unused(func(f *Facts) { f.APIServer = health.APIServerUntrusted }), WaitForMachineDeletion},
		"no orphan is removed":                 {unused(learns, silentFor(1, time.Minute)), WaitForMachineDeletion},
		"no member that is back is removed":    {unused(func(f *Facts) { f.Machines[1].Hook = HookGone }), WaitForMachineDeletion},
	} {
		t.Run(name, func(t *testing.T) {
			decision := Decide(tc.facts)
			NewWithT(t).Expect(decision.Action).To(Equal(tc.want), decision.Message)
			NewWithT(t).Expect(decision.Left).To(BeFalse(), "etcd has its member")
		})
	}
}

// votes makes the member of nobody a voter, known for a while.
func votes(known time.Duration) func(*Facts) {
	return func(facts *Facts) {
		learns(facts)
		facts.Etcd.Members[3].Learner = false
		facts.LeaveTimeout, facts.OrphanFor = 2*time.Minute, map[uint64]time.Duration{9: known}
	}
}

// TestAVoterOfNobodyIsGivenTime: its Machine may be missing from the list for a while.
func TestAVoterOfNobodyIsGivenTime(t *testing.T) {
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"just seen":                 {three(votes(0)), WaitForEtcd},
		"not yet":                   {three(votes(2*time.Minute - time.Second)), WaitForEtcd},
		"long enough":               {three(votes(2 * time.Minute)), RemoveMember},
		"nobody has seen it before": {three(votes(0), func(f *Facts) { f.OrphanFor = nil }), WaitForEtcd},
		"a learner is not":          {three(votes(0), func(f *Facts) { f.Etcd.Members[3].Learner = true }), RemoveMember},
		"nobody joins meanwhile":    {three(votes(0), func(f *Facts) { f.Replicas = 4 }), WaitForPreflight},
		"not without a majority":    {three(votes(time.Hour), silentFor(1, time.Hour)), WaitForMachine},
		"not before the cluster is used": {three(votes(time.Hour), func(f *Facts) {
			f.Initialized, f.Intent.Initialized, f.APIServer = false, false, health.APIServerSilent
		}), WaitForAPIServer},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(tc.facts.Orphans()).To(ConsistOf(HaveField("ID", BeEquivalentTo(9))))
			if tc.want == WaitForPreflight {
				g.Expect(decision.Message).To(ContainSubstring("belongs to no Machine"))
			}
			if tc.want == WaitForEtcd || tc.want == RemoveMember {
				g.Expect(decision.MemberID).To(BeEquivalentTo(9))
				g.Expect(decision.Message).To(ContainSubstring("belongs to no Machine"))
			}
		})
	}
}

// TestNothingWellIsDeletedWithoutAReplacement: a Machine that is well goes only when
// another can be made.
func TestNothingWellIsDeletedWithoutAReplacement(t *testing.T) {
	missing := func(f *Facts) { f.TemplateMissing = "the template does not exist" }
	noSurge := func(f *Facts) { f.MaxSurge = 0 }
	sick := func(f *Facts) { f.Machines[1].Unhealthy = true }
	soon := func(f *Facts) { f.VersionPending = true }
	for name, tc := range map[string]struct {
		facts    Facts
		want     Action
		replaces bool
		says     string
	}{
		"a rollout that deletes first":            {three(outdated, noSurge), DeleteMachine, true, ""},
		"without a template":                      {three(outdated, noSurge, missing), WaitForPreflight, false, "does not exist"},
		"a rollout that makes one first":          {three(outdated, missing), WaitForPreflight, false, "does not exist"},
		"a held one that is outdated":             {three(outdated, fourth(func(m *MachineFacts) { m.Held, m.Configured, m.Outdated = true, false, true }), func(f *Facts) { f.Replicas = 4 }), DeleteMachine, false, ""},
		"a held one, without a template":          {three(outdated, missing, fourth(func(m *MachineFacts) { m.Held, m.Configured, m.Outdated = true, false, true }), func(f *Facts) { f.Replicas = 4 }), HandOver, false, ""},
		"a scale down needs none":                 {three(missing, func(f *Facts) { f.Replicas = 1 }), DeleteMachine, false, ""},
		"a scale up":                              {wants(3, missing), WaitForPreflight, false, "does not exist"},
		"a remediation":                           {three(sick), RemediateMachine, true, ""},
		"a remediation without a template":        {three(sick, missing), Stable, false, ""},
		"a remediation while a version is coming": {three(sick, soon), Stable, false, ""},
		"a remediation of one that is lost":       {three(sick, missing, soon, silentFor(1, time.Hour)), RemediateMachine, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Replaces).To(Equal(tc.replaces))
			g.Expect(decision.Message).To(ContainSubstring(tc.says))
		})
	}
	verdict := Verdicts(three(sick, soon))["cp-b"]
	NewWithT(t).Expect(verdict.Reason).To(Equal(controlplanev1.MachineRemediationDeferredReason))
	NewWithT(t).Expect(verdict.Message).To(ContainSubstring("another version"))
}

// TestWhatStandsInTheWayOfADeletion: fewer voters than that are never left by our doing.
func TestWhatStandsInTheWayOfADeletion(t *testing.T) {
	noSurge := func(f *Facts) { f.MaxSurge = 0 }
	pendingMachine := func(m *MachineFacts) { m.Provisioned = false }
	// stuck is a fourth machine whose member was not promoted.
	stuck := func(f *Facts) {
		f.Machines = append(f.Machines, MachineFacts{
			Name: "cp-d", ProviderID: "talos://cp-d", Provisioned: true, Configured: true, Answers: true,
			EtcdData: health.EtcdDataPresent, MemberID: 4, MemberProblem: "it is a learner", Created: time.Unix(3, 0),
		})
		members := append(slices.Clone(f.Etcd.Members), etcd.Member{ID: 4, Hostname: "cp-d", Learner: true})
		var views []etcd.View
		for _, member := range members {
			views = append(views, etcd.View{Self: member.ID, Leader: 1, Learner: member.Learner, Members: members})
		}
		f.Etcd = etcd.Judge(views)
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
		says  string
	}{
		"the one that goes is a learner": {three(stuck, func(f *Facts) { f.Machines[3].Outdated = true }), DeleteMachine, "cp-d"},
		"one too many is a learner":      {three(stuck, func(f *Facts) { f.RollingUpdate = false }), DeleteMachine, "cp-d"},
		"another is a learner":           {three(outdated, stuck, noSurge), WaitForPreflight, "member cp-d (4) is a learner"},
		"the last replacement waits for a host": {three(outdated, noSurge, func(f *Facts) {
			f.Machines[2] = MachineFacts{Name: "cp-c", Configured: true, MemberProblem: "none"}
			f.Etcd.Members, f.Etcd.Answering = f.Etcd.Members[:2], []uint64{1, 2}
		}), WaitForPreflight, "cp-c: it is not provisioned"},
		"one too many waits for a host, and all others have joined": {three(outdated, noSurge, fourth(pendingMachine), func(f *Facts) { f.Replicas = 3 }), DeleteMachine, ""},
		"nobody knows which member is its": {three(noSurge, func(f *Facts) {
			f.Machines[1].Outdated, f.Machines[1].MemberID = true, 0
		}), WaitForPreflight, "nobody knows which etcd member is its"},
		"another that is silent is to be mended, and cannot be": {three(silentFor(1, time.Hour), func(f *Facts) {
			f.Machines[1].Unhealthy, f.Replicas = true, 4
			f.Machines[1].Retries = &controlplanev1.RemediationRecord{Machine: "cp-z", Timestamp: metav1.Unix(0, 0)}
			f.Remediation = RemediationFacts{MaxRetry: new(int32), MinHealthyPeriod: time.Hour, Now: time.Unix(1, 0)}
		}), WaitForPreflight, "cp-b: its node does not answer"},
		"another that votes is to be mended": {wants(2, func(f *Facts) {
			f.Machines[0].Unhealthy, f.Machines[0].ComponentProblems = true, []string{"no scheduler"}
		}), CreateMachine, ""},
		"another that votes is unhealthy": {three(outdated, noSurge, func(f *Facts) {
			f.Machines[1].Unhealthy, f.Machines[1].ComponentProblems = true, []string{"no scheduler"}
			f.Machines[1].Retries = &controlplanev1.RemediationRecord{Machine: "cp-z", Timestamp: metav1.Unix(0, 0)}
			f.Remediation = RemediationFacts{MaxRetry: new(int32), MinHealthyPeriod: time.Hour, Now: time.Unix(1, 0)}
		}), WaitForPreflight, "cp-b: no scheduler"},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Message).To(ContainSubstring(tc.says))
		})
	}
}

// TestALearnerThatIsNeverPromoted: Talos has it promoted in the start of etcd alone in
// which its node has joined, and for 10 minutes.
func TestALearnerThatIsNeverPromoted(t *testing.T) {
	up := func(duration time.Duration) func(*Facts) {
		return func(f *Facts) { f.Machines[1].EtcdUpFor = duration }
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"for long":           {three(learning(1), up(15*time.Minute)), true},
		"not for long":       {three(learning(1), up(15*time.Minute-time.Second)), false},
		"it votes":           {three(up(time.Hour)), false},
		"it does not answer": {three(learning(1), up(time.Hour), silentFor(1, time.Hour)), false},
		"it goes":            {three(learning(1), up(time.Hour), departing(1)), false},
		"without a majority": {three(learning(1), up(time.Hour), silentFor(2, time.Hour)), false},
		"it has not told its ID": {three(learning(1), up(time.Hour), func(f *Facts) {
			f.Machines[1].MemberID, f.Machines[1].Addresses, f.Etcd.Members[1].PeerURLs = 0, []string{"192.0.2.2"}, []string{"https://192.0.2.2:2380"}
		}), true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(tc.facts.IsNeverPromoted("cp-b")).To(Equal(tc.want))
			g.Expect(tc.facts.IsNeverPromoted("cp-a")).To(BeFalse())
		})
	}
}
