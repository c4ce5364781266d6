// Package plan decides what to do next about a control plane. Decide and
// DecideDelete are pure functions over facts; what they decide has a name and a
// reason, and is carried out elsewhere.
package plan

import (
	"slices"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// Decision is what is to be done, and why.
type Decision struct {
	// Action is what is to be done, or waited for.
	Action Action
	// Machine is the name of the Machine that the action is about; empty when
	// it is about none.
	Machine string
	// MemberID is the etcd member that the action is about; 0 when it is about
	// none.
	MemberID uint64
	// Replaces reports whether the Machine to delete is well, so that it is only deleted
	// when another can be made.
	Replaces bool
	// Risky reports whether the data of etcd may be lost by it, so that a backup comes
	// before.
	Risky bool
	// Left reports, for ReleaseHook, whether etcd is known to have no member of the
	// Machine.
	Left bool
	// Abandons are the Machines whose hook goes whatever etcd says, besides the action
	// and before it.
	Abandons []string
	// Recheck says how soon the control plane is looked at again.
	Recheck Recheck
	// Reason is the reason of condition Initialized while the control plane is
	// not initialized.
	Reason string
	// Message says in a sentence what is waited for, and what a person can do.
	// It holds no counter, time or address.
	Message string
}

// IsDeparture reports whether an etcd member is to leave, or the Machine of one that has
// left.
func (d Decision) IsDeparture() bool {
	return slices.Contains([]Action{LeaveEtcd, RemoveMember, ReleaseHook}, d.Action)
}

// WaitsForPerson reports whether nothing goes on before a person has acted, or before the
// TalosEtcdRestore has ended that a person has made.
func (d Decision) WaitsForPerson() bool {
	return d.Reason == controlplanev1.EndpointInUseReason || slices.Contains([]Action{WaitForOverride, WaitForRestore, Refuse}, d.Action)
}

// Decide says what to do next. It decides one thing at a time, and rather waits
// than acts on what is not known.
func Decide(facts Facts) Decision {
	decision := Decision{Action: Stable, Reason: controlplanev1.InitializedReason}
	if first := firstOf(facts, rules()); first != nil {
		decision = *first
	}
	decision.Abandons = facts.abandoned()
	decision.Recheck = rechecks()[decision.Action]

	return decision
}

// NeedsEndpoint reports whether what answers at the control plane endpoint has a say in
// the decision. It has none in a departure once the cluster was in use.
func (f Facts) NeedsEndpoint() bool {
	f.APIServer = health.APIServerUnknown
	first := firstOf(f, rulesOfMembers())

	return !f.Initialized || first == nil || !first.IsDeparture()
}

// rules are what Decide goes through; the first that has something to say
// decides. docs/kinds/taloscontrolplane.md has them as a table.
func rules() []func(Facts) *Decision {
	return append(rulesOfMembers(),
		decideRestore, decideRepair, decideNewFirst, decideCertificates, decideEtcd, decideChanges, decideNodes, decideOrphansWait, decideManifests)
}

// rulesOfMembers are the rules up to those by which members and Machines leave.
func rulesOfMembers() []func(Facts) *Decision {
	return []func(Facts) *Decision{decideCluster, decideFirst, decideInitialized, decideOrphans, decideDepartures}
}

// firstOf is what the first of the rules says that has something to say; nil when none has.
func firstOf(facts Facts, rules []func(Facts) *Decision) *Decision {
	for _, rule := range rules {
		if decision := rule(facts); decision != nil {
			return decision
		}
	}

	return nil
}

// decideCluster is about what the control plane needs from others.
func decideCluster(facts Facts) *Decision {
	begun := facts.Initialized || facts.Intent != nil
	switch {
	case facts.ClusterDeleting:
		return &Decision{Action: WaitForClusterDeletion, Reason: controlplanev1.NotInitializedReason,
			Message: "The Cluster is being deleted"}
	case len(facts.ForeignMachines) > 0:
		return &Decision{Action: Refuse, Reason: controlplanev1.ForeignMachinesReason,
			Message: "The Cluster has control plane Machines that do not belong to this TalosControlPlane: " + shortList(facts.ForeignMachines) +
				"; delete them, or the TalosControlPlane"}
	case !facts.InfrastructureProvisioned:
		return &Decision{Action: WaitForInfrastructure, Reason: controlplanev1.WaitingForClusterInfrastructureReason,
			Message: "Waiting for the infrastructure of the Cluster to be provisioned"}
	case !facts.EndpointSet:
		return &Decision{Action: WaitForEndpoint, Reason: controlplanev1.WaitingForControlPlaneEndpointReason,
			Message: "Waiting for the Cluster to have a spec.controlPlaneEndpoint"}
	case begun && facts.Certificates == CertificatesMissing:
		return &Decision{Action: WaitForCertificates, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "The secrets bundle of the cluster was lost; restore it"}
	case facts.Certificates == CertificatesChanged:
		return &Decision{Action: WaitForCertificates, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "The secrets bundle is not the one with which the cluster was bootstrapped; restore the original"}
	default:
		return nil
	}
}

// decideFirst is about the first Machine.
func decideFirst(facts Facts) *Decision {
	switch {
	case len(facts.Machines) > 0:
		return nil
	case facts.Restore.Restore != "" && facts.Certificates == CertificatesMissing:
		return waitForRestore(facts, "bring the secrets of the cluster")
	case facts.TemplateMismatch != "":
		return &Decision{Action: Refuse, Reason: controlplanev1.InfrastructureMismatchReason,
			Message: "No Machine is created: " + facts.TemplateMismatch}
	default:
		return &Decision{Action: CreateMachine, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Creating the first control plane Machine"}
	}
}

// decideNewFirst is about Machines that are all held back, because the first is gone
// before there was a cluster: one of them takes its place. Where nothing is known of
// what was, or was to be, bootstrapped on the first, none does (design D7).
func decideNewFirst(facts Facts) *Decision {
	begun := slices.ContainsFunc(facts.Machines, func(machine MachineFacts) bool { return !machine.Held })
	serves := facts.APIServer != health.APIServerSilent && facts.APIServer != health.APIServerUnknown
	staying := facts.staying()
	if begun || serves || len(staying) == 0 || facts.Initialized || facts.Override != "" || (facts.Intent != nil && !facts.IntentWiped) {
		return nil
	}

	return &Decision{Action: HandOver, Machine: staying[0].Name, Reason: controlplanev1.WaitingForMachineReason,
		Message: "Handing Machine " + staying[0].Name + " its configuration, in place of the first Machine, which is gone"}
}

// decideManifests is about Talos' own manifests in the cluster: they follow once all
// Machines are as wanted.
func decideManifests(facts Facts) *Decision {
	behind := func(machine MachineFacts) bool { return machine.Outdated || machine.Deleting || machine.Held }
	if !facts.ManifestsPending || facts.VersionPending || facts.APIServer != health.APIServerReady || slices.ContainsFunc(facts.Machines, behind) {
		return nil
	}

	return &Decision{Action: ApplyManifests, Reason: controlplanev1.InitializedReason,
		Message: "Bringing kube-proxy, CoreDNS and the like to the version of the control plane"}
}

// decideCertificates is about the secrets without which no node can be asked.
func decideCertificates(facts Facts) *Decision {
	if facts.Certificates == CertificatesMissing {
		return &Decision{Action: WaitForCertificates, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "Waiting for the bootstrap provider to create the secrets of the cluster"}
	}

	return nil
}
