package v1alpha1

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Conditions that several kinds share, and their reasons.
const (
	// ReadyCondition is true when the object is in working order.
	ReadyCondition = clusterv1.ReadyCondition
	// DeletingCondition is true while the object is being deleted.
	DeletingCondition = clusterv1.DeletingCondition

	// NotDeletingReason says that nobody has deleted the object.
	NotDeletingReason = clusterv1.NotDeletingReason
	// DeletingReason says that the object is being deleted.
	DeletingReason = clusterv1.DeletingReason
	// DeletedForMoveReason says that clusterctl deletes the object because it
	// has moved it to another management cluster. Nothing is done about it.
	DeletedForMoveReason = "DeletedForMove"
)

// Reasons of condition Ready of a TalosCluster.
const (
	// ClusterReadyReason says that the cluster has an endpoint.
	ClusterReadyReason = "Provisioned"
	// WaitingForControlPlaneEndpointReason says that neither the TalosCluster
	// nor the Cluster has an endpoint.
	WaitingForControlPlaneEndpointReason = "WaitingForControlPlaneEndpoint"
	// WaitingForTalosMachinesReason says that the TalosCluster waits for its
	// TalosMachines to be gone.
	WaitingForTalosMachinesReason = "WaitingForTalosMachines"
)

// Condition Allocated of a TalosMachine and its reasons.
const (
	// AllocatedCondition is true when the TalosMachine has a TalosHost, or its
	// Pod a node.
	AllocatedCondition = "Allocated"

	// HostClaimedReason says that the host is claimed.
	HostClaimedReason = "Claimed"
	// WaitingForClusterInfrastructureReason says that the infrastructure of the
	// cluster is not provisioned.
	WaitingForClusterInfrastructureReason = "WaitingForClusterInfrastructure"
	// WaitingForBootstrapDataReason says that there is no machine configuration.
	WaitingForBootstrapDataReason = "WaitingForBootstrapData"
	// WaitingForControlPlaneReason says that a host fits a worker, and is left to the
	// control plane of its Cluster, which is not initialized and has a TalosMachine
	// without a host, or none yet.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
	// NoHostFitsReason says that no TalosHost of the namespace can be claimed;
	// the message counts the hosts by what keeps them from it. Condition Ready
	// takes it over, and so does InfrastructureReady of the Machine.
	NoHostFitsReason = "NoHostFits"
	// ClaimingHostReason says that a host was chosen, and is being claimed.
	ClaimingHostReason = "ClaimingHost"
	// HostLostReason says that the host is gone, or belongs to another
	// TalosMachine now. The TalosMachine never gets another one.
	HostLostReason = "HostLost"
	// InvalidSelectorReason says that hostSelector is not valid.
	InvalidSelectorReason = "InvalidSelector"
)

// Condition ConfigurationApplied of a TalosMachine and its reasons.
const (
	// ConfigurationAppliedCondition is true when the machine has taken its
	// configuration.
	ConfigurationAppliedCondition = "ConfigurationApplied"

	// ConfigurationAppliedReason says that the machine has its configuration.
	ConfigurationAppliedReason = "Applied"
	// WaitingForHostReason says that there is no claimed host yet.
	WaitingForHostReason = "WaitingForHost"
	// WaitingForCredentialsReason says that the cluster's secrets bundle, from
	// which the admin client certificate of the host is made, is missing or invalid,
	// or that the Secret for that certificate cannot be written.
	WaitingForCredentialsReason = "WaitingForCredentials"
	// InstallDiskUnfitReason says that the machine configuration, with what the
	// host adds, names no disk of the machine, or several.
	InstallDiskUnfitReason = "InstallDiskUnfit"
	// OverlayFailedReason says that the host's patches or settings do not fit
	// into the machine configuration.
	OverlayFailedReason = "OverlayFailed"
	// ConfigurationRefusedReason says that Talos has refused the configuration.
	ConfigurationRefusedReason = "ConfigurationRefused"
	// FingerprintMismatchReason says that the maintenance certificate of the
	// machine is not the one that the TalosHost demands.
	FingerprintMismatchReason = "FingerprintMismatch"
	// ApplyingConfigurationReason says that the configuration is being applied. Of
	// condition Reprovisioning: that the machine is proven wiped, and gets its
	// configuration again.
	ApplyingConfigurationReason = "ApplyingConfiguration"
)

// Condition Running of a TalosMachine and its reasons.
const (
	// RunningCondition is true when the machine runs with its configuration.
	RunningCondition = "Running"

	// RunningReason says that the machine runs.
	RunningReason = "Running"
	// BootingReason says that the machine runs, but something is unmet: a
	// control plane node boots until etcd is bootstrapped.
	BootingReason = "Booting"
	// UnexpectedStageReason says that the machine is in a stage in which it
	// does not run, such as installing or rebooting.
	UnexpectedStageReason = "UnexpectedStage"
	// NotConfiguredReason says that the machine has no configuration yet. Condition
	// IdentityVerified has it too.
	NotConfiguredReason = "NotConfigured"
	// UnreachableReason says that the machine does not answer.
	UnreachableReason = "Unreachable"
	// HostRecordLostReason says that the machine has run, but that its TalosHost does
	// not record the configuration that it was given: the host was made anew, or
	// restored from an old backup. Nothing is sent to whoever answers there.
	HostRecordLostReason = "HostRecordLost"
	// ReturnedToMaintenanceReason says that the machine was found in
	// maintenance mode after it was given its configuration. It is not
	// configured again: delete the Machine, or let a MachineHealthCheck do it.
	ReturnedToMaintenanceReason = "ReturnedToMaintenance"
	// HostIdentityMismatchReason says that another machine answers. Nothing is
	// sent to it, and its TalosHost is in state Error.
	HostIdentityMismatchReason = "IdentityMismatch"
	// ForeignConfigurationReason says that the machine that answers belongs to another
	// cluster. Nothing is sent to it, and its TalosHost is in state Error.
	ForeignConfigurationReason = "ForeignConfiguration"
	// ClockSkewReason says that the machine answers, but that its clock and
	// that of the management cluster differ by more than ten minutes: they refuse
	// each other's certificates. Set the time servers of both.
	ClockSkewReason = "ClockSkew"
	// HostDuplicateReason says that another TalosHost in use stands for the same
	// machine. Nothing is sent to it.
	HostDuplicateReason = "Duplicate"
)

// Reasons of condition IdentityVerified of a TalosMachine. The condition is true
// when the machine proved its identity before it got its configuration, and with it
// keys of the cluster; unknown when it could not, because maintenance mode is
// anonymous; false when there is a sign that it was the wrong machine.
const (
	// NoFingerprintReason says that the TalosHost had no
	// maintenanceCertFingerprint when the configuration was applied.
	NoFingerprintReason = "NoFingerprint"
	// FingerprintChangedReason says that maintenanceCertFingerprint of the TalosHost
	// is not that of the machine that was given the configuration: it was changed
	// afterwards, and the keys may be with another machine.
	FingerprintChangedReason = "FingerprintChanged"
	// FingerprintVerifiedReason says that the machine had the demanded
	// certificate.
	FingerprintVerifiedReason = "FingerprintVerified"
	// ManagedPodReason says that the machine is a Pod that the provider has made:
	// its configuration never leaves the management cluster.
	ManagedPodReason = "ManagedPod"
)

// Condition Reprovisioning of a TalosMachine and its reasons. It is true while
// the machine is wiped and configured again.
const (
	// ReprovisioningCondition is true while the machine is re-provisioned because
	// somebody has put ReprovisionAnnotation on the TalosMachine.
	ReprovisioningCondition = "Reprovisioning"

	// NotReprovisioningReason says that nobody has asked for it.
	NotReprovisioningReason = "NotReprovisioning"
	// WipingReason says that the machine is being wiped. ConfigurationApplied
	// and Running have it too.
	WipingReason = "Wiping"
	// ReprovisioningBlockedReason says that nothing is done because another
	// machine of the Cluster is being re-provisioned.
	ReprovisioningBlockedReason = "ReprovisioningBlocked"
	// EtcdQuorumAtRiskReason says that nothing is done because the other control plane
	// machines that answer have no majority of etcd's votes, or their data may be
	// corrupt: what the machine has might be the last of it. Released has it too, where
	// that is so only once the machine answers.
	EtcdQuorumAtRiskReason = "EtcdQuorumAtRisk"
	// ReprovisionDataMissingReason says that nothing is done because the Secret
	// with the machine configuration is missing: the machine could not be
	// configured again.
	ReprovisionDataMissingReason = "BootstrapDataMissing"
	// ReprovisionFromTemplateReason says that nothing is done because the Machine
	// has the annotation too: it comes from a template then, and would come back
	// after each time.
	ReprovisionFromTemplateReason = "AnnotationFromTemplate"
	// ReprovisionGoingReason says that nothing is done because the host or the
	// TalosMachine is being deleted, or was moved to another management cluster.
	ReprovisionGoingReason = "BeingDeleted"
)

// Reasons of condition Deleting of a TalosMachine.
const (
	// WaitingForReleaseReason says that the host is being wiped.
	WaitingForReleaseReason = "WaitingForRelease"
	// ReleaseTimedOutReason says that the TalosMachine went before its host was
	// proven wiped.
	ReleaseTimedOutReason = "ReleaseTimedOut"
)

// Condition Available of a TalosHost and its reasons.
const (
	// AvailableCondition is true when the host may be claimed.
	AvailableCondition = clusterv1.AvailableCondition

	// HostAvailableReason says that the machine waits in maintenance mode.
	HostAvailableReason = "InMaintenance"
	// HostUnschedulableReason says that spec.unschedulable is set.
	HostUnschedulableReason = "Unschedulable"
	// HostQuarantinedReason says that the host was released by an unhealthy
	// Machine a short time ago.
	HostQuarantinedReason = "Quarantined"
	// HostClaimedByReason says that a TalosMachine has claimed the host.
	HostClaimedByReason = "Claimed"
	// HostReleasingReason says that the machine is being wiped.
	HostReleasingReason = "Releasing"
	// HostForeignReason says that the machine was configured by somebody else.
	HostForeignReason = "ForeignConfiguration"
	// HostOrphanedReason says that the machine was configured by us, but that
	// nobody has claimed it and no release was asked for.
	HostOrphanedReason = "Orphaned"
	// HostUnprovenReason says that there is no proof that the machine was wiped.
	HostUnprovenReason = "NotProvenWiped"
	// HostIdentityReason says that the identity of the machine is not right;
	// condition IdentityVerified says more.
	HostIdentityReason = "IdentityNotVerified"
	// HostFingerprintReason says that the machine presents another maintenance
	// certificate than the one that the host demands. Talos makes a new one at
	// each boot: compare spec.maintenanceCertFingerprint with the console.
	HostFingerprintReason = "FingerprintMismatch"
	// HostUnreachableReason says that no address of the host answers.
	HostUnreachableReason = "Unreachable"
)

// Condition Reachable of a TalosHost and its reasons.
const (
	// ReachableCondition is true when the machine answers, in maintenance mode
	// or configured.
	ReachableCondition = "Reachable"

	// AnswersInMaintenanceReason says that the machine is in maintenance mode.
	AnswersInMaintenanceReason = "AnswersInMaintenance"
	// AnswersConfiguredReason says that the machine answers, and has a
	// configuration.
	AnswersConfiguredReason = "AnswersConfigured"
	// ReachableClockSkewReason says that the machine answers, but that its clock
	// and that of the management cluster differ by more than ten minutes.
	ReachableClockSkewReason = "ClockSkew"
	// NoAddressAnswersReason says that no address of the host answers.
	NoAddressAnswersReason = "NoAddressAnswers"
	// FollowedByConsumerReason says that the TalosMachine that has claimed the
	// host follows the machine: its conditions tell.
	FollowedByConsumerReason = "FollowedByConsumer"
)

// Condition IdentityVerified and its reasons of a TalosHost.
const (
	// IdentityVerifiedCondition is true when the machine that answers is the one
	// that the TalosHost stands for; on a TalosMachine, when the machine proved who
	// it is before it was given the configuration.
	IdentityVerifiedCondition = "IdentityVerified"

	// IdentityMatchesReason says that the machine has the identity of the host.
	IdentityMatchesReason = "Matches"
	// IdentityDiscoveredReason says that the host names no identity; the one
	// that the machine told is usable.
	IdentityDiscoveredReason = "Discovered"
	// IdentityMismatchReason says that another machine answers.
	IdentityMismatchReason = "Mismatch"
	// IdentityUnusableReason says that the machine has neither a usable SMBIOS
	// UUID nor hardware addresses, or that what spec.identity names is told by
	// several machines.
	IdentityUnusableReason = "NoUsableIdentity"
	// IdentityDuplicateReason says that another TalosHost stands for the same
	// machine or names the same address.
	IdentityDuplicateReason = "Duplicate"
	// IdentityNotObservedReason says that the machine was not seen.
	IdentityNotObservedReason = "NotObserved"
)

// Condition ConsumerPresent of a TalosHost and its reasons.
const (
	// ConsumerPresentCondition is true when the TalosMachine that has claimed
	// the host exists.
	ConsumerPresentCondition = "ConsumerPresent"

	// ConsumerPresentReason says that it does.
	ConsumerPresentReason = "Present"
	// NoConsumerReason says that nobody has claimed the host.
	NoConsumerReason = "NoConsumer"
	// ConsumerMissingReason says that the TalosMachine does not exist. That
	// never starts a release.
	ConsumerMissingReason = "Missing"
	// ConsumerOtherReason says that a TalosMachine of that name exists, but with
	// another provider ID.
	ConsumerOtherReason = "OtherProviderID"
)

// Condition Released of a TalosHost and its reasons.
const (
	// ReleasedCondition is true when nothing of a released machine is left to
	// be wiped.
	ReleasedCondition = "Released"

	// NothingToReleaseReason says that no release is under way.
	NothingToReleaseReason = "NothingToRelease"
	// WaitingForResetReason says that the machine has not been told to wipe
	// itself yet.
	WaitingForResetReason = "WaitingForReset"
	// ResettingReason says that the machine was told to wipe itself, and has not
	// come back.
	ResettingReason = "Resetting"
	// NotWipedReason says that the machine runs on though it was told to wipe itself,
	// and is told again after hostRetryAfterSeconds; or that it is in maintenance mode
	// and something of the cluster is left, which the message names.
	NotWipedReason = "NotWiped"
	// ReleaseUnreachableReason says that the machine does not answer. It is wiped
	// once it does.
	ReleaseUnreachableReason = "Unreachable"
	// ReleaseUntrustedReason says that the machine does not accept the client
	// certificate of the host, or that this is missing.
	ReleaseUntrustedReason = "CredentialsRefused"
	// ReleaseClockSkewReason says that the clocks of the machine and of the
	// management cluster differ by more than ten minutes. It is wiped once they
	// agree.
	ReleaseClockSkewReason = "ClockSkew"
	// EtcdVoterReason says that the machine has left etcd, has joined it again
	// because it was restarted before it was reset, and votes, or may vote: it is
	// wiped once the control plane provider has removed its member.
	EtcdVoterReason = "EtcdVoter"
	// ReleaseDuplicateReason says that another TalosHost in use stands for the same
	// machine, which is left alone.
	ReleaseDuplicateReason = "Duplicate"
	// ReleaseOtherClaimReason says that the machine runs with another provider ID than
	// the one that it is to be wiped for: it has another configuration by now.
	ReleaseOtherClaimReason = "OtherProviderID"
	// ReleaseIdentityReason says that another machine answers.
	ReleaseIdentityReason = "IdentityMismatch"
	// RetainedReason says that the release policy leaves the machine as it is.
	RetainedReason = "Retained"
	// ReleaseFailedReason says that Talos has refused the wipe, in the words of the
	// message, or that its volumes could not be read. The machine is told again.
	ReleaseFailedReason = "ResetFailed"
)

// Reasons of events.
const (
	// EventHostClaimed is recorded when a TalosMachine has claimed a host.
	EventHostClaimed = "HostClaimed"
	// EventConfigurationApplied is recorded when a machine was given its
	// configuration.
	EventConfigurationApplied = "ConfigurationApplied"
	// EventConfigurationRefused is recorded when Talos has refused it.
	EventConfigurationRefused = "ConfigurationRefused"
	// EventProvisioned is recorded when a machine runs for the first time.
	EventProvisioned = "Provisioned"
	// EventReprovisioning is recorded when a machine begins to be re-provisioned.
	EventReprovisioning = "Reprovisioning"
	// EventReprovisioned is recorded when it runs again.
	EventReprovisioned = "Reprovisioned"
	// EventReprovisionNeedless is recorded when there is nothing to wipe: the
	// machine gets its configuration anyway.
	EventReprovisionNeedless = "NothingToReprovision"
	// EventReleaseRequested is recorded when a TalosMachine gives its host back.
	EventReleaseRequested = "ReleaseRequested"
	// EventReleaseTimedOut is recorded when a TalosMachine goes before its host
	// is proven wiped.
	EventReleaseTimedOut = "ReleaseTimedOut"
	// EventReset is recorded when a machine is told to wipe itself.
	EventReset = "Reset"
	// EventWiped is recorded when a machine is proven wiped.
	EventWiped = "Wiped"
	// EventNotWiped is recorded when a machine was not wiped, or not all of it.
	EventNotWiped = "NotWiped"
	// EventUnwiped is recorded when a host object goes although its machine is
	// not proven wiped.
	EventUnwiped = "DeletedUnwiped"
	// EventResetFailed is recorded when a machine has refused to wipe itself or a
	// partition, or has not confirmed that it does.
	EventResetFailed = "ResetFailed"
	// EventAdopting is recorded when a machine of somebody else is to be wiped.
	EventAdopting = "Adopting"
	// EventHostError is recorded when a host goes into state Error; its note is
	// the message of condition Available.
	EventHostError = "HostError"
	// EventQuarantined is recorded when a host goes into quarantine.
	EventQuarantined = "Quarantined"
	// EventQuarantineEnded is recorded when the annotation of a person has ended
	// a quarantine.
	EventQuarantineEnded = "QuarantineEnded"
	// EventAttention is recorded when a TalosMachine needs somebody; its note
	// begins with the reason of the condition that says why.
	EventAttention = "NeedsAttention"
)
