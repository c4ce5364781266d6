package plan

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// three are the facts of a control plane of three healthy Machines, cp-a to cp-c,
// of which cp-a is the oldest and leads etcd.
func three(changes ...func(*Facts)) Facts {
	facts := ready(running)
	facts.Replicas, facts.RollingUpdate, facts.MaxSurge = 3, true, 1
	facts.Machines, facts.Etcd = nil, etcd.Health{Leader: 1}
	for i, name := range []string{"cp-a", "cp-b", "cp-c"} {
		id := uint64(i) + 1
		facts.Etcd.Members = append(facts.Etcd.Members, etcd.Member{ID: id, Hostname: name})
		facts.Etcd.Answering = append(facts.Etcd.Answering, id)
		facts.Machines = append(facts.Machines, MachineFacts{
			Name: name, ProviderID: "talos://" + name, Provisioned: true, Configured: true, Answers: true,
			EtcdData: health.EtcdDataPresent, MemberID: id, Created: time.Unix(int64(i), 0),
		})
	}
	for _, change := range changes {
		change(&facts)
	}

	return facts
}

func TestVictims(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(a, b, c *MachineFacts)
		want string
	}{
		"the oldest, but the leader last":             {func(_, _, _ *MachineFacts) {}, "cp-b"},
		"the one of the fullest failure domain":       {func(a, b, c *MachineFacts) { a.FailureDomain, b.FailureDomain, c.FailureDomain = "x", "y", "x" }, "cp-c"},
		"an unhealthy one":                            {func(_, _, c *MachineFacts) { c.Answers = false }, "cp-c"},
		"an outdated one before an unhealthy":         {func(_, b, c *MachineFacts) { b.Answers, c.Outdated = false, true }, "cp-c"},
		"an outdated and unhealthy one first":         {func(_, b, c *MachineFacts) { b.Outdated, c.Outdated, c.Answers = true, true, false }, "cp-c"},
		"a marked one before outdated ones":           {func(a, b, c *MachineFacts) { a.Marked, b.Outdated, c.Outdated = true, true, true }, "cp-a"},
		"a marked and outdated one before those":      {func(a, _, c *MachineFacts) { a.Marked, c.Marked, c.Outdated = true, true, true }, "cp-c"},
		"the leader when it is the only outdated one": {func(a, _, _ *MachineFacts) { a.Outdated = true }, "cp-a"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := three()
			tc.edit(&facts.Machines[0], &facts.Machines[1], &facts.Machines[2])
			NewWithT(t).Expect(selectMachineForDeletion(facts).Name).To(Equal(tc.want))
		})
	}
}

// TestRemediationIsRefused (§14.11): not the last Machine, not without a majority,
// and not where it would be lost.
func TestRemediationIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Facts)
		reason string
		says   string
	}{
		"the only Machine": {func(f *Facts) {
			f.Replicas, f.Machines, f.Etcd.Members, f.Etcd.Answering = 1, f.Machines[1:2], f.Etcd.Members[1:2], f.Etcd.Answering[1:2]
		}, controlplanev1.MachineCannotBeRemediatedReason, "the only control plane Machine"},
		"without a majority": {func(f *Facts) {
			f.Machines[1].Answers, f.Machines[2].Answers, f.Etcd.Answering = false, false, []uint64{1}
		}, controlplanev1.MachineCannotBeRemediatedReason, "no majority"},
		"where a majority hangs on it": {func(f *Facts) {
			f.Machines[2].Answers, f.Machines[2].Unhealthy, f.Etcd.Answering = false, true, []uint64{1, 2}
		}, controlplanev1.MachineCannotBeRemediatedReason, "etcd would lose its majority"},
		"while another is deleted": {func(f *Facts) {
			f.Machines[2].Deleting = true
		}, controlplanev1.MachineRemediationDeferredReason, "is being deleted"},
		"while no replacement would fit": {func(f *Facts) {
			f.TemplateMismatch = "the template is of the other kind"
		}, controlplanev1.MachineRemediationDeferredReason, "of the other kind"},
	} {
		t.Run(name, func(t *testing.T) {
			g, facts := NewWithT(t), three(tc.change)
			for i := range facts.Machines {
				facts.Machines[i].Unhealthy = facts.Machines[i].Unhealthy || facts.Machines[i].Name == "cp-b"
			}
			verdict := Verdicts(facts)["cp-b"]
			g.Expect(verdict.Remediate).To(BeFalse())
			g.Expect(verdict.Reason).To(Equal(tc.reason))
			g.Expect(verdict.Message).To(ContainSubstring(tc.says))
		})
	}
}

// TestALostFirstMachineIsRemediated: before the control plane is initialized, those
// that are held back do not stand in the way; others do.
func TestALostFirstMachineIsRemediated(t *testing.T) {
	lost := func(facts *Facts) {
		facts.Machines[0].Unhealthy, facts.Machines[0].Answers, facts.Replicas = true, false, 3
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"the only one":                          {ready(lost), true},
		"beside one that is held":               {ready(lost, second()), true},
		"after the intent was recorded":         {ready(lost, intent("cp-a", "talos://a", false), second()), true},
		"not beside one with a configuration":   {ready(lost, second(func(m *MachineFacts) { m.Held = false })), false},
		"not beside one that goes and may have": {ready(lost, second(func(m *MachineFacts) { m.Held, m.Deleting, m.Hook = false, true, HookGone })), false},
	} {
		t.Run(name, func(t *testing.T) {
			g, verdict := NewWithT(t), Verdicts(tc.facts)["cp-a"]
			g.Expect(verdict.Remediate).To(Equal(tc.want), verdict.Message)
			if !tc.want {
				g.Expect(verdict.Reason).To(Equal(controlplanev1.MachineRemediationDeferredReason))
			}
		})
	}
}

func TestRemediationCounts(t *testing.T) {
	now := time.Unix(100000, 0)
	before := func(ago time.Duration, retries int32) *controlplanev1.RemediationRecord {
		return &controlplanev1.RemediationRecord{Machine: "cp-0", Timestamp: metav1.NewTime(now.Add(-ago)), RetryCount: retries}
	}
	for name, tc := range map[string]struct {
		retries *controlplanev1.RemediationRecord
		max     *int32
		period  time.Duration
		allowed bool
		count   int32
		reason  string
	}{
		"a first failure":                        {nil, ptr.To(int32(0)), 0, true, 0, ""},
		"a replacement that fails":               {before(time.Minute, 0), nil, 0, true, 1, ""},
		"a replacement that fails again":         {before(time.Minute, 3), nil, 0, true, 4, ""},
		"a replacement that fails once too much": {before(time.Minute, 2), ptr.To(int32(2)), 0, false, 0, controlplanev1.MachineCannotBeRemediatedReason},
		"a replacement that fails too early":     {before(time.Minute, 0), nil, time.Hour, false, 0, controlplanev1.MachineRemediationDeferredReason},
		"a replacement that fails much later":    {before(2*time.Hour, 9), ptr.To(int32(1)), 0, true, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			facts := three(func(f *Facts) {
				f.Machines[1].Unhealthy, f.Machines[1].Retries = true, tc.retries
				f.Remediation = RemediationFacts{MaxRetry: tc.max, RetryPeriod: tc.period, MinHealthyPeriod: time.Hour, Now: now}
			})
			verdict := Verdicts(facts)["cp-b"]
			g.Expect(verdict.Remediate).To(Equal(tc.allowed))
			g.Expect(verdict.Reason).To(Equal(tc.reason))
			if tc.allowed {
				g.Expect(verdict.Record.RetryCount).To(Equal(tc.count))
			}
		})
	}
}

// TestMachinesOfOtherHostNamesLoseNoMember: members that carry other names than the
// Machines, as where addresses were mixed up, are not taken for orphans.
func TestMachinesOfOtherHostNamesLoseNoMember(t *testing.T) {
	g := NewWithT(t)
	facts := three(func(f *Facts) {
		for i := range f.Etcd.Members {
			f.Etcd.Members[i].Hostname = "other-" + f.Etcd.Members[i].Hostname
		}
	})
	g.Expect(Decide(facts).Action).To(Equal(Stable))

	// A node that answers under another name is no node of the Machine: silent,
	// with a member that is known from before.
	facts.Machines[1].Answers, facts.Machines[1].EtcdData = false, health.EtcdDataUnknown
	facts.Etcd.Answering = []uint64{1, 3}
	g.Expect(Decide(facts).Action).To(Equal(WaitForMachine))

	// Nor is anything removed when it never told.
	facts.Machines[1].MemberID = 0
	g.Expect(Decide(facts).Action).To(Equal(WaitForMachine))
}

// inProgress records that Machine cp-z was deleted to be replaced.
func inProgress(machine string) func(*Facts) {
	return func(f *Facts) {
		f.Remediation.InProgress = &controlplanev1.RemediationRecord{Machine: machine, Timestamp: metav1.Unix(1000, 0)}
	}
}

// TestARemediationEnds when its Machine is gone, and is replaced or wanted no more.
func TestARemediationEnds(t *testing.T) {
	wanted := func(replicas int32) func(*Facts) { return func(f *Facts) { f.Replicas = replicas } }
	sick := func(f *Facts) { f.Machines[1].Unhealthy = true }
	replaces := func(machine string, at int64) func(*Facts) {
		return func(f *Facts) {
			f.Machines[2].Retries = &controlplanev1.RemediationRecord{Machine: machine, Timestamp: metav1.Unix(at, 0)}
		}
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"not while the Machine is there":          {three(inProgress("cp-b"), sick), false},
		"not while it goes":                       {three(inProgress("cp-b"), departing(1), wanted(2)), false},
		"when it is well and was not deleted":     {three(inProgress("cp-b")), true},
		"when there are as many as wanted":        {three(inProgress("cp-z")), true},
		"when there are more":                     {three(inProgress("cp-z"), wanted(1)), true},
		"not while one is missing":                {three(inProgress("cp-z"), wanted(4)), false},
		"not by one that goes":                    {three(inProgress("cp-z"), departing(1)), false},
		"when another has come in its place":      {three(inProgress("cp-z"), wanted(4), replaces("cp-z", 1000)), true},
		"not when that came for another":          {three(inProgress("cp-z"), wanted(4), replaces("cp-y", 1000)), false},
		"not when that came for one of that name": {three(inProgress("cp-z"), wanted(4), replaces("cp-z", 999)), false},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.facts.RemediationEnded()).To(Equal(tc.want))
		})
	}
}

// TestARemediationAwaitsOthers: a Machine whose member is well stays until all others are.
func TestARemediationAwaitsOthers(t *testing.T) {
	sick := func(f *Facts) { f.Machines[1].Unhealthy = true }
	four := func(f *Facts) { f.Replicas = 4 }
	joins := func(changes ...func(*MachineFacts)) func(*Facts) {
		return fourth(append([]func(*MachineFacts){func(m *MachineFacts) { m.MemberID = 0 }}, changes...)...)
	}
	for name, tc := range map[string]struct {
		facts Facts
		// says is what is waited for; empty when the Machine is replaced.
		says string
	}{
		"none":                          {three(sick), ""},
		"another is not replaced yet":   {three(sick, four, inProgress("cp-z")), "The replacement of Machine cp-z is not there yet"},
		"another is replaced":           {three(sick, inProgress("cp-z")), ""},
		"its own was begun":             {three(sick, four, inProgress("cp-b")), ""},
		"another joins":                 {three(sick, joins()), "Machine cp-d is about to join"},
		"another joins, and is sick":    {three(sick, joins(func(m *MachineFacts) { m.Unhealthy = true })), ""},
		"another is held back":          {three(sick, joins(func(m *MachineFacts) { m.Held, m.Configured = true, false })), ""},
		"another was held, and is gone": {three(sick, joins(func(m *MachineFacts) { m.Configured, m.Deleting, m.Hook = false, true, HookGone })), ""},
		"it is lost itself":             {three(sick, four, inProgress("cp-z"), silentFor(1, time.Hour)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, verdict := NewWithT(t), Verdicts(tc.facts)["cp-b"]
			g.Expect(verdict.Remediate).To(Equal(tc.says == ""), verdict.Message)
			g.Expect(verdict.Message).To(ContainSubstring(tc.says))
			if tc.says != "" {
				g.Expect(verdict.Reason).To(Equal(controlplanev1.MachineRemediationDeferredReason))
			}
		})
	}
}

// TestTheMostBrokenIsReplacedFirst: then the oldest, then the first by name.
func TestTheMostBrokenIsReplacedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(a, b, c *MachineFacts)
		want string
	}{
		"the oldest":                  {func(_, _, _ *MachineFacts) {}, "cp-a"},
		"one with a broken component": {func(_, _, c *MachineFacts) { c.ComponentProblems = []string{"no scheduler"} }, "cp-c"},
		"the oldest of two such":      {func(_, b, c *MachineFacts) { b.ComponentProblems, c.ComponentProblems = []string{"x"}, []string{"x"} }, "cp-b"},
		"the first by name of one age": {func(a, b, c *MachineFacts) {
			b.Created, c.Created, a.Created = time.Unix(7, 0), time.Unix(7, 0), time.Unix(8, 0)
		}, "cp-b"},
		"one without a member":          {func(a, _, c *MachineFacts) { a.ComponentProblems = []string{"x"}; c.Configured, c.MemberID = false, 0 }, "cp-c"},
		"one that is sick before those": {func(a, b, c *MachineFacts) { a.Unhealthy, b.Unhealthy, c.Unhealthy = false, true, false }, "cp-b"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := three(func(f *Facts) {
				for i := range f.Machines {
					f.Machines[i].Unhealthy = true
				}
			})
			tc.edit(&facts.Machines[0], &facts.Machines[1], &facts.Machines[2])
			if facts.Machines[2].MemberID == 0 {
				facts.Etcd.Members, facts.Etcd.Answering = facts.Etcd.Members[:2], []uint64{1, 2}
			}
			decision := Decide(facts)
			NewWithT(t).Expect(decision.Action).To(Equal(RemediateMachine), decision.Message)
			NewWithT(t).Expect(decision.Machine).To(Equal(tc.want))
		})
	}
}
