package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultBackupTimeoutSeconds is for how long a backup is tried.
const DefaultBackupTimeoutSeconds = int32(3600)

// TalosEtcdBackupSpec defines the desired state of a TalosEtcdBackup. But for
// deletionPolicy, it cannot be changed.
type TalosEtcdBackupSpec struct {
	// clusterName is the name of the Cluster whose etcd is backed up, in the namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: make another TalosEtcdBackup"
	ClusterName string `json:"clusterName,omitempty"`

	// storeName is the name of the TalosBackupStore that keeps the backup, in the
	// namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: make another TalosEtcdBackup"
	StoreName string `json:"storeName,omitempty"`

	// secrets says whether the secrets bundle of the cluster is stored beside its etcd:
	// Include or Exclude. Without it no other cluster can be made of the backup, and a
	// lost management cluster cannot be rebuilt. It is only ever stored encrypted, and so
	// needs recipients of the store. Defaults to Include.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: make another TalosEtcdBackup"
	Secrets SecretsPolicy `json:"secrets,omitempty"`

	// deletionPolicy says what becomes of the data in the store when this object is
	// deleted: Retain or Delete. Defaults to Retain.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// timeoutSeconds is for how many seconds the backup is tried before it has failed.
	// Defaults to 3600.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: make another TalosEtcdBackup"
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// SecretsPolicy says whether the secrets bundle of a cluster is stored.
// +kubebuilder:validation:Enum=Include;Exclude
type SecretsPolicy string

const (
	// SecretsInclude stores it, encrypted.
	SecretsInclude SecretsPolicy = "Include"
	// SecretsExclude does not.
	SecretsExclude SecretsPolicy = "Exclude"
)

// DeletionPolicy says what becomes of data when its object is deleted.
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

const (
	// DeletionRetain leaves it in the store.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes it.
	DeletionDelete DeletionPolicy = "Delete"
)

// TalosEtcdBackupStatus defines the observed state of a TalosEtcdBackup.
// +kubebuilder:validation:MinProperties=1
type TalosEtcdBackupStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the backup's present state. Known types are
	// Ready, Completed, Verified, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// startedAt is when it was first tried.
	// +optional
	StartedAt metav1.Time `json:"startedAt,omitempty,omitzero"`

	// failure tells of attempts that have failed.
	// +optional
	Failure BackupFailure `json:"failure,omitempty,omitzero"`

	// snapshot is what the backup holds, once it is complete.
	// +optional
	Snapshot SnapshotStatus `json:"snapshot,omitempty,omitzero"`

	// verification is the last verification.
	// +optional
	Verification VerificationStatus `json:"verification,omitempty,omitzero"`
}

// BackupFailure tells of attempts that have failed.
type BackupFailure struct {
	// count is how many attempts have failed.
	// +required
	// +kubebuilder:validation:Minimum=1
	Count int32 `json:"count,omitempty"`

	// at is when the last one has.
	// +required
	At metav1.Time `json:"at,omitempty,omitzero"`

	// message is why the last one has.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
}

// SnapshotStatus is what a backup holds.
type SnapshotStatus struct {
	// takenAt is when all of the snapshot was read.
	// +required
	TakenAt metav1.Time `json:"takenAt,omitempty,omitzero"`

	// storedBytes is how many bytes the store has of it, compressed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	StoredBytes *int64 `json:"storedBytes,omitempty"`

	// plainBytes is how many bytes the snapshot has.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PlainBytes *int64 `json:"plainBytes,omitempty"`

	// sha256 is the SHA-256 digest of the snapshot, in hex.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`

	// machineName is the name of the Machine whose etcd has given the snapshot.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MachineName string `json:"machineName,omitempty"`

	// raftIndex is how far etcd had come before.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RaftIndex *int64 `json:"raftIndex,omitempty"`

	// talosVersion is the version of Talos that the machine ran.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	TalosVersion string `json:"talosVersion,omitempty"`

	// kubernetesVersion is the version of Kubernetes that the Machine asks for.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`

	// etcdVersion is the version of etcd that the machine ran.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	EtcdVersion string `json:"etcdVersion,omitempty"`

	// encryption says whether the snapshot is encrypted: Recipients if it is for the
	// recipients of the store, else None.
	// +optional
	Encryption SnapshotEncryption `json:"encryption,omitempty"`

	// secrets says whether the secrets bundle of the cluster is stored beside it.
	// +optional
	Secrets SecretsPolicy `json:"secrets,omitempty"`
}

// SnapshotEncryption says for whom a snapshot is encrypted.
// +kubebuilder:validation:Enum=None;Recipients
type SnapshotEncryption string

const (
	// EncryptionNone says that whoever may read the bucket can read it.
	EncryptionNone SnapshotEncryption = "None"
	// EncryptionRecipients says that the recipients alone can.
	EncryptionRecipients SnapshotEncryption = "Recipients"
)

// VerificationStatus is what a verification has found.
type VerificationStatus struct {
	// level is how the backup was verified: Digest when all of it was read back and
	// compared with what was stored, Snapshot when etcd's own tool has looked at all of its
	// database, and Restore when an etcd has served it.
	// +required
	Level VerificationLevel `json:"level,omitempty"`

	// at is when it was.
	// +required
	At metav1.Time `json:"at,omitempty,omitzero"`

	// request is the value of the annotation backup.cluster.x-k8s.io/verify that was last
	// heeded.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Request string `json:"request,omitempty"`

	// revision is the last revision of etcd that the snapshot has.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision *int64 `json:"revision,omitempty"`

	// keys is how many keys it has.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Keys *int64 `json:"keys,omitempty"`
}

// VerificationLevel is how a backup was verified.
// +kubebuilder:validation:Enum=Digest;Snapshot;Restore
type VerificationLevel string

const (
	// VerificationDigest reads a backup back and compares it with what was stored.
	VerificationDigest VerificationLevel = "Digest"
	// VerificationSnapshot decrypts and unpacks it besides, and has etcd's own tool look at
	// all of its database.
	VerificationSnapshot VerificationLevel = "Snapshot"
	// VerificationRestore restores it besides, and compares what an etcd serves.
	VerificationRestore VerificationLevel = "Restore"
)

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosetcdbackups,shortName=teb,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={cluster.x-k8s.io/v1beta2=v1alpha1,clusterctl.cluster.x-k8s.io/move-hierarchy=}
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".spec.clusterName",description="Cluster"
// +kubebuilder:printcolumn:name="Completed",type="string",JSONPath=`.status.conditions[?(@.type=="Completed")].status`,description="The backup is in the store"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Completed")].reason`,description="What it waits for, or why it has failed"
// +kubebuilder:printcolumn:name="Bytes",type="integer",JSONPath=".status.snapshot.storedBytes",description="Bytes in the store"
// +kubebuilder:printcolumn:name="Taken",type="date",JSONPath=".status.snapshot.takenAt",description="Time since the snapshot was taken"
// +kubebuilder:printcolumn:name="Verified",type="string",JSONPath=".status.verification.level",description="How it was verified"
// +kubebuilder:printcolumn:name="Store",type="string",JSONPath=".spec.storeName",description="Store",priority=10
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=".status.snapshot.machineName",description="Machine whose etcd has given the snapshot",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosEtcdBackup is one backup of the etcd of a Cluster. It is made once.
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 253 && self.metadata.name.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="the name of a backup is a folder in the store: lower-case letters, digits, '-' and '.'"
type TalosEtcdBackup struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.secrets) == has(oldSelf.secrets) && has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds)",message="secrets and timeoutSeconds are immutable: make another TalosEtcdBackup"
	Spec TalosEtcdBackupSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosEtcdBackupStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the backup.
func (in *TalosEtcdBackup) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the backup.
func (in *TalosEtcdBackup) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosEtcdBackupList is a list of TalosEtcdBackups.
type TalosEtcdBackupList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosEtcdBackups.
	Items []TalosEtcdBackup `json:"items"`
}
