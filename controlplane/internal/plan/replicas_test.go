package plan

import (
	"testing"

	. "github.com/onsi/gomega"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// wants are the facts of a control plane that runs on one machine and is to
// have more.
func wants(replicas int32, changes ...func(*Facts)) Facts {
	facts := ready(running, func(f *Facts) { f.Replicas = replicas })
	for _, change := range changes {
		change(&facts)
	}

	return facts
}

// second adds a Machine that waits for its turn.
func second(changes ...func(*MachineFacts)) func(*Facts) {
	return func(facts *Facts) {
		machine := MachineFacts{Name: "cp-b", Held: true}
		for _, change := range changes {
			change(&machine)
		}
		facts.Machines = append(facts.Machines, machine)
	}
}

// outdated has a Machine replaced.
func outdated(facts *Facts) { facts.Machines[0].Outdated = true }

func TestDecideScaleUp(t *testing.T) {
	for name, tc := range map[string]struct {
		facts   Facts
		want    Action
		machine string
		message string
	}{
		"makes one more":                       {wants(3), CreateMachine, "", ""},
		"makes all that are missing":           {wants(3, second()), CreateMachine, "", ""},
		"hands one over when none is missing":  {wants(1, second(), func(f *Facts) { f.Replicas = 2 }), HandOver, "cp-b", ""},
		"hands one over when it can make none": {wants(3, second(), func(f *Facts) { f.Machines[0].ComponentProblems = []string{"no scheduler"} }), HandOver, "cp-b", ""},
		"does not hand over a name in use":     {wants(2, second(func(m *MachineFacts) { m.NameInUse = true })), WaitForPreflight, "cp-b", "delete the Machine"},
		"waits for one that is provisioned":    {wants(3, second(func(m *MachineFacts) { m.Held = false })), WaitForPreflight, "", "Machine cp-b: it is not provisioned yet"},
		"waits for one that is a learner": {wants(3, second(func(m *MachineFacts) {
			*m = MachineFacts{Name: "cp-b", ProviderID: "talos://b", Provisioned: true, Answers: true, EtcdData: health.EtcdDataPresent, MemberProblem: "it is a learner"}
		})), WaitForPreflight, "", "Machine cp-b: it is a learner"},
		"waits for a silent node":                            {wants(3, second(), func(f *Facts) { f.Machines[0].Answers = false }), WaitForPreflight, "cp-b", "Machine cp-a: its node does not answer"},
		"waits for a broken component":                       {wants(3, func(f *Facts) { f.Machines[0].ComponentProblems = []string{"no scheduler"} }), WaitForPreflight, "", "Machine cp-a: no scheduler"},
		"waits for etcd":                                     {wants(3, func(f *Facts) { f.Etcd.Problems = []string{"an orphan"} }), WaitForPreflight, "", "etcd: an orphan"},
		"makes none that does not fit":                       {wants(3, func(f *Facts) { f.TemplateMismatch = "of the other kind" }), WaitForPreflight, "", "of the other kind"},
		"hands one over when no other would fit":             {wants(3, second(), func(f *Facts) { f.TemplateMismatch = "of the other kind" }), HandOver, "cp-b", ""},
		"makes no first one that does not fit":               {ready(func(f *Facts) { f.Machines, f.TemplateMismatch = nil, "of the other kind" }), Refuse, "", "of the other kind"},
		"rolls out nothing that does not fit":                {three(outdated, func(f *Facts) { f.TemplateMismatch = "of the other kind" }), WaitForPreflight, "", "of the other kind"},
		"deletes none whose replacement does not fit":        {three(outdated, func(f *Facts) { f.MaxSurge, f.TemplateMismatch = 0, "of the other kind" }), WaitForPreflight, "cp-a", "of the other kind"},
		"waits for a version that is coming":                 {wants(3, func(f *Facts) { f.VersionPending = true }), WaitForPreflight, "", "topology"},
		"waits for a Machine that goes":                      {wants(3, second(func(m *MachineFacts) { m.Deleting, m.Hook = true, HookEarly })), WaitForMachineDeletion, "cp-b", ""},
		"waits for the bundle":                               {wants(3, func(f *Facts) { f.Certificates = CertificatesMissing }), WaitForCertificates, "", ""},
		"deletes one that is wanted no more before it joins": {wants(1, second()), DeleteMachine, "cp-b", ""},
		"lists all that it waits for": {wants(3, func(f *Facts) {
			f.Machines[0].ComponentProblems = []string{"no scheduler", "no API server"}
			f.Etcd.Problems = []string{"an alarm"}
		}), WaitForPreflight, "", "Scaling up waits for:\n* Machine cp-a: no scheduler\n* Machine cp-a: no API server\n* etcd: an alarm"},
		"bootstraps the first while others are held": {
			ready(intent("cp-a", "talos://a", false), second(), func(f *Facts) { f.Replicas = 3 }), Bootstrap, "cp-a", ""},
		"hands the first of those held over when all are": {ready(func(f *Facts) { f.Machines = nil; f.Replicas = 3 }, second()), HandOver, "cp-b", "in place of the first"},
		"hands one over also when the first went before there were secrets": {
			ready(func(f *Facts) {
				f.Machines, f.APIServer, f.Certificates = nil, health.APIServerUnknown, CertificatesMissing
			}, second()), HandOver, "cp-b", ""},
		"hands one over when nothing is left of the first": {
			ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.Machines, f.IntentWiped = nil, true }, second()), HandOver, "cp-b", ""},
		"hands none over while the first goes": {
			ready(func(f *Facts) { f.Machines[0].Deleting = true }, second()), WaitForMachineDeletion, "cp-a", ""},
		"hands none over while the first is let go": {
			ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.Machines[0].Deleting, f.Machines[0].Hook, f.IntentWiped = true, HookGone, true }, second()),
			WaitForMachineDeletion, "cp-a", ""},
		"hands none over while nobody knows what is left of the first": {
			ready(intent("cp-a", "talos://a", false), func(f *Facts) { f.Machines = nil }, second()), WaitForOverride, "", "Machine cp-a, which is not there any more"},
		"hands none over beside an API server": {
			ready(func(f *Facts) { f.Machines, f.APIServer = nil, health.APIServerUntrusted }, second()), WaitForEndpointSilence, "", ""},
		"hands none over once the cluster was used": {
			ready(func(f *Facts) { f.Machines, f.Initialized = nil, true }, second()), WaitForOverride, "", controlplanev1.BootstrapOverrideAnnotation},
		"hands over the one that a person names": {ready(func(f *Facts) { f.Machines = nil; f.Replicas = 3; f.Override = "cp-b" }, second()), HandOver, "cp-b", ""},
		"records no Machine that has no host": {
			wants(3, second(), func(f *Facts) { f.Intent = nil; f.Machines[0], f.Machines[1] = f.Machines[1], f.Machines[0] }), RecordInitialized, "cp-a", ""},
		"records on which Machine etcd runs when another is silent": {
			wants(3, second(func(m *MachineFacts) { m.Held = false }), func(f *Facts) { f.Intent = nil }), RecordInitialized, "cp-a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			decision := Decide(tc.facts)
			g.Expect(decision.Action).To(Equal(tc.want), decision.Message)
			g.Expect(decision.Machine).To(Equal(tc.machine))
			g.Expect(decision.Message).To(ContainSubstring(tc.message))
			g.Expect(decision.Reason).NotTo(BeEmpty())
		})
	}
}
