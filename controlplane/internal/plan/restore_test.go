package plan

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// held is a control plane that a restore holds.
func held(machine string) func(*Facts) {
	return func(f *Facts) {
		f.Restore = controlplanev1.RestoreRecord{Restore: "back", Machine: machine}
		if machine != "" {
			f.Restore.ID = "id-1"
		}
	}
}

// allWiped are nodes that have come back without data; nothing answers.
func allWiped(f *Facts) {
	f.APIServer, f.Etcd = health.APIServerSilent, etcd.Health{}
	for i := range f.Machines {
		f.Machines[i].EtcdData, f.Machines[i].MemberProblem = health.EtcdDataAbsent, "none"
	}
}

// restoredOn is the record of the bootstrap by a restore.
func restoredOn(name, id string, bootstrapped bool) func(*Facts) {
	return func(f *Facts) {
		f.Intent = &controlplanev1.BootstrapIntent{Kind: "Machine", Name: name, ProviderID: "talos://" + name, Restore: id, Bootstrapped: bootstrapped, Initialized: true}
	}
}

func dataOn(i int, problem string) func(*Facts) {
	return func(f *Facts) { f.Machines[i].EtcdData, f.Machines[i].MemberProblem = health.EtcdDataPresent, problem }
}

func TestARestoreHoldsTheControlPlane(t *testing.T) {
	unhealthy := func(f *Facts) { f.Machines[1].Unhealthy = true }
	going := func(hook HookState) func(*Facts) {
		return func(f *Facts) { f.Machines[2].Deleting, f.Machines[2].Hook = true, hook }
	}
	silent := func(f *Facts) { f.Machines[1].Answers, f.Machines[1].EtcdData = false, health.EtcdDataUnknown }
	mine := restoredOn("cp-a", "id-1", false)
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"nothing is remediated":                         {three(held(""), unhealthy), WaitForRestore},
		"nothing is replaced":                           {three(held(""), outdated), WaitForRestore},
		"nothing is added":                              {three(held(""), func(f *Facts) { f.Replicas = 5 }), WaitForRestore},
		"nothing is taken away":                         {three(held(""), func(f *Facts) { f.Replicas = 1 }), WaitForRestore},
		"nothing is bootstrapped":                       {ready(held("")), WaitForRestore},
		"nor as a person says":                          {three(held(""), allWiped, func(f *Facts) { f.Override = "cp-a" }), WaitForRestore},
		"nothing is remediated beside one that goes":    {three(held(""), unhealthy, going(HookEarly)), WaitForRestore},
		"a person may delete":                           {three(held("cp-a"), restoredOn("cp-a", "id-1", true), going(HookDue)), LeaveEtcd},
		"the secrets come first":                        {ready(held(""), func(f *Facts) { f.Machines, f.Certificates = nil, CertificatesMissing }), WaitForRestore},
		"then the first machine":                        {ready(held(""), func(f *Facts) { f.Machines = nil }), CreateMachine},
		"but no other":                                  {ready(held(""), func(f *Facts) { f.Replicas = 3 }), WaitForRestore},
		"it is recorded where":                          {three(held("cp-a"), allWiped), RecordBootstrapIntent},
		"also of the same machine in another attempt":   {three(held("cp-a"), allWiped, restoredOn("cp-a", "id-0", false)), RecordBootstrapIntent},
		"also where the last one has ended":             {three(held("cp-a"), allWiped, restoredOn("cp-a", "id-0", true)), RecordBootstrapIntent},
		"also of another machine":                       {three(held("cp-a"), allWiped, restoredOn("cp-b", "id-1", false)), RecordBootstrapIntent},
		"etcd is restored":                              {three(held("cp-a"), allWiped, mine), RestoreEtcd},
		"not twice":                                     {three(held("cp-a"), allWiped, mine, asked), WaitForEtcd},
		"not while a node is silent":                    {three(held("cp-a"), allWiped, mine, silent), WaitForMachine},
		"not beside one with data":                      {three(held("cp-a"), allWiped, dataOn(1, "silent")), WaitForRestore},
		"nor beside one with data, once recorded":       {three(held("cp-a"), allWiped, mine, dataOn(1, "silent")), WaitForRestore},
		"not while something answers":                   {three(held("cp-a"), allWiped, mine, func(f *Facts) { f.APIServer = health.APIServerUntrusted }), WaitForEndpointSilence},
		"nor while that is not known":                   {three(held("cp-a"), allWiped, mine, func(f *Facts) { f.APIServer = health.APIServerUnknown }), WaitForEndpointSilence},
		"not on a machine that goes":                    {three(held("cp-c"), allWiped, going(HookGone)), WaitForRestore},
		"nor before it is let go":                       {three(held("cp-c"), allWiped, going(HookEarly)), WaitForRestore},
		"what an attempt before has left is wiped":      {three(held("cp-a"), allWiped, restoredOn("cp-a", "id-0", false), dataOn(0, "")), WaitForRestore},
		"nor on one that is gone":                       {three(held("cp-x"), allWiped), WaitForRestore},
		"one that was let go has no say":                {three(held("cp-a"), allWiped, mine, going(HookAbandoned), func(f *Facts) { f.Machines[2].Answers = false }), RestoreEtcd},
		"etcd comes up":                                 {three(held("cp-a"), allWiped, mine, dataOn(0, "no leader")), WaitForEtcd},
		"its node is started that has stopped it":       {three(held("cp-a"), allWiped, mine, dataOn(0, "no leader"), func(f *Facts) { f.Machines[0].EtcdStopped = true }), RestartNode},
		"that it is up is recorded":                     {three(held("cp-a"), allWiped, mine, dataOn(0, "")), RecordBootstrapped},
		"also while others join":                        {three(held("cp-a"), allWiped, mine, dataOn(0, ""), dataOn(1, "a learner")), RecordBootstrapped},
		"then the restore is waited for":                {three(held("cp-a"), restoredOn("cp-a", "id-1", true), unhealthy), WaitForRestore},
		"after it, all goes on":                         {three(restoredOn("cp-a", "id-1", true), unhealthy), RemediateMachine},
		"after one that failed, no empty etcd is begun": {three(allWiped, mine), WaitForOverride},
		"but as a person says":                          {three(allWiped, mine, func(f *Facts) { f.Override = "cp-b" }), RecordBootstrapIntent},
	} {
		t.Run(name, func(t *testing.T) {
			decision := Decide(tc.facts)
			NewWithT(t).Expect(decision.Action).To(Equal(tc.want), decision.Message)
		})
	}
}

// TestARestoreOfANewCluster: the API server answers for the first time after it.
func TestARestoreOfANewCluster(t *testing.T) {
	g := NewWithT(t)
	facts := ready(held("cp-a"), dataOn(0, ""), func(f *Facts) {
		f.APIServer = health.APIServerReady
		f.Intent = &controlplanev1.BootstrapIntent{Kind: "Machine", Name: "cp-a", ProviderID: "talos://a", Restore: "id-1", Bootstrapped: true}
	})
	g.Expect(Decide(facts).Action).To(Equal(RecordInitialized))
	facts.Initialized, facts.Intent.Initialized = true, true
	g.Expect(Decide(facts).Action).To(Equal(WaitForRestore))
}
