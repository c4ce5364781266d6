package plan

import (
	"maps"
	"slices"
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
	// BackUp begins a backup of etcd, before a Machine is replaced or deleted.
	BackUp Action = "BackUp"
	// WaitForBackup waits until it is complete.
	WaitForBackup Action = "WaitForBackup"
	// WaitForRestore waits for the TalosEtcdRestore that holds the control plane.
	WaitForRestore Action = "WaitForRestore"
	// RestoreEtcd bootstraps etcd on the recorded Machine from the snapshot that its node
	// was sent.
	RestoreEtcd Action = "RestoreEtcd"
	// ForgetBackup forgets the backup that was made before changes that have ended.
	ForgetBackup Action = "ForgetBackup"
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

	// DeleteWorkersFirst waits until the workers of the Cluster are gone.
	DeleteWorkersFirst Action = "DeleteWorkersFirst"
	// DeleteMachines deletes all control plane Machines that are not being
	// deleted, and drops our hook on each of them.
	DeleteMachines Action = "DeleteMachines"
	// RemoveFinalizer lets the control plane go.
	RemoveFinalizer Action = "RemoveFinalizer"
)

// Recheck says how soon a control plane is looked at again after a decision, when no
// event comes before.
type Recheck int

const (
	// RecheckByHealth means by the health of the control plane: seldom while it is
	// healthy, soon while a node is about to come up.
	RecheckByHealth Recheck = iota
	// RecheckNever means that only an event can change anything.
	RecheckNever
	// RecheckAtOnce is for what mostly ends within a second.
	RecheckAtOnce
	// RecheckSoon is for what ends within seconds, of which no event tells.
	RecheckSoon
	// RecheckLater is for what takes its time.
	RecheckLater
)

// rechecks are all actions, and how soon a control plane is looked at again after each.
func rechecks() map[Action]Recheck {
	return map[Action]Recheck{
		WaitForClusterDeletion: RecheckNever,
		WaitForInfrastructure:  RecheckNever,
		WaitForEndpoint:        RecheckNever,
		CreateMachine:          RecheckNever,
		HandOver:               RecheckNever,
		DeleteMachine:          RecheckNever,
		RemediateMachine:       RecheckNever,
		ReleaseHook:            RecheckNever,
		RemoveFinalizer:        RecheckNever,

		LeaveEtcd:    RecheckAtOnce,
		WaitForLeave: RecheckAtOnce,

		RecordBootstrapIntent:  RecheckSoon,
		Bootstrap:              RecheckSoon,
		RecordBootstrapped:     RecheckSoon,
		RecordInitialized:      RecheckSoon,
		RestartNode:            RecheckSoon,
		RemoveMember:           RecheckSoon,
		BackUp:                 RecheckSoon,
		WaitForBackup:          RecheckSoon,
		WaitForRestore:         RecheckSoon,
		RestoreEtcd:            RecheckSoon,
		WaitForMachineDeletion: RecheckSoon,
		// Workers are not watched: there may be many, and they take a while.
		DeleteWorkersFirst: RecheckSoon,

		DeleteMachines: RecheckLater,

		WaitForCertificates:    RecheckByHealth,
		WaitForPreflight:       RecheckByHealth,
		WaitForMachine:         RecheckByHealth,
		WaitForEndpointSilence: RecheckByHealth,
		WaitForOverride:        RecheckByHealth,
		WaitForEtcd:            RecheckByHealth,
		WaitForAPIServer:       RecheckByHealth,
		ApplyManifests:         RecheckByHealth,
		ForgetBackup:           RecheckByHealth,
		Stable:                 RecheckByHealth,
		Refuse:                 RecheckByHealth,
	}
}

// Actions are all actions, sorted.
func Actions() []Action { return slices.Sorted(maps.Keys(rechecks())) }
