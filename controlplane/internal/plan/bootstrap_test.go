package plan

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// asked is a node that was asked to bootstrap etcd.
func asked(facts *Facts) { facts.Machines[0].Bootstrapping = true }

// stoppedEtcd is a node with data, whose etcd a bootstrap has left stopped.
func stoppedEtcd(facts *Facts) {
	facts.Machines[0].EtcdData, facts.Machines[0].EtcdStopped = health.EtcdDataPresent, true
}

func TestABootstrapIsSeenThrough(t *testing.T) {
	recorded := intent("cp-a", "talos://a", false)
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"bootstraps":                                          {ready(recorded), Bootstrap},
		"does not ask twice":                                  {ready(recorded, asked), WaitForEtcd},
		"restarts what was stopped":                           {ready(recorded, stoppedEtcd), RestartNode},
		"also after it was asked":                             {ready(recorded, asked, stoppedEtcd), RestartNode},
		"does not restart twice":                              {ready(recorded, stoppedEtcd, func(f *Facts) { f.Machines[0].Restarting = true }), WaitForEtcd},
		"does not restart what starts":                        {ready(recorded, stoppedEtcd, func(f *Facts) { f.Machines[0].EtcdStopped = false }), WaitForEtcd},
		"does not restart a node that does not answer":        {ready(recorded, stoppedEtcd, func(f *Facts) { f.Machines[0].Answers = false }), WaitForMachine},
		"does not restart another node than that in intent":   {ready(intent("cp-a", "talos://b", false), stoppedEtcd), WaitForEtcd},
		"does not restart without an intent":                  {ready(stoppedEtcd), WaitForEtcd},
		"does not restart where etcd was seen running":        {ready(intent("cp-a", "talos://a", true), stoppedEtcd), WaitForEtcd},
		"does not restart what goes":                          {ready(recorded, stoppedEtcd, func(f *Facts) { f.Machines[0].Deleting, f.Machines[0].Hook = true, HookEarly }), WaitForMachineDeletion},
		"does not bootstrap anew what was used, though wiped": {ready(intent("cp-0", "talos://0", true), func(f *Facts) { f.Initialized, f.IntentWiped = true, true }), WaitForOverride},
		"bootstraps anew what was never used, once wiped":     {ready(intent("cp-0", "talos://0", true), func(f *Facts) { f.IntentWiped = true }), RecordBootstrapIntent},
	} {
		t.Run(name, func(t *testing.T) {
			decision := Decide(tc.facts)
			NewWithT(t).Expect(decision.Action).To(Equal(tc.want), decision.Message)
		})
	}
}

// TestWhoIsRecordedWhereEtcdRuns: the one recorded, else one with data, else one with a
// host, else any.
func TestWhoIsRecordedWhereEtcdRuns(t *testing.T) {
	other := second(func(m *MachineFacts) { m.Held, m.ProviderID, m.EtcdData = false, "talos://b", health.EtcdDataPresent })
	lost := func(f *Facts) { f.Intent = nil }
	notYet := func(f *Facts) { f.Intent.Initialized = false }
	for name, tc := range map[string]struct {
		facts Facts
		want  string
	}{
		"the one recorded":                        {ready(running, other, intent("cp-b", "talos://b", true)), "cp-b"},
		"not one of its name on another host":     {ready(running, other, intent("cp-b", "talos://z", true)), "cp-a"},
		"not one of its host under another name":  {ready(running, other, intent("cp-z", "talos://b", true)), "cp-a"},
		"the one recorded, though it has no data": {ready(running, other, notYet, func(f *Facts) { f.Machines[0].EtcdData = health.EtcdDataAbsent }), "cp-a"},
		"one with data":                           {ready(running, other, lost, func(f *Facts) { f.Machines[0].EtcdData = health.EtcdDataAbsent }), "cp-b"},
		"one with data and a host":                {ready(running, other, lost, func(f *Facts) { f.Machines[0].ProviderID = "" }), "cp-b"},
		"one with a host": {ready(running, other, lost, func(f *Facts) {
			f.Machines[0].ProviderID, f.Machines[1].EtcdData = "", health.EtcdDataAbsent
		}), "cp-b"},
		"any": {ready(running, other, lost, func(f *Facts) { f.Machines[0].ProviderID, f.Machines[1].ProviderID = "", "" }), "cp-a"},
	} {
		t.Run(name, func(t *testing.T) {
			g, decision := NewWithT(t), Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(RecordInitialized), decision.Message)
			g.Expect(decision.Machine).To(Equal(tc.want))
		})
	}
}

// TestWhatAnswersAtTheEndpointIsTold: an endpoint that leads elsewhere never becomes right
// by waiting.
func TestWhatAnswersAtTheEndpointIsTold(t *testing.T) {
	g := NewWithT(t)
	for state, says := range map[health.APIServerState]string{
		health.APIServerUntrusted: "is no API server of this cluster; point the endpoint at the control plane machines",
		health.APIServerNotReady:  "to become ready, which answers",
		health.APIServerSilent:    "to answer at the control plane endpoint",
	} {
		decision := Decide(ready(running, func(f *Facts) { f.Initialized, f.APIServer = false, state }))
		g.Expect(decision).To(And(HaveField("Action", WaitForAPIServer), HaveField("Message", ContainSubstring(says))))
	}
}
