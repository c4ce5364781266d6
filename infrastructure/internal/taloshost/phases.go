package taloshost

import (
	"slices"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Phase is how far a host is, by its records alone. The status summarizes it together
// with what was seen of the machine.
type Phase string

const (
	// Free is a host that nobody has claimed.
	Free Phase = "Free"
	// Claimed is a host whose machine has no configuration, not yet or not any more.
	Claimed Phase = "Claimed"
	// Provisioning is a host whose machine was, or is about to be, given a configuration.
	Provisioning Phase = "Provisioning"
	// Provisioned is a host whose machine has run with its configuration.
	Provisioned Phase = "Provisioned"
	// Releasing is a host whose machine is to be wiped.
	Releasing Phase = "Releasing"
	// Orphaned is a host whose machine has a configuration of ours, and which nobody has
	// claimed. No transition leads there, and none away: its TalosMachine has vanished.
	Orphaned Phase = "Orphaned"
)

// PhaseOf is the phase of a host.
func PhaseOf(host *infrav1.TalosHost) Phase {
	spec := &host.Spec
	switch {
	case spec.Release.Policy != "":
		return Releasing
	case spec.ConsumerRef.Name == "" && spec.Handover.ProviderID == "":
		return Free
	case spec.ConsumerRef.Name == "":
		return Orphaned
	case spec.Handover.ProviderID == "":
		return Claimed
	case spec.Handover.Progress == infrav1.HandoverRan:
		return Provisioned
	}

	return Provisioning
}

// States are the states that the status of a host of a phase may show.
func (p Phase) States() []infrav1.HostState {
	switch p {
	case Free:
		return []infrav1.HostState{infrav1.HostUnknown, infrav1.HostAvailable, infrav1.HostError}
	case Orphaned:
		return []infrav1.HostState{infrav1.HostError}
	case Claimed, Provisioning, Provisioned, Releasing:
	}

	return []infrav1.HostState{infrav1.HostState(p), infrav1.HostError}
}

// Record is a field of the spec of a TalosHost that belongs to the manager.
type Record string

// The records of a host.
const (
	ConsumerRef Record = "consumerRef"
	Handover    Record = "handover"
	Release     Record = "release"
	Quarantine  Record = "quarantine"
	Reprovision Record = "reprovision"
	Wiped       Record = "wiped"
)

// RecordsOf are the records of a host that are set.
func RecordsOf(spec *infrav1.TalosHostSpec) []Record {
	var set []Record
	for _, record := range []struct {
		name Record
		set  bool
	}{
		{ConsumerRef, spec.ConsumerRef != infrav1.ConsumerReference{}},
		{Handover, spec.Handover.ProviderID != "" || spec.Handover.Progress != ""},
		{Release, spec.Release.Policy != "" || !spec.Release.RequestedAt.IsZero()},
		{Quarantine, !spec.Quarantine.Since.IsZero()},
		{Reprovision, spec.Reprovision.ClusterName != "" || spec.Reprovision.Previous.ProviderID != ""},
		{Wiped, len(spec.Wiped) > 0},
	} {
		if record.set {
			set = append(set, record.name)
		}
	}

	return set
}

// Writer is a controller that writes records of hosts.
type Writer string

const (
	// Consumer is the TalosMachine controller: it follows the machine of a claimed host.
	Consumer Writer = "TalosMachine"
	// Owner is the TalosHost controller: it looks at free machines, and wipes machines.
	Owner Writer = "TalosHost"
)

// Rule says who may make a change of the records of a host, and in which phases.
type Rule struct {
	// Name is the name of the function that makes the change.
	Name string
	// Writer is who makes it.
	Writer Writer
	// Records are those that it writes.
	Records []Record
	// From are the phases in which it may be made, and To is the phase after it; empty
	// where the phase stays.
	From []Phase
	To   Phase
	// Seen are the states that the status must show then; empty means any.
	Seen []infrav1.HostState
	// When, if set, is what must hold beside that.
	When func(*infrav1.TalosHost) bool
	// Text is what has happened, where the phase changes.
	Text string
}

// Allows reports whether a host may make a change now.
func (r Rule) Allows(host *infrav1.TalosHost) bool {
	return slices.Contains(r.From, PhaseOf(host)) &&
		(len(r.Seen) == 0 || slices.Contains(r.Seen, host.Status.State)) && (r.When == nil || r.When(host))
}

// Rules is the table of who may write which record in which phase.
func Rules() []Rule {
	return slices.Concat(consumerRules(), ownerRules())
}

// consumerRules are those of the TalosMachine controller.
func consumerRules() []Rule {
	return []Rule{
		{
			Name: "Claim", Writer: Consumer, Records: []Record{ConsumerRef},
			From: []Phase{Free}, To: Claimed, Seen: []infrav1.HostState{infrav1.HostAvailable}, Text: "a TalosMachine claims it",
		},
		{
			Name: "RenewClaim", Writer: Consumer, Records: []Record{ConsumerRef},
			From: []Phase{Claimed, Provisioning, Provisioned, Releasing},
		},
		{
			Name: "GiveBack", Writer: Consumer, Records: []Record{ConsumerRef, Reprovision, Wiped},
			From: []Phase{Claimed}, To: Free, Text: "given back before it was configured",
		},
		{
			Name: "Disown", Writer: Consumer, Records: []Record{ConsumerRef, Reprovision},
			From: []Phase{Claimed}, To: Free, Text: "given back without a record of its hand-over",
		},
		{
			Name: "RecordHandover", Writer: Consumer, Records: []Record{Handover, Wiped},
			From: []Phase{Claimed, Provisioning}, To: Provisioning, Text: "the hand-over is recorded",
		},
		{
			Name: "TakeBackHandover", Writer: Consumer, Records: []Record{Handover, Wiped},
			From: []Phase{Provisioning}, To: Claimed, Text: "nothing was sent, for the machine is another host's",
		},
		{
			Name: "MarkRan", Writer: Consumer, Records: []Record{Handover},
			From: []Phase{Provisioning}, To: Provisioned, Text: "runs with its configuration",
		},
		{
			Name: "RequestRelease", Writer: Consumer, Records: []Record{Release, Reprovision},
			From: []Phase{Provisioning, Provisioned, Releasing}, To: Releasing, Text: "its TalosMachine goes",
			When: func(host *infrav1.TalosHost) bool { return PhaseOf(host) != Releasing || IsReprovisioned(host) },
		},
		{
			Name: "BeginReprovision", Writer: Consumer, Records: []Record{Release, Reprovision},
			From: []Phase{Provisioning, Provisioned}, To: Releasing, When: isNotReprovisioned, Text: "to be configured again",
		},
		{
			Name: "FinishReprovision", Writer: Consumer, Records: []Record{Reprovision},
			From: []Phase{Provisioned}, To: Provisioned, When: IsReprovisioned,
		},
		{
			Name: "StopWaiting", Writer: Consumer, Records: []Record{ConsumerRef},
			From: []Phase{Releasing}, To: Releasing, When: isNotReprovisioned,
		},
	}
}

// ownerRules are those of the TalosHost controller.
func ownerRules() []Rule {
	return []Rule{
		{
			Name: "Adopt", Writer: Owner, Records: []Record{Release},
			From: []Phase{Free}, To: Releasing, Text: "adoptionPolicy has it wiped",
			When: func(host *infrav1.TalosHost) bool { return host.Spec.AdoptionPolicy == infrav1.AdoptionWipeForeign },
		},
		{
			Name: "RecordReset", Writer: Owner, Records: []Record{Release},
			From: []Phase{Releasing}, To: Releasing,
		},
		{
			Name: "EndRelease", Writer: Owner, Records: []Record{ConsumerRef, Handover, Release, Quarantine, Wiped},
			From: []Phase{Releasing}, To: Free, When: isNotReprovisioned, Text: "proven wiped",
		},
		{
			Name: "ReturnWiped", Writer: Owner, Records: []Record{Handover, Release, Wiped},
			From: []Phase{Releasing}, To: Claimed, When: IsReprovisioned, Text: "proven wiped, to be configured again",
		},
		{
			Name: "EndQuarantine", Writer: Owner, Records: []Record{Quarantine},
			From: []Phase{Free}, To: Free,
		},
	}
}

func isNotReprovisioned(host *infrav1.TalosHost) bool {
	return !IsReprovisioned(host)
}

// ruleOf is the rule of a name; the zero Rule, which allows nothing, when there is none.
func ruleOf(name string) Rule {
	for _, rule := range Rules() {
		if rule.Name == name {
			return rule
		}
	}

	return Rule{}
}

// Observation is a change of the state of a host in which no record changes: what the
// status shows of the machine is another thing.
type Observation struct {
	From, To infrav1.HostState
	// Text is what was seen.
	Text string
}

// Observations are all of them: between the states of each phase.
func Observations() []Observation {
	const otherMachine, rightOne = "another machine answers", "the right one is back"

	return []Observation{
		{infrav1.HostUnknown, infrav1.HostAvailable, "answers in maintenance mode"},
		{infrav1.HostAvailable, infrav1.HostUnknown, "does not answer"},
		{infrav1.HostUnknown, infrav1.HostError, "configured by somebody else, another machine, or another host's"},
		{infrav1.HostError, infrav1.HostUnknown, "does not answer any more"},
		{infrav1.HostAvailable, infrav1.HostError, "another machine, or another boot than demanded"},
		{infrav1.HostError, infrav1.HostAvailable, "mended"},
		{infrav1.HostClaimed, infrav1.HostError, otherMachine},
		{infrav1.HostError, infrav1.HostClaimed, rightOne},
		{infrav1.HostProvisioning, infrav1.HostError, otherMachine},
		{infrav1.HostError, infrav1.HostProvisioning, rightOne},
		{infrav1.HostProvisioned, infrav1.HostError, otherMachine},
		{infrav1.HostError, infrav1.HostProvisioned, rightOne},
		{infrav1.HostReleasing, infrav1.HostError, "came back unwiped, or silent too long"},
		{infrav1.HostError, infrav1.HostReleasing, "told again"},
	}
}
