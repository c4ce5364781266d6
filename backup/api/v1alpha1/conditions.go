package v1alpha1

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// Condition types of a TalosBackupStore. Paused is Cluster API's own.
const (
	// StoreReadyCondition is True when the last check of the store found nothing wrong.
	StoreReadyCondition = clusterv1.ReadyCondition
	// ImportedCondition reports whether the backups that were found in the store are
	// TalosEtcdBackups. It is set only where they are to be.
	ImportedCondition = "Imported"
)

// Condition types of a TalosEtcdBackup. Paused is Cluster API's own.
const (
	// BackupReadyCondition is True when the backup is complete and the last verification
	// found it sound.
	BackupReadyCondition = clusterv1.ReadyCondition
	// CompletedCondition reports whether the backup is in the store. It stays False once
	// the backup has failed. One that is lost is looked for again.
	CompletedCondition = "Completed"
	// VerifiedCondition reports what the last verification has found.
	VerifiedCondition = "Verified"
	// BackupDeletingCondition is True while the backup is being deleted; the message says
	// what it waits for.
	BackupDeletingCondition = clusterv1.DeletingCondition
)

// Condition types of a TalosEtcdBackupSchedule. Paused is Cluster API's own.
const (
	// ScheduleReadyCondition is True when the newest backup of each selected Cluster is
	// complete, or none is due yet.
	ScheduleReadyCondition = clusterv1.ReadyCondition
)

// Condition types of a TalosEtcdRestore, in the order in which they become True. Paused is
// Cluster API's own.
const (
	// RestoreReadyCondition is True once the restore is complete. Until then it is the first
	// of the others that is not True.
	RestoreReadyCondition = clusterv1.ReadyCondition
	// CheckedCondition reports whether the backup can be restored to the Cluster. Nothing is
	// wiped before.
	CheckedCondition = "Checked"
	// MachinesWipedCondition reports whether all control plane machines were wiped, and have
	// their configurations again.
	MachinesWipedCondition = "MachinesWiped"
	// EtcdRestoredCondition reports whether etcd has what the backup has, and all control
	// plane machines vote in it.
	EtcdRestoredCondition = "EtcdRestored"
	// NodesRestartedCondition reports whether etcd has come back on each control plane machine
	// after a restart.
	NodesRestartedCondition = "NodesRestarted"
)

// Reasons of Ready, beside those of the condition that is not True.
const (
	// ReadyReason: everything is as it is asked for.
	ReadyReason = clusterv1.ReadyReason
	// NotYetKnownReason: something was not looked at yet.
	NotYetKnownReason = "NotYetKnown"
)

// Reasons of Ready of a store, beside those of the server: NotFound, BucketNotFound,
// InvalidCredentials, AccessDenied, ObjectLockUnsupported, ClockSkew, StoreFull, Redirected, EndpointRefused,
// UntrustedCertificate, RequestRejected and StoreUnavailable.
const (
	// SecretInvalidReason: a Secret of the store is missing, or lacks a key.
	SecretInvalidReason = "SecretInvalid"
	// ConfigurationInvalidReason: the store is described in a way that cannot work.
	ConfigurationInvalidReason = "ConfigurationInvalid"
)

// Reasons of Ready of a schedule.
const (
	// ScheduleInvalidReason: schedule or timeZone cannot be understood.
	ScheduleInvalidReason = "ScheduleInvalid"
	// NoClusterSelectedReason: no Cluster is selected.
	NoClusterSelectedReason = "NoClusterSelected"
	// BackupFailedReason: the newest backup of a Cluster has failed, or is lost.
	BackupFailedReason = "BackupFailed"
	// BackupMissedReason: the newest backup of a Cluster was not begun in time, or the API
	// server refuses it.
	BackupMissedReason = "BackupMissed"
)

// Reasons of Imported.
const (
	// ImportedReason: all that was found is a TalosEtcdBackup.
	ImportedReason = "Imported"
	// ImportFailedReason: some of what was found could not be imported.
	ImportFailedReason = "ImportFailed"
)

// Reasons of Completed.
const (
	// CompletedReason: the backup is in the store.
	CompletedReason = "Completed"
	// WaitingForClusterReason: the Cluster, its control plane or its secrets are not there
	// yet.
	WaitingForClusterReason = "WaitingForCluster"
	// WaitingForStoreReason: the store is not there, or not ready.
	WaitingForStoreReason = "WaitingForStore"
	// WaitingForTurnReason: other backups are taken first, or other restores carried out.
	WaitingForTurnReason = "WaitingForTurn"
	// BackingUpReason: the snapshot is being taken and stored.
	BackingUpReason = "BackingUp"
	// AttemptFailedReason: the last attempt has failed; it is tried again.
	AttemptFailedReason = "AttemptFailed"
	// FailedReason: it is not tried again.
	FailedReason = "Failed"
	// NoRecipientReason: the secrets of the cluster are to be stored, and the store has no
	// recipients who could read them.
	NoRecipientReason = "NoRecipient"
	// ReadOnlyReason: nothing may be written to the store.
	ReadOnlyReason = "ReadOnly"
	// NameTakenReason: the store has another backup of that name.
	NameTakenReason = "NameTaken"
	// MissingReason: the backup was complete, and the store says that it does not have it. It
	// is looked for again before it is lost.
	MissingReason = "Missing"
	// LostReason: the backup was complete, and is not in the store any more.
	LostReason = "Lost"
)

// Reasons of Verified.
const (
	// VerifiedReason: the backup is sound.
	VerifiedReason = "Verified"
	// DamagedReason: what the store has is not what was stored, or etcd finds fault with it.
	DamagedReason = "Damaged"
	// NoIdentityReason: the store has no private key that can read the backup.
	NoIdentityReason = "NoIdentity"
	// ScratchSpaceShortReason: the manager has too little room to unpack the backup.
	ScratchSpaceShortReason = "ScratchSpaceShort"
	// EtcdReleaseUnknownReason: the manager has no programs of the release of etcd that the
	// snapshot is of.
	EtcdReleaseUnknownReason = "EtcdReleaseUnknown"
	// VerificationFailedReason: the verification could not be carried out; it is tried
	// again.
	VerificationFailedReason = "VerificationFailed"
)

// Reasons of Checked, beside WaitingForCluster, WaitingForStore, WaitingForTurn, and those of
// Verified and of a store; and Failed.
const (
	// CheckedReason: the backup can be restored.
	CheckedReason = "Checked"
	// CheckingReason: the backup is being unpacked, and looked at.
	CheckingReason = "Checking"
	// WaitingForBackupReason: the backup is not there, or not complete.
	WaitingForBackupReason = "WaitingForBackup"
	// WaitingForControlPlaneReason: another restore holds the control plane, or the control
	// plane of a new cluster is not there yet, or was not created with the annotation, or has
	// no Machine yet.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
	// QuorumPresentReason: etcd has its quorum, and quorumPolicy does not discard that.
	QuorumPresentReason = "QuorumPresent"
	// QuorumUnknownReason: members of etcd that do not answer may have their quorum, and
	// quorumPolicy does not discard that.
	QuorumUnknownReason = "QuorumUnknown"
	// OtherClusterReason: the backup is of another cluster, or the cluster has other keys by
	// now.
	OtherClusterReason = "OtherCluster"
	// EtcdTooOldReason: the control plane machines run an etcd of a release before that of
	// the backup.
	EtcdTooOldReason = "EtcdTooOld"
	// InfrastructureUnsupportedReason: a control plane machine is none of this suite's, and
	// so cannot be wiped.
	InfrastructureUnsupportedReason = "InfrastructureUnsupported"
	// CheckFailedReason: the check could not be carried out, or the restore cannot begin; it is
	// tried again.
	CheckFailedReason = "CheckFailed"
)

// Reasons of MachinesWiped.
const (
	// MachinesWipedReason: all machines were wiped.
	MachinesWipedReason = "MachinesWiped"
	// WipingReason: the machines in the message are being wiped.
	WipingReason = "Wiping"
	// WaitingForDeletionReason: the Machine in the message is being deleted, and is to be gone
	// first.
	WaitingForDeletionReason = "WaitingForDeletion"
)

// Reasons of EtcdRestored, beside WaitingForTurn.
const (
	// EtcdRestoredReason: etcd is whole.
	EtcdRestoredReason = "EtcdRestored"
	// SendingReason: the snapshot is sent to the Machine in the message.
	SendingReason = "Sending"
	// SendingFailedReason: the snapshot could not be sent; it is tried again.
	SendingFailedReason = "SendingFailed"
	// WaitingForEtcdReason: etcd is to come up with it.
	WaitingForEtcdReason = "WaitingForEtcd"
	// WaitingForMembersReason: the Machines in the message are to join.
	WaitingForMembersReason = "WaitingForMembers"
)

// Reasons of NodesRestarted.
const (
	// NodesRestartedReason: all have, and etcd has come back.
	NodesRestartedReason = "NodesRestarted"
	// RestartingReason: the Machine in the message restarts.
	RestartingReason = "Restarting"
	// WaitingForAPIServerReason: the API server of the cluster does not answer yet, or tells
	// an older revision.
	WaitingForAPIServerReason = "WaitingForAPIServer"
	// WaitingForNodesReason: the Nodes in the message have no Machine, and are not known to be
	// gone yet, or cannot be deleted.
	WaitingForNodesReason = "WaitingForNodes"
)

// Reasons of Deleting.
const (
	// DeletingDataReason: the data is being deleted.
	DeletingDataReason = "DeletingData"
	// BackupInUseReason: a restore reads the data.
	BackupInUseReason = "BackupInUse"
	// ObjectLockedReason: the store keeps the data until the lock of its objects ends.
	ObjectLockedReason = "ObjectLocked"
	// DeletionFailedReason: the data could not be deleted; it is tried again.
	DeletionFailedReason = "DeletionFailed"
)
