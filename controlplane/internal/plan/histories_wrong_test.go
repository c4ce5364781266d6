package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// wrong is a decision that would do harm, and how the histories must catch it.
type wrong struct {
	decide func(Facts) Decision
	// offence is what the judge must say; empty means that nothing but a stall is
	// wanted: it does no harm to etcd, and does not get on.
	offence string
}

// changed decides on facts that are not so.
func changed(change func(*Facts)) func(Facts) Decision {
	return func(facts Facts) Decision {
		facts.Machines = slices.Clone(facts.Machines)
		facts.Etcd.Members, facts.Etcd.Answering = slices.Clone(facts.Etcd.Members), slices.Clone(facts.Etcd.Answering)
		change(&facts)
		return Decide(facts)
	}
}

// without decides as if a rule were not there: where nothing is done, the changed
// facts decide whether one of these actions is.
func without(change func(*Facts), actions ...Action) func(Facts) Decision {
	return func(facts Facts) Decision {
		decision := Decide(facts)
		if strings.HasPrefix(string(decision.Action), "WaitFor") {
			if bold := changed(change)(facts); slices.Contains(actions, bold.Action) {
				return bold
			}
		}
		return decision
	}
}

// takesMembers are the actions that take a member out, or begin to.
func takesMembers() []Action {
	return []Action{LeaveEtcd, WaitForLeave, RemoveMember, DeleteMachine, RemediateMachine}
}

// wrongDecisions are mistakes that a change of the decision could bring.
func wrongDecisions() map[string]wrong {
	return map[string]wrong{
		"a learner counts as a voter": {changed(func(f *Facts) {
			for i, member := range f.Etcd.Members {
				if member.Learner {
					f.Etcd.Members[i].Learner = false
					f.Etcd.Answering = append(f.Etcd.Answering, member.ID)
				}
			}
		}), "a second change while"},
		"a silent node counts": {changed(allAnswer), "took the quorum"},
		"the majority left is not counted": {without(func(f *Facts) {
			if f.Etcd.HasQuorum() {
				allAnswer(f)
			}
		}, takesMembers()...), "took the quorum"},
		"the intent is ignored":               {changed(func(f *Facts) { f.Intent, f.Initialized = nil, false }), ""},
		"the intent's host is taken as wiped": {changed(func(f *Facts) { f.IntentWiped = true }), "beside data"},
		"a used cluster is bootstrapped anew once the intent's host is wiped": {without(func(f *Facts) { f.Initialized = false },
			RecordBootstrapIntent), "no person has given up"},
		"unknown is taken as absent": {changed(func(f *Facts) {
			for i := range f.Machines {
				if f.Machines[i].EtcdData == health.EtcdDataUnknown {
					f.Machines[i].EtcdData = health.EtcdDataAbsent
				}
			}
		}), "beside data"},
		"a name instead of an ID": {changed(func(f *Facts) {
			for i, machine := range f.Machines {
				f.Machines[i].MemberID, f.Machines[i].Addresses = 0, nil
				for _, member := range f.Etcd.Members {
					if member.Hostname == machine.Name {
						f.Machines[i].MemberID = member.ID
					}
				}
			}
		}), ""},
		"two changes at once": {without(noLearners, append(takesMembers(), HandOver)...), "learns"},
		"one is removed while another learns": {without(func(f *Facts) {
			problems := f.Etcd.Problems
			noLearners(f)
			f.Etcd.Problems = problems
		}, LeaveEtcd, WaitForLeave, RemoveMember), "a second change while"},
		"data that differs is no matter": {changed(func(f *Facts) {
			f.Etcd.Alarms = slices.DeleteFunc(slices.Clone(f.Etcd.Alarms), func(alarm etcd.Alarm) bool { return alarm.Alarm == etcd.AlarmCorrupt })
		}), "the data of members differ"},
		"another is replaced before the last replacement has joined": {without(func(f *Facts) {
			before := len(f.Machines)
			f.Machines = slices.DeleteFunc(f.Machines, func(m MachineFacts) bool { return !m.Held && !m.Deleting && !m.Answers && isPending(m) })
			f.Replicas -= int32(before - len(f.Machines)) //nolint:gosec // A handful.
			if f.MaxSurge > 0 {
				f.Replicas = int32(before) //nolint:gosec // A handful: nothing else changes.
			}
		}, DeleteMachine), "it left fewer than"},
	}
}

// allAnswer has all voters answer.
func allAnswer(f *Facts) {
	f.Etcd.Answering = nil
	for _, member := range f.Etcd.Members {
		if !member.Learner {
			f.Etcd.Answering = append(f.Etcd.Answering, member.ID)
		}
	}
}

// noLearners hides the members that learn.
func noLearners(f *Facts) {
	f.Etcd.Members = slices.DeleteFunc(f.Etcd.Members, func(member etcd.Member) bool { return member.Learner })
	f.Etcd.Problems = slices.DeleteFunc(slices.Clone(f.Etcd.Problems), func(problem string) bool { return strings.Contains(problem, "learner") })
}

// TestHistoriesCatchWrongDecisions: the histories are worth something. What would
// harm etcd is caught as that, and not only because nothing gets on.
func TestHistoriesCatchWrongDecisions(t *testing.T) {
	const most = 10000
	for name, wrong := range wrongDecisions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := first(most, wrong.decide, wrong.catches)
			if seed == most {
				t.Fatalf("%d histories do not show it", most)
			}
			t.Log(fmt.Sprintf("seed %d", seed), run(seed, generate(seed), wrong.decide).offences)
		})
	}
}

// catches reports whether a history ends as it must with the wrong decision.
func (w wrong) catches(o outcome) bool {
	if w.offence == "" {
		return o.stuck != "" && len(o.offences) == 0
	}
	return slices.ContainsFunc(o.offences, func(offence string) bool { return strings.Contains(offence, w.offence) })
}
