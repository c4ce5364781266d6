// Package plan decides what to do next about a control plane. Decide and
// DecideDelete are pure functions over facts; what they decide has a name and a
// reason, and is carried out elsewhere.
package plan

import (
	"slices"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// Action names what is to be done, or waited for.
type Action string

const (
	// WaitForClusterDeletion starts nothing, because the Cluster is being
	// deleted and will have the control plane deleted.
	WaitForClusterDeletion Action = "WaitForClusterDeletion"
	// WaitForInfrastructure waits for the Cluster's infrastructure.
	WaitForInfrastructure Action = "WaitForInfrastructure"
	// WaitForEndpoint waits for the Cluster's control plane endpoint.
	WaitForEndpoint Action = "WaitForEndpoint"
	// WaitForCertificates waits for the secrets of the cluster.
	WaitForCertificates Action = "WaitForCertificates"
	// CreateMachine creates one more Machine with its infrastructure machine and
	// its TalosConfig. All but the first are held back from joining until
	// HandOver.
	CreateMachine Action = "CreateMachine"
	// WaitForPreflight waits until the control plane is in a state in which one
	// more member may join etcd, or one may leave it.
	WaitForPreflight Action = "WaitForPreflight"
	// HandOver lets a Machine have its configuration, with which it joins.
	HandOver Action = "HandOver"
	// WaitForMachine waits for a Machine to be provisioned, or for its node to
	// answer.
	WaitForMachine Action = "WaitForMachine"
	// DeleteMachine deletes a Machine: an outdated one, or one too many.
	DeleteMachine Action = "DeleteMachine"
	// RemediateMachine deletes a Machine that is to be remediated.
	RemediateMachine Action = "RemediateMachine"
	// LeaveEtcd asks the node of a Machine that is being deleted to leave etcd.
	LeaveEtcd Action = "LeaveEtcd"
	// WaitForLeave waits until it has.
	WaitForLeave Action = "WaitForLeave"
	// RemoveMember removes a member from etcd through another one.
	RemoveMember Action = "RemoveMember"
	// ReleaseHook takes our pre-terminate hook from a Machine that is being
	// deleted.
	ReleaseHook Action = "ReleaseHook"
	// WaitForMachineDeletion waits for a Machine that is being deleted.
	WaitForMachineDeletion Action = "WaitForMachineDeletion"
	// RecordBootstrapIntent records on which Machine etcd will be bootstrapped.
	RecordBootstrapIntent Action = "RecordBootstrapIntent"
	// Bootstrap bootstraps etcd on the recorded Machine.
	Bootstrap Action = "Bootstrap"
	// RestartNode boots the node anew on whose Machine etcd was bootstrapped, and was
	// stopped before it came up.
	RestartNode Action = "RestartNode"
	// WaitForEndpointSilence waits until nothing answers at the control plane
	// endpoint, or for a look at it.
	WaitForEndpointSilence Action = "WaitForEndpointSilence"
	// WaitForOverride waits for a person to say where etcd may be bootstrapped.
	WaitForOverride Action = "WaitForOverride"
	// WaitForEtcd waits for etcd to come up.
	WaitForEtcd Action = "WaitForEtcd"
	// RecordBootstrapped records that etcd was seen running.
	RecordBootstrapped Action = "RecordBootstrapped"
	// RecordInitialized records that the API server has answered.
	RecordInitialized Action = "RecordInitialized"
	// WaitForAPIServer waits for the API server to answer for the first time.
	WaitForAPIServer Action = "WaitForAPIServer"
	// ApplyManifests brings Talos' own manifests in the cluster to the version of the
	// Machines.
	ApplyManifests Action = "ApplyManifests"
	// Stable means that there is nothing to do.
	Stable Action = "Stable"
	// Refuse means that nothing is done, because the situation is not one that
	// this release can handle.
	Refuse Action = "Refuse"
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
	// Replaces tells that the Machine to delete is well, so that it only goes when
	// another can be made.
	Replaces bool
	// Left tells that etcd is rid of the Machine, for ReleaseHook.
	Left bool
	// Reason is the reason of condition Initialized while the control plane is
	// not initialized.
	Reason string
	// Message says in a sentence what is waited for, and what a person can do.
	// It holds no counter, time or address.
	Message string
}

// IsDeparture tells that an etcd member is to go, or the Machine that has none any more.
func (d Decision) IsDeparture() bool {
	return slices.Contains([]Action{LeaveEtcd, RemoveMember, ReleaseHook}, d.Action)
}

// Decide says what to do next. It decides one thing at a time, and rather waits
// than acts on what is not known.
func Decide(facts Facts) Decision {
	for _, rule := range rules() {
		if decision := rule(facts); decision != nil {
			return *decision
		}
	}

	return Decision{Action: Stable, Reason: controlplanev1.InitializedReason}
}

// rules are what Decide goes through; the first that has something to say
// decides. docs/kinds/taloscontrolplane.md has them as a table.
func rules() []func(Facts) *Decision {
	return []func(Facts) *Decision{
		decideCluster, decideFirst, decideUse, decideStrangers, decideDepartures, decideRemediation, decideNewFirst, decideCertificates,
		decideEtcd, decideReplicas, decideNodes, decideStrangersWait, decideManifests,
	}
}

// decideCluster is about what the control plane needs from others.
func decideCluster(facts Facts) *Decision {
	begun := facts.Initialized || facts.Intent != nil
	switch {
	case facts.ClusterDeleting:
		return &Decision{Action: WaitForClusterDeletion, Reason: controlplanev1.NotInitializedReason,
			Message: "The Cluster is being deleted"}
	case facts.ForeignMachines:
		return &Decision{Action: Refuse, Reason: controlplanev1.ForeignMachinesReason,
			Message: "The Cluster has control plane Machines that do not belong to this TalosControlPlane; delete them, or the TalosControlPlane"}
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
	case facts.Misfit != "":
		return &Decision{Action: Refuse, Reason: controlplanev1.InfrastructureMismatchReason,
			Message: "No Machine is created: " + facts.Misfit}
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
