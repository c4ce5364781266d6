package plan

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// ready are the facts of a cluster whose only node waits for the bootstrap,
// changed by edits.
func ready(edits ...func(*Facts)) Facts {
	facts := Facts{
		InfrastructureProvisioned: true,
		EndpointSet:               true,
		Replicas:                  1,
		Certificates:              CertificatesPresent,
		APIServer:                 health.APIServerSilent,
		Machines: []MachineFacts{{
			Name: "cp-a", ProviderID: "talos://a", Provisioned: true, Answers: true,
			Configured: true, EtcdData: health.EtcdDataAbsent, MemberProblem: "none",
		}},
	}
	for _, edit := range edits {
		edit(&facts)
	}

	return facts
}

// running turns the facts into those of a cluster that runs.
func running(facts *Facts) {
	facts.Initialized = true
	facts.APIServer = health.APIServerReady
	facts.Intent = &controlplanev1.BootstrapIntent{Kind: "Machine", Name: "cp-a", ProviderID: "talos://a", Bootstrapped: true, Initialized: true}
	facts.Etcd = etcd.Health{Members: []etcd.Member{{ID: 1, Hostname: "cp-a"}}, Answering: []uint64{1}, Leader: 1}
	facts.Machines[0].MemberID = 1
	facts.Machines[0].EtcdData = health.EtcdDataPresent
	facts.Machines[0].MemberProblem = ""
}

func intent(name, providerID string, bootstrapped bool) func(*Facts) {
	return func(facts *Facts) {
		facts.Intent = &controlplanev1.BootstrapIntent{Kind: "Machine", Name: name, ProviderID: providerID, Bootstrapped: bootstrapped}
	}
}

// pending are built-in manifests of another version.
func pending(facts *Facts) { facts.ManifestsPending = true }

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		facts Facts
		want  Action
	}{
		"waits for the infrastructure": {ready(func(f *Facts) { f.InfrastructureProvisioned = false }), WaitForInfrastructure},
		"waits for the endpoint":       {ready(func(f *Facts) { f.EndpointSet = false }), WaitForEndpoint},
		"starts nothing while the Cluster is being deleted": {
			ready(func(f *Facts) { f.ClusterDeleting = true; f.Machines = nil }), WaitForClusterDeletion},
		"refuses to act beside foreign Machines":        {ready(func(f *Facts) { f.ForeignMachines = []string{"stray"} }), Refuse},
		"creates the first Machine":                     {ready(func(f *Facts) { f.Machines = nil }), CreateMachine},
		"creates the first Machine before there is PKI": {ready(func(f *Facts) { f.Machines = nil; f.Certificates = CertificatesMissing }), CreateMachine},
		"waits for a lost bundle instead of creating a Machine": {
			ready(running, func(f *Facts) { f.Machines = nil; f.Certificates = CertificatesMissing }), WaitForCertificates},
		"waits for a lost bundle when only the intent tells that it was there": {
			ready(intent("cp-a", "talos://a", true), func(f *Facts) { f.Machines = nil; f.Certificates = CertificatesMissing }), WaitForCertificates},
		"waits for the original of a changed bundle": {ready(running, func(f *Facts) { f.Certificates = CertificatesChanged }), WaitForCertificates},
		"waits for the bundle":                       {ready(func(f *Facts) { f.Certificates = CertificatesMissing }), WaitForCertificates},
		"waits for the Machine to be provisioned":    {ready(func(f *Facts) { f.Machines[0].Provisioned = false }), WaitForMachine},
		"waits for the provider ID":                  {ready(func(f *Facts) { f.Machines[0].ProviderID = "" }), WaitForMachine},
		"waits for a Machine that goes":              {ready(func(f *Facts) { f.Machines[0].Deleting = true }), WaitForMachineDeletion},
		"waits for the node to answer": {
			ready(func(f *Facts) { f.Machines[0].Answers = false; f.Machines[0].EtcdData = health.EtcdDataUnknown }), WaitForMachine},
		"does not take unknown for no data":                 {ready(func(f *Facts) { f.Machines[0].EtcdData = health.EtcdDataUnknown }), WaitForMachine},
		"looks at the endpoint first":                       {ready(func(f *Facts) { f.APIServer = health.APIServerUnknown }), WaitForEndpointSilence},
		"does not bootstrap beside an untrusted API server": {ready(func(f *Facts) { f.APIServer = health.APIServerUntrusted }), WaitForEndpointSilence},
		"does not bootstrap beside an API server":           {ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.APIServer = health.APIServerNotReady }), WaitForEndpointSilence},
		"records the intent first":                          {ready(), RecordBootstrapIntent},
		"bootstraps the recorded Machine":                   {ready(intent("cp-a", "talos://a", false)), Bootstrap},
		"does not bootstrap a Machine of the same name with another provider ID": {
			ready(intent("cp-a", "talos://b", false)), WaitForOverride},
		"does not bootstrap another Machine":                          {ready(intent("cp-b", "talos://b", false)), WaitForOverride},
		"does not bootstrap twice":                                    {ready(intent("cp-a", "talos://a", true)), WaitForOverride},
		"does not bootstrap an initialized cluster without an intent": {ready(func(f *Facts) { f.Initialized = true }), WaitForOverride},
		"records anew where a person says": {
			ready(intent("cp-b", "talos://b", true), func(f *Facts) { f.Override = "cp-a" }), RecordBootstrapIntent},
		"waits when a person names no Machine of the cluster": {
			ready(intent("cp-b", "talos://b", true), func(f *Facts) { f.Override = "cp-x" }), WaitForOverride},
		"keeps the endpoint rule when a person overrides": {
			ready(intent("cp-b", "talos://b", true), func(f *Facts) { f.Override = "cp-a"; f.APIServer = health.APIServerNotReady }), WaitForEndpointSilence},
		"keeps the unknown rule when a person overrides": {
			ready(intent("cp-b", "talos://b", true), func(f *Facts) { f.Override = "cp-a"; f.Machines[0].EtcdData = health.EtcdDataUnknown }), WaitForMachine},
		"ignores an override while there is data": {ready(running, func(f *Facts) { f.Override = "cp-a" }), Stable},
		"waits for etcd after the bootstrap": {
			ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.Machines[0].EtcdData = health.EtcdDataPresent }), WaitForEtcd},
		"records that etcd runs": {
			ready(running, intent("cp-a", "talos://a", false), func(f *Facts) { f.Initialized = false; f.APIServer = health.APIServerSilent }), RecordBootstrapped},
		"records that the API server answers when the intent is lost": {ready(running, func(f *Facts) { f.Intent = nil }), RecordInitialized},
		"waits for the API server": {
			ready(running, func(f *Facts) { f.Initialized = false; f.APIServer = health.APIServerNotReady }), WaitForAPIServer},
		"waits for a node before the API server": {
			ready(running, func(f *Facts) {
				f.Initialized, f.APIServer, f.Machines[0].MemberProblem = false, health.APIServerSilent, "no leader"
			}), WaitForEtcd},
		"records that the API server answers for the first time": {
			ready(running, func(f *Facts) { f.Initialized, f.Intent.Initialized = false, false }), RecordInitialized},
		"takes no API server for its own without data": {ready(func(f *Facts) { f.APIServer = health.APIServerReady }), WaitForEndpointSilence},
		"takes none for its own that a Machine serves which was let go": {
			ready(running, func(f *Facts) {
				f.Initialized, f.Intent.Initialized, f.Machines[0].Deleting, f.Machines[0].Hook = false, false, true, HookGone
			}), WaitForMachineDeletion},
		"records also what a Machine serves that goes": {
			ready(running, func(f *Facts) {
				f.Initialized, f.Intent.Initialized, f.Machines[0].Deleting, f.Machines[0].Hook = false, false, true, HookDue
			}), RecordInitialized},
		"waits for the API server, and for none that is held back": {
			ready(running, second(), func(f *Facts) { f.Initialized, f.APIServer, f.Replicas = false, health.APIServerNotReady, 2 }), WaitForAPIServer},
		"is stable": {ready(running), Stable},
		"brings the built-in manifests to the version":  {ready(running, pending), ApplyManifests},
		"leaves them while a Machine is outdated":       {ready(running, pending, func(f *Facts) { f.Machines[0].Outdated = true }), Stable},
		"leaves them while another version is coming":   {ready(running, pending, func(f *Facts) { f.VersionPending = true }), Stable},
		"leaves them while no API server answers":       {ready(running, pending, func(f *Facts) { f.APIServer = health.APIServerNotReady }), Stable},
		"leaves them while Machines are missing":        {ready(running, pending, func(f *Facts) { f.Replicas = 3 }), CreateMachine},
		"is stable also when the API server went away":  {ready(running, func(f *Facts) { f.APIServer = health.APIServerSilent }), Stable},
		"waits for a running node that became silent":   {ready(running, func(f *Facts) { f.Machines[0].Answers = false; f.Machines[0].EtcdData = health.EtcdDataUnknown }), WaitForMachine},
		"waits for a member that lost its leader":       {ready(running, func(f *Facts) { f.Machines[0].MemberProblem = "no leader" }), WaitForEtcd},
		"waits for an API server before a second start": {ready(running, func(f *Facts) { f.Initialized = false; f.APIServer = health.APIServerUntrusted }), WaitForAPIServer},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			decision := Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Reason).NotTo(BeEmpty())
			if decision.Action != Stable {
				g.Expect(decision.Message).NotTo(BeEmpty())
			}
		})
	}
}

// TestDecideNeverBootstrapsOnDoubt goes through all combinations of what may be
// in doubt: a bootstrap happens in exactly one of them.
func TestDecideNeverBootstrapsOnDoubt(t *testing.T) {
	g := NewWithT(t)
	bootstraps := 0
	for _, data := range []health.EtcdData{health.EtcdDataUnknown, health.EtcdDataAbsent, health.EtcdDataPresent} {
		for _, api := range []health.APIServerState{health.APIServerUnknown, health.APIServerSilent, health.APIServerUntrusted, health.APIServerNotReady, health.APIServerReady} {
			for _, certificates := range []CertificatesState{CertificatesMissing, CertificatesPresent, CertificatesChanged} {
				for _, bootstrapped := range []bool{false, true} {
					for _, answers := range []bool{false, true} {
						for _, provisioned := range []bool{false, true} {
							facts := ready(intent("cp-a", "talos://a", bootstrapped), func(f *Facts) {
								f.APIServer, f.Certificates = api, certificates
								f.Machines[0].EtcdData, f.Machines[0].Answers, f.Machines[0].Provisioned = data, answers, provisioned
							})
							if Decide(facts).Action == Bootstrap {
								bootstraps++
							}
						}
					}
				}
			}
		}
	}
	g.Expect(bootstraps).To(Equal(1))
}

func TestDecideAsksEveryNodeBeforeTheBootstrap(t *testing.T) {
	g := NewWithT(t)
	leaving := MachineFacts{Name: "cp-0", ProviderID: "talos://0", Provisioned: true, Deleting: true}
	facts := ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.Machines = append([]MachineFacts{leaving}, f.Machines...) })

	g.Expect(Decide(facts).Action).To(Equal(WaitForMachine))
}

func TestDecideDelete(t *testing.T) {
	for name, tc := range map[string]struct {
		facts DeleteFacts
		want  Action
	}{
		"waits for workers first":          {DeleteFacts{Workers: []string{"Machine w"}, Machines: 3}, DeleteWorkersFirst},
		"also for the last one":            {DeleteFacts{Workers: []string{"Machine w"}}, DeleteWorkersFirst},
		"then deletes the Machines":        {DeleteFacts{Machines: 3}, DeleteMachines},
		"also what was left of a creation": {DeleteFacts{Leftovers: 1}, DeleteMachines},
		"then goes":                        {DeleteFacts{}, RemoveFinalizer},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(DecideDelete(tc.facts).Action).To(Equal(tc.want))
		})
	}
}

func TestDecideDeleteNamesOnlySomeOfManyWorkers(t *testing.T) {
	message := DecideDelete(DeleteFacts{Workers: strings.Split("abcdefgh", "")}).Message
	NewWithT(t).Expect(message).To(HaveSuffix("a, b, c, d, e and others"))
	message = DecideDelete(DeleteFacts{Workers: strings.Split("abcde", "")}).Message
	NewWithT(t).Expect(message).To(HaveSuffix("a, b, c, d, e"))
}

func TestWhatIsADeparture(t *testing.T) {
	departures := map[Action]bool{LeaveEtcd: true, RemoveMember: true, ReleaseHook: true}
	for _, action := range []Action{Stable, Refuse, CreateMachine, DeleteMachine, RemediateMachine, WaitForLeave, WaitForMachineDeletion, LeaveEtcd, RemoveMember, ReleaseHook} {
		NewWithT(t).Expect(Decision{Action: action}.IsDeparture()).To(Equal(departures[action]), string(action))
	}
}
