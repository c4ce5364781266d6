package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TalosEtcdRestoreSpec defines the desired state of a TalosEtcdRestore. It cannot be changed:
// a restore is carried out once.
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'NewCluster') || (has(self.confirm) && self.confirm == self.clusterName)",message="confirm must be the name of the Cluster: all of its control plane machines are wiped",fieldPath=".confirm",reason=FieldValueRequired
type TalosEtcdRestoreSpec struct {
	// clusterName is the name of the Cluster whose etcd is restored, in the namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterName string `json:"clusterName,omitempty"`

	// backupName is the name of the TalosEtcdBackup that it is restored from, in the
	// namespace. It must be complete.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	BackupName string `json:"backupName,omitempty"`

	// mode says what is restored. InPlace: the Cluster that the backup is of; all of its
	// control plane machines are wiped, and get their configurations again. NewCluster: a
	// Cluster that has no etcd yet; its TalosControlPlane must be created with the annotation
	// controlplane.cluster.x-k8s.io/talos-restore, whose value is the name of this object,
	// and gets the secrets of the Cluster that the backup is of. Defaults to InPlace.
	// +optional
	Mode RestoreMode `json:"mode,omitempty"`

	// confirm is the name of the Cluster once more. It is required in mode InPlace.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Confirm string `json:"confirm,omitempty"`

	// quorumPolicy says what becomes of an etcd that still has its quorum, in mode InPlace:
	// Keep refuses to restore, and waits while members that do not answer may have it; Discard
	// gives up what the cluster has. Defaults to Keep.
	// +optional
	QuorumPolicy QuorumPolicy `json:"quorumPolicy,omitempty"`

	// identitySecretName is the name of a Secret in the namespace with private keys of age
	// under the key identities, one a line, that can read the backup. Defaults to that of
	// the store.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	IdentitySecretName string `json:"identitySecretName,omitempty"`
}

// RestoreMode says what is restored.
// +kubebuilder:validation:Enum=InPlace;NewCluster
type RestoreMode string

const (
	// RestoreInPlace restores the cluster that the backup is of.
	RestoreInPlace RestoreMode = "InPlace"
	// RestoreNewCluster begins another cluster with what the backup has.
	RestoreNewCluster RestoreMode = "NewCluster"
)

// QuorumPolicy says what becomes of an etcd that still has its quorum.
// +kubebuilder:validation:Enum=Keep;Discard
type QuorumPolicy string

const (
	// QuorumKeep refuses to restore.
	QuorumKeep QuorumPolicy = "Keep"
	// QuorumDiscard gives up what the cluster has.
	QuorumDiscard QuorumPolicy = "Discard"
)

// TalosEtcdRestoreStatus defines the observed state of a TalosEtcdRestore.
// +kubebuilder:validation:MinProperties=1
type TalosEtcdRestoreStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the restore's present state. Known types are
	// Ready, Checked, MachinesWiped, EtcdRestored, NodesRestarted and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// startedAt is when it was begun.
	// +optional
	StartedAt metav1.Time `json:"startedAt,omitempty,omitzero"`

	// completedAt is when it was complete.
	// +optional
	CompletedAt metav1.Time `json:"completedAt,omitempty,omitzero"`

	// attempt is which attempt is under way, from 1. Each wipes the machines anew.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Attempt *int32 `json:"attempt,omitempty"`

	// machineName is the name of the Machine whose node was sent the snapshot, and that the
	// others join.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MachineName string `json:"machineName,omitempty"`

	// revision is the revision of etcd from which it goes on: a thousand million after that of
	// the backup, that of the last restore and that which the API server tells, whichever is the
	// latest, so that no client sees it go back.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Revision *int64 `json:"revision,omitempty"`

	// failure tells of steps that have failed, and are tried again.
	// +optional
	Failure BackupFailure `json:"failure,omitempty,omitzero"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosetcdrestores,shortName=ter,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={cluster.x-k8s.io/v1beta2=v1alpha1,clusterctl.cluster.x-k8s.io/move-hierarchy=}
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".spec.clusterName",description="Cluster"
// +kubebuilder:printcolumn:name="Backup",type="string",JSONPath=".spec.backupName",description="Backup"
// +kubebuilder:printcolumn:name="Mode",type="string",JSONPath=".spec.mode",description="What is restored"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="It is complete"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="What it waits for, or why it has failed"
// +kubebuilder:printcolumn:name="Attempt",type="integer",JSONPath=".status.attempt",description="Which attempt is under way"
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=".status.machineName",description="Machine whose node was sent the snapshot",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosEtcdRestore restores the etcd of a Cluster from a backup, once.
type TalosEtcdRestore struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: make another TalosEtcdRestore"
	Spec TalosEtcdRestoreSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosEtcdRestoreStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the restore.
func (in *TalosEtcdRestore) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the restore.
func (in *TalosEtcdRestore) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosEtcdRestoreList is a list of TalosEtcdRestores.
type TalosEtcdRestoreList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosEtcdRestores.
	Items []TalosEtcdRestore `json:"items"`
}
