package plan

import (
	"slices"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// CertificatesState is the state of the secrets of a cluster.
type CertificatesState int

const (
	// CertificatesUnknown means that nobody has looked.
	CertificatesUnknown CertificatesState = iota
	// CertificatesMissing means that the secrets bundle is not there.
	CertificatesMissing
	// CertificatesPresent means that it is there, and is the one with which the
	// cluster was bootstrapped, if it was.
	CertificatesPresent
	// CertificatesChanged means that it is another one.
	CertificatesChanged
)

// HookState is how far the deletion of a Machine is for our pre-terminate hook.
type HookState int

const (
	// HookGone means that the Machine does not have our hook.
	HookGone HookState = iota
	// HookEarly means that something comes before our hook: the drain, the
	// volumes, or the hook of somebody else.
	HookEarly
	// HookDue means that only our hook holds the Machine.
	HookDue
	// HookAbandoned means that our hook goes whatever etcd says: the whole Cluster goes,
	// or a person wants it.
	HookAbandoned
)

// MachineFacts are what is known about one control plane Machine.
type MachineFacts struct {
	// Name is the Machine's name.
	Name string
	// Created is when the Machine was created.
	Created time.Time
	// ProviderID is the Machine's provider ID; empty until it has one.
	ProviderID string
	// FailureDomain is where the Machine is; empty when nobody knows.
	FailureDomain string
	// Provisioned reports whether the Machine's infrastructure is provisioned and
	// has an address.
	Provisioned bool
	// Held reports whether the Machine is held back: it has no configuration yet, and
	// so never was an etcd member.
	Held bool
	// Configured reports whether the Machine has, or may have, a configuration.
	Configured bool
	// NameInUse reports whether the Machine is held back, and an etcd member of
	// another machine has its name.
	NameInUse bool
	// Outdated reports whether the Machine is not as it would be made now.
	Outdated bool
	// Marked reports whether a person or an autoscaler wants this Machine deleted
	// first.
	Marked bool

	// Answers reports whether the node answered through the Talos API.
	Answers bool
	// EtcdData reports whether the node has etcd data.
	EtcdData health.EtcdData
	// MemberID is the ID of the node's etcd member, as the node said now or when
	// it last did; 0 when it never did.
	MemberID uint64
	// Addresses are the hosts of peer URLs that can only be the Machine's, until it is
	// let go and another has its host: those at which its node says that its etcd is,
	// or, of one that does not answer, those that the Machine has. Empty while nobody
	// knows.
	Addresses []string
	// Bootstrapping reports whether the node was asked to bootstrap etcd, and something
	// may come of it still.
	Bootstrapping bool
	// EtcdStopped reports whether somebody stopped the node's etcd, which starts again at the
	// next boot only.
	EtcdStopped bool
	// Restarting reports whether the node was asked to boot anew, and may be about to.
	Restarting bool
	// MemberProblem says in a sentence why the node's etcd member is not up;
	// empty when it is.
	MemberProblem string
	// ComponentProblems are sentences about the components of the control plane
	// that run on the node and are not healthy, or not known to be.
	ComponentProblems []string

	// Deleting reports whether the Machine is being deleted.
	Deleting bool
	// Hook is how far that is.
	Hook HookState
	// HookWaitsFor says in words what comes before our hook.
	HookWaitsFor string
	// EtcdSilentFor is for how long the node's etcd has not answered, or has not
	// followed the leader of the others.
	EtcdSilentFor time.Duration
	// Leaving reports whether the node was asked to leave etcd and has not answered.
	Leaving bool
	// LeaveStopped reports whether such a call was taken back a moment ago: etcd may still
	// carry it out.
	LeaveStopped bool
	// EtcdUpFor is for how long the node's etcd has been up, or coming up, since it was
	// started last; 0 when nobody knows.
	EtcdUpFor time.Duration

	// Unhealthy reports whether a MachineHealthCheck, or a person, wants the Machine
	// remediated, and that this is ours to do.
	Unhealthy bool
	// Retries is which remediation the Machine itself replaced; nil when none.
	Retries *controlplanev1.RemediationRecord
}

// memberUnknown reports whether nobody knows which member is the Machine's: it may have
// joined, and its node never said so. One that says that it has no data has none but
// at its own address.
func (m MachineFacts) memberUnknown() bool {
	return m.Configured && m.MemberID == 0 && !m.isEmpty()
}

// isEmpty reports whether the node says that it has no etcd data, and it is known
// where its etcd would be: a node is listed as a learner before it has data.
func (m MachineFacts) isEmpty() bool {
	return m.Answers && m.EtcdData == health.EtcdDataAbsent && len(m.Addresses) > 0
}

// hookReleased reports whether nothing of ours holds the Machine any more, or will not after this
// decision: its host is wiped, and the next one's, before the Machine is gone.
func (m MachineFacts) hookReleased() bool {
	return m.Deleting && (m.Hook == HookGone || m.Hook == HookAbandoned)
}

// abandoned are the Machines whose hook goes whatever etcd says.
func (f Facts) abandoned() []string {
	var names []string
	for _, machine := range f.leaving() {
		if machine.Hook == HookAbandoned {
			names = append(names, machine.Name)
		}
	}

	return names
}

// isAt reports whether a member has the Machine's address and may be its: a node without
// data has not given a member another name than its own, so that was left behind.
func (m MachineFacts) isAt(member etcd.Member) bool {
	return member.IsAt(m.Addresses) && (!m.isEmpty() || member.Hostname == "" || member.Hostname == m.Name)
}

// joined reports whether the Machine's etcd member votes and follows the leader.
func (m MachineFacts) joined(facts Facts) bool {
	return m.MemberID != 0 && facts.Etcd.Answers(m.MemberID)
}

// healthy reports whether nothing is known to be wrong with the Machine.
func (m MachineFacts) healthy() bool {
	return len(machineProblems(m)) == 0
}

// RemediationFacts are what is known about earlier remediations, and their
// rules.
type RemediationFacts struct {
	// InProgress is the remediation whose replacement does not exist yet; nil
	// when there is none.
	InProgress *controlplanev1.RemediationRecord
	// MaxRetry limits the retries; nil means no limit.
	MaxRetry *int32
	// RetryPeriod is the time between two retries.
	RetryPeriod time.Duration
	// MinHealthyPeriod is the time after which a failure starts a new count.
	MinHealthyPeriod time.Duration
	// Now is the present time.
	Now time.Time
}

// Facts are what is known about a control plane that is not being deleted.
type Facts struct {
	// ClusterDeleting reports whether the Cluster is being deleted.
	ClusterDeleting bool
	// InfrastructureProvisioned reports whether the Cluster's infrastructure is.
	InfrastructureProvisioned bool
	// EndpointSet reports whether the Cluster has a control plane endpoint.
	EndpointSet bool
	// ForeignMachines are the names of control plane Machines of the Cluster that do not
	// belong to this control plane.
	ForeignMachines []string
	// Restore is the restore of etcd that holds the control plane; its zero value says that
	// none does.
	Restore controlplanev1.RestoreRecord
	// TemplateMismatch says in words why a Machine made now could not be part of this control
	// plane; empty when it could.
	TemplateMismatch string
	// TemplateMissing says in words that the infrastructure machine template does not
	// exist; empty when it does.
	TemplateMissing string
	// OrphanFor is for how long members that belong to no Machine have been known to,
	// by their IDs.
	OrphanFor map[uint64]time.Duration
	// Replicas is the wanted number of Machines.
	Replicas int32
	// RollingUpdate reports whether outdated Machines are replaced; else somebody
	// deletes them.
	RollingUpdate bool
	// MaxSurge is how many Machines there may be beyond Replicas during a rolling
	// update, 0 or 1.
	MaxSurge int32
	// Certificates is the state of the secrets of the cluster.
	Certificates CertificatesState
	// Initialized reports whether the API server has answered before.
	Initialized bool
	// Intent is the recorded bootstrap intent; nil when there is none.
	Intent *controlplanev1.BootstrapIntent
	// IntentWiped reports whether nothing is left of the Machine in the intent: its host
	// is proven wiped, or its Pod and data are gone.
	IntentWiped bool
	// Override is the name of the Machine that a person allows for a new
	// bootstrap; empty when there is none.
	Override string
	// Machines are all control plane Machines, also those being deleted, in the
	// order of their names.
	Machines []MachineFacts
	// APIServer is what answers at the control plane endpoint.
	APIServer health.APIServerState
	// Etcd is etcd as a whole, as far as nodes answer.
	Etcd etcd.Health
	// NamelessFor is for how long members have been listed without a name, by their ID:
	// their etcd has not started (yet).
	NamelessFor map[uint64]time.Duration
	// LeaveTimeout is how long a departing node's etcd may be silent before its
	// member is removed through another one.
	LeaveTimeout time.Duration
	// VersionPending reports whether the topology of the Cluster is about to bring
	// another version.
	VersionPending bool
	// ManifestsPending reports whether Talos' own manifests in the cluster are those of
	// another version.
	ManifestsPending bool
	// Backup is about the backup before what may cost the data of etcd.
	Backup BackupFacts
	// Remediation is about the remediation of Machines.
	Remediation RemediationFacts
}

// staying are the Machines that are not being deleted.
func (f Facts) staying() []MachineFacts {
	return slices.DeleteFunc(slices.Clone(f.Machines), func(machine MachineFacts) bool { return machine.Deleting })
}

// leaving are the Machines that are being deleted.
func (f Facts) leaving() []MachineFacts {
	return slices.DeleteFunc(slices.Clone(f.Machines), func(machine MachineFacts) bool { return !machine.Deleting })
}

// Orphans are the members that belong to no Machine, neither by their ID nor
// by their address. Nothing is known while any may be the member of a Machine that
// never told which one is its, or of one that joins at this moment.
func (f Facts) Orphans() []etcd.Member {
	if _, doubt := f.memberUnknown(""); doubt {
		return nil
	}

	return slices.DeleteFunc(f.membersOfNone(f.Machines), f.mayBeJoining)
}

// mayBeJoining reports whether a member may be that of a Machine which joins at this moment:
// etcd lists it before its node has data, and so without a name. Nothing that is known
// of its address speaks against that: the node may have got another one since. What
// stays without a name for long was left behind, and would keep others from joining.
func (f Facts) mayBeJoining(member etcd.Member) bool {
	return member.Learner && member.Hostname == "" && f.NamelessFor[member.ID] < f.LeaveTimeout && slices.ContainsFunc(f.Machines, f.mayJoin)
}

// mayJoin reports whether the node of a Machine may join etcd at any moment.
func (f Facts) mayJoin(machine MachineFacts) bool {
	_, found := f.member(machine)

	return machine.Configured && !machine.hookReleased() && machine.EtcdData != health.EtcdDataPresent && !found
}

// memberUnknown is a Machine, of those of another name, of which nobody knows which
// member is its; false when there is none.
func (f Facts) memberUnknown(besides string) (MachineFacts, bool) {
	i := slices.IndexFunc(f.Machines, func(machine MachineFacts) bool { return machine.Name != besides && machine.memberUnknown() })
	if i < 0 {
		return MachineFacts{}, false
	}

	return f.Machines[i], true
}

// membersOfNone are the members that belong to none of these Machines. What is at the
// address of one that is held back was left behind there, and would keep it from
// joining: etcd takes an address once.
func (f Facts) membersOfNone(machines []MachineFacts) []etcd.Member {
	return slices.DeleteFunc(slices.Clone(f.Etcd.Members), func(member etcd.Member) bool {
		return slices.ContainsFunc(machines, func(machine MachineFacts) bool {
			return machine.MemberID == member.ID || !machine.Held && machine.isAt(member)
		})
	})
}

// member is the member of a Machine: by its ID, else by its address when the
// member is no other Machine's, else by elimination when it is a learner. False
// when none in the list is known to be its.
func (f Facts) member(machine MachineFacts) (etcd.Member, bool) {
	if machine.MemberID != 0 {
		if member, listed := f.Etcd.Member(machine.MemberID); listed {
			return member, true
		}
	}
	for _, member := range f.Etcd.Members {
		if machine.isAt(member) && !f.belongsToOther(member, machine) {
			return member, true
		}
	}

	return f.onlyLearnerLeft(machine)
}

// onlyLearnerLeft is the learner that is the member of a Machine by elimination: of
// no other Machine nobody knows which member is its, and no other member is left. Its
// node has died before it could tell.
func (f Facts) onlyLearnerLeft(machine MachineFacts) (etcd.Member, bool) {
	others := slices.DeleteFunc(slices.Clone(f.Machines), func(other MachineFacts) bool { return other.Name == machine.Name })
	left := f.membersOfNone(others)
	_, doubt := f.memberUnknown(machine.Name)
	if doubt || !machine.memberUnknown() || len(left) != 1 || !left[0].Learner {
		return etcd.Member{}, false
	}

	return left[0], true
}

// belongsToOther reports whether a member is another Machine's than the one at whose address
// it is: by its ID, or because the host was let go and is the other's by now.
func (f Facts) belongsToOther(member etcd.Member, machine MachineFacts) bool {
	return slices.ContainsFunc(f.Machines, func(other MachineFacts) bool {
		return other.Name != machine.Name && (other.MemberID == member.ID || machine.hookReleased() && !other.hookReleased() && other.isAt(member))
	})
}

// hasNoMember reports whether a Machine is known to have no member: it never had a
// configuration, or the majority knows none that is, or may be, its.
func (f Facts) hasNoMember(machine MachineFacts) bool {
	if !machine.Configured {
		return true
	}
	if !f.Etcd.HasQuorum() {
		return false
	}
	if _, found := f.member(machine); found {
		return false
	}

	return machine.MemberID != 0 || machine.isEmpty() ||
		!slices.ContainsFunc(f.Etcd.Members, func(member etcd.Member) bool { return !f.belongsToOther(member, machine) })
}

// LostItsMember reports whether somebody removed the etcd member of a Machine that stays:
// its node has the data, and the majority knows no member that is, or may be, its.
// etcd never takes that data back.
func (f Facts) LostItsMember(name string) bool {
	return f.Initialized && slices.ContainsFunc(f.staying(), func(machine MachineFacts) bool {
		return machine.Name == name && machine.EtcdData == health.EtcdDataPresent && machine.MemberProblem != "" &&
			machine.MemberID != 0 && f.hasNoMember(machine)
	})
}

// EtcdProblems are sentences about what is wrong with etcd as a whole.
func (f Facts) EtcdProblems() []string {
	problems := slices.Clone(f.Etcd.Problems)
	for _, member := range f.Orphans() {
		problems = append(problems, "member "+etcd.Describe(member)+" belongs to no Machine")
	}

	return problems
}
