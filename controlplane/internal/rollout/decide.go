// Package rollout decides what to do next about a control plane. Decide and
// DecideDelete are pure functions over facts; what they decide has a name and a
// reason, and is carried out elsewhere.
package rollout

import (
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
	// more member may join etcd.
	WaitForPreflight Action = "WaitForPreflight"
	// HandOver lets a Machine have its configuration, with which it joins.
	HandOver Action = "HandOver"
	// WaitForMachine waits for a Machine to be provisioned, or for its node to
	// answer.
	WaitForMachine Action = "WaitForMachine"
	// WaitForMachineDeletion waits for a Machine that is being deleted.
	WaitForMachineDeletion Action = "WaitForMachineDeletion"
	// RecordBootstrapIntent records on which Machine etcd will be bootstrapped.
	RecordBootstrapIntent Action = "RecordBootstrapIntent"
	// Bootstrap bootstraps etcd on the recorded Machine.
	Bootstrap Action = "Bootstrap"
	// WaitForEndpointSilence waits until nothing answers at the control plane
	// endpoint, or for a look at it.
	WaitForEndpointSilence Action = "WaitForEndpointSilence"
	// WaitForOverride waits for a person to say where etcd may be bootstrapped.
	WaitForOverride Action = "WaitForOverride"
	// WaitForEtcd waits for etcd to come up.
	WaitForEtcd Action = "WaitForEtcd"
	// RecordBootstrapped records that etcd was seen running.
	RecordBootstrapped Action = "RecordBootstrapped"
	// WaitForAPIServer waits for the API server to answer for the first time.
	WaitForAPIServer Action = "WaitForAPIServer"
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
	// Reason is the reason of condition Initialized while the control plane is
	// not initialized.
	Reason string
	// Message says in a sentence what is waited for, and what a person can do.
	// It holds no counter, time or address.
	Message string
}

// CertificatesState is the state of the secrets of a cluster.
type CertificatesState int

const (
	// CertificatesMissing means that the secrets bundle is not there.
	CertificatesMissing CertificatesState = iota
	// CertificatesPresent means that it is there, and is the one with which the
	// cluster was bootstrapped, if it was.
	CertificatesPresent
	// CertificatesChanged means that it is another one.
	CertificatesChanged
)

// MachineFacts are what is known about one control plane Machine.
type MachineFacts struct {
	// Name is the Machine's name.
	Name string
	// ProviderID is the Machine's provider ID; empty until it has one.
	ProviderID string
	// Provisioned tells that the Machine's infrastructure is provisioned and
	// has an address.
	Provisioned bool
	// Deleting tells that the Machine is being deleted.
	Deleting bool
	// Answers tells that the node answered through the Talos API.
	Answers bool
	// EtcdData tells whether the node has etcd data.
	EtcdData health.EtcdData
	// MemberProblem says in a sentence why the node's etcd member is not up;
	// empty when it is.
	MemberProblem string
	// ComponentProblems are sentences about the components of the control plane
	// that run on the node and are not healthy, or not known to be.
	ComponentProblems []string
	// Held tells that the Machine is held back: it has no configuration yet, and
	// so never was an etcd member.
	Held bool
	// NameInUse tells that the Machine is held back, and that an etcd member of
	// another machine has its name.
	NameInUse bool
}

// Facts are what is known about a control plane that is not being deleted.
type Facts struct {
	// ClusterDeleting tells that the Cluster is being deleted.
	ClusterDeleting bool
	// InfrastructureProvisioned tells that the Cluster's infrastructure is.
	InfrastructureProvisioned bool
	// EndpointSet tells that the Cluster has a control plane endpoint.
	EndpointSet bool
	// ForeignMachines tells that the Cluster has control plane Machines that
	// do not belong to this control plane.
	ForeignMachines bool
	// Replicas is the wanted number of Machines.
	Replicas int32
	// Certificates is the state of the secrets of the cluster.
	Certificates CertificatesState
	// Initialized tells that the API server has answered before.
	Initialized bool
	// Intent is the recorded bootstrap intent; nil when there is none.
	Intent *controlplanev1.BootstrapIntent
	// Override is the name of the Machine that a person allows for a new
	// bootstrap; empty when there is none.
	Override string
	// Machines are all control plane Machines, also those being deleted, in the
	// order of their names.
	Machines []MachineFacts
	// APIServer is what answers at the control plane endpoint.
	APIServer health.APIServerState
	// EtcdProblems are sentences about what is wrong with etcd as a whole.
	EtcdProblems []string
	// VersionPending tells that the topology of the Cluster is about to bring
	// another version.
	VersionPending bool
}

// Decide says what to do next. It decides one thing at a time, and rather waits
// than acts on what is not known.
func Decide(facts Facts) Decision {
	for _, rule := range []func(Facts) *Decision{decideCluster, decideMachines, decideEtcd, decideScale, decideNodes} {
		if decision := rule(facts); decision != nil {
			return *decision
		}
	}

	return Decision{Action: Stable, Reason: controlplanev1.InitializedReason}
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

// decideMachines is about the Machines and whether their nodes can be asked.
func decideMachines(facts Facts) *Decision {
	if len(facts.Machines) == 0 {
		return &Decision{Action: CreateMachine, Reason: controlplanev1.WaitingForMachineReason,
			Message: "Creating the first control plane Machine"}
	}
	if len(facts.Machines) > int(facts.Replicas) && !anyDeleting(facts.Machines) {
		return &Decision{Action: Refuse, Reason: controlplanev1.UnsupportedReason,
			Message: "There are more control plane Machines than wanted, and this release does not remove any; set spec.replicas to their number"}
	}
	for _, machine := range facts.Machines {
		if machine.Deleting {
			return &Decision{Action: WaitForMachineDeletion, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
				Message: "Waiting for Machine " + machine.Name + " to be deleted"}
		}
	}
	if facts.Certificates == CertificatesMissing {
		return &Decision{Action: WaitForCertificates, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "Waiting for the bootstrap provider to create the secrets of the cluster"}
	}

	return nil
}

func anyDeleting(machines []MachineFacts) bool {
	for _, machine := range machines {
		if machine.Deleting {
			return true
		}
	}

	return false
}

// decideEtcd is about the one bootstrap of etcd. It returns nil when etcd runs
// and that is recorded.
func decideEtcd(facts Facts) *Decision {
	for _, machine := range facts.Machines {
		if machine.EtcdData == health.EtcdDataPresent {
			return decideRunningEtcd(facts)
		}
	}
	for _, machine := range facts.Machines {
		if !machine.Held { // Else it has no configuration, and no etcd data either.
			if waiting := waitForNode(machine); waiting != nil {
				return waiting
			}
			continue
		}
		if machine.Name == facts.Override {
			return &Decision{Action: HandOver, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason,
				Message: "Handing Machine " + machine.Name + " its configuration, to bootstrap etcd on it"}
		}
	}

	return decideBootstrap(facts)
}

// waitForNode waits for a node that has not said whether it has etcd data, or
// nil when it has nothing to wait for.
func waitForNode(machine MachineFacts) *Decision {
	wait := func(message string) *Decision {
		return &Decision{Action: WaitForMachine, Machine: machine.Name, Reason: controlplanev1.WaitingForMachineReason, Message: message}
	}
	switch {
	case !machine.Provisioned || machine.ProviderID == "":
		return wait("Waiting for Machine " + machine.Name + " to be provisioned")
	case !machine.Answers:
		return wait("Waiting for the node of Machine " + machine.Name + " to answer through the Talos API")
	case machine.EtcdData == health.EtcdDataUnknown:
		return wait("Waiting for the node of Machine " + machine.Name + " to tell whether it has etcd data")
	default:
		return nil
	}
}

// decideBootstrap is about etcd when every control plane node has answered that
// it has no etcd data.
func decideBootstrap(facts Facts) *Decision {
	switch facts.APIServer {
	case health.APIServerSilent:
	case health.APIServerUnknown:
		return &Decision{Action: WaitForEndpointSilence, Reason: controlplanev1.WaitingForCertificatesReason,
			Message: "Waiting for the kubeconfig of the cluster, to look at the control plane endpoint before etcd is bootstrapped"}
	case health.APIServerStranger, health.APIServerNotReady, health.APIServerReady:
		return &Decision{Action: WaitForEndpointSilence, Reason: controlplanev1.EndpointInUseReason,
			Message: "Something answers at the control plane endpoint though no control plane node has etcd data; etcd is not bootstrapped beside it"}
	}

	if facts.Override != "" {
		return decideOverride(facts)
	}
	target := bootstrapTarget(facts.Machines)
	switch {
	case target == nil:
		return &Decision{Action: WaitForOverride, Reason: controlplanev1.EtcdDataLostReason,
			Message: "All control plane Machines wait to join an etcd cluster, and there is none; to begin a new one, name a Machine in the annotation " +
				controlplanev1.BootstrapOverrideAnnotation}
	case facts.Intent == nil && !facts.Initialized:
		return &Decision{Action: RecordBootstrapIntent, Machine: target.Name, Reason: controlplanev1.WaitingForEtcdReason,
			Message: "Bootstrapping etcd on Machine " + target.Name}
	case facts.Intent == nil || facts.Intent.Bootstrapped:
		return &Decision{Action: WaitForOverride, Reason: controlplanev1.EtcdDataLostReason,
			Message: "etcd was bootstrapped before and no control plane node has its data any more; to give the data up, name a Machine in the annotation " +
				controlplanev1.BootstrapOverrideAnnotation}
	}
	for _, machine := range facts.Machines {
		if !machine.Held && facts.Intent.Name == machine.Name && facts.Intent.ProviderID == machine.ProviderID {
			return &Decision{Action: Bootstrap, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Bootstrapping etcd on Machine " + machine.Name}
		}
	}

	return &Decision{Action: WaitForOverride, Reason: controlplanev1.BootstrapIntentOfOtherMachineReason,
		Message: "etcd was to be bootstrapped on Machine " + facts.Intent.Name + ", which is not there any more; to bootstrap it elsewhere, name a Machine in the annotation " +
			controlplanev1.BootstrapOverrideAnnotation}
}

// decideOverride is about a bootstrap that a person allows on a named Machine.
func decideOverride(facts Facts) *Decision {
	for _, machine := range facts.Machines {
		if machine.Name == facts.Override {
			return &Decision{Action: RecordBootstrapIntent, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Bootstrapping etcd on Machine " + machine.Name}
		}
	}

	return &Decision{Action: WaitForOverride, Reason: controlplanev1.BootstrapIntentOfOtherMachineReason,
		Message: "The annotation " + controlplanev1.BootstrapOverrideAnnotation + " names a Machine that is not a control plane Machine of this cluster"}
}

// bootstrapTarget is the first Machine that has a configuration; nil when there
// is none.
func bootstrapTarget(machines []MachineFacts) *MachineFacts {
	for i := range machines {
		if !machines[i].Held {
			return &machines[i]
		}
	}

	return nil
}

// decideRunningEtcd is about etcd when at least one node has its data. It
// returns nil once it is recorded that etcd runs and the API server has
// answered.
func decideRunningEtcd(facts Facts) *Decision {
	if facts.Intent == nil || !facts.Intent.Bootstrapped {
		for _, machine := range facts.Machines {
			if machine.Answers && machine.MemberProblem == "" {
				return &Decision{Action: RecordBootstrapped, Machine: bootstrappedMachine(facts), Reason: controlplanev1.WaitingForAPIServerReason,
					Message: "Waiting for the API server to answer at the control plane endpoint"}
			}
		}

		return decideNodes(facts)
	}
	if !facts.Initialized && facts.APIServer != health.APIServerReady {
		if waiting := decideNodes(facts); waiting != nil {
			return waiting
		}
		return &Decision{Action: WaitForAPIServer, Reason: controlplanev1.WaitingForAPIServerReason,
			Message: "Waiting for the API server to answer at the control plane endpoint"}
	}

	return nil
}

// decideNodes waits for nodes that do not answer, or whose etcd member is not
// up.
func decideNodes(facts Facts) *Decision {
	for _, machine := range facts.Machines {
		if machine.Held {
			continue
		}
		if waiting := waitForNode(machine); waiting != nil {
			return waiting
		}
		if machine.MemberProblem != "" {
			return &Decision{Action: WaitForEtcd, Machine: machine.Name, Reason: controlplanev1.WaitingForEtcdReason,
				Message: "Waiting for etcd on Machine " + machine.Name + ": " + machine.MemberProblem}
		}
	}

	return nil
}

// bootstrappedMachine is the Machine to name in the record that etcd runs: the
// one named already, when it is there.
func bootstrappedMachine(facts Facts) string {
	for _, machine := range facts.Machines {
		if facts.Intent != nil && facts.Intent.Name == machine.Name && facts.Intent.ProviderID == machine.ProviderID {
			return machine.Name
		}
	}

	return facts.Machines[0].Name
}
