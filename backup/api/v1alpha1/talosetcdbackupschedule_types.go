package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of a TalosEtcdBackupSchedule.
const (
	// DefaultJitterSeconds is by how much backups are spread.
	DefaultJitterSeconds = int32(60)
	// DefaultFailedLimit is how many failed backups of a cluster are kept.
	DefaultFailedLimit = int32(3)
)

// TalosEtcdBackupScheduleSpec defines the desired state of a TalosEtcdBackupSchedule.
// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) != (has(self.matchAll) && self.matchAll)",message="set clusterSelector, or matchAll: true for all Clusters of the namespace, and not both"
type TalosEtcdBackupScheduleSpec struct {
	// clusterSelector selects the Clusters of the namespace that are backed up, by their
	// labels. Backups of a Cluster whose labels no longer match stay.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="an empty selector selects nothing; set matchAll: true for all Clusters of the namespace"
	ClusterSelector metav1.LabelSelector `json:"clusterSelector,omitempty,omitzero"`

	// matchAll selects all Clusters of the namespace, instead of clusterSelector.
	// Defaults to false.
	// +optional
	MatchAll *bool `json:"matchAll,omitempty"`

	// storeName is the name of the TalosBackupStore that keeps the backups, in the
	// namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StoreName string `json:"storeName,omitempty"`

	// schedule says when, in five fields as cron has them: minute, hour, day of the month,
	// month, day of the week. A time that clocks leave out is made up for when they are
	// set, and one that they show twice counts once, unless the schedule is of every hour.
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=256
	Schedule string `json:"schedule,omitempty"`

	// timeZone is where the schedule is, by its name in the IANA database: Europe/Berlin.
	// Days of retention begin there, too. Defaults to UTC.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`

	// jitterSeconds is by how many seconds at most a backup begins later than the schedule
	// says, always by the same for a Cluster, so that not all begin at the same time.
	// Defaults to 60.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	JitterSeconds *int32 `json:"jitterSeconds,omitempty"`

	// startingDeadlineSeconds is how many seconds late a backup may begin. One that is
	// later, as when no manager ran, is missed. By default the newest one that was missed
	// is made up for, however late.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=31536000
	StartingDeadlineSeconds *int32 `json:"startingDeadlineSeconds,omitempty"`

	// concurrencyPolicy says what is done while the former backup of a Cluster is not
	// complete: Forbid begins the next one after it, Replace gives the former one up, and
	// Allow begins beside it. Defaults to Forbid.
	// +optional
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`

	// suspend keeps backups from being begun, and from being verified again, by the clock.
	// Retention goes on. Defaults to false.
	// +optional
	Suspend *bool `json:"suspend,omitempty"`

	// backup says how backups are made.
	// +optional
	Backup ScheduledBackup `json:"backup,omitempty,omitzero"`

	// verification says how the newest backup of each Cluster is verified once more, and
	// when. By default each backup is verified by its digest when it is made, and not again.
	// +optional
	Verification ScheduledVerification `json:"verification,omitempty,omitzero"`

	// retention says which backups of a Cluster are kept. Whatever it says, the newest one
	// is, and so is the newest one that was verified. By default all are.
	// +optional
	Retention Retention `json:"retention,omitempty,omitzero"`

	// failedLimit is how many backups of a Cluster are kept that have failed. Defaults to
	// 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	FailedLimit *int32 `json:"failedLimit,omitempty"`
}

// ConcurrencyPolicy says what is done while the former backup is not complete.
// +kubebuilder:validation:Enum=Forbid;Replace;Allow
type ConcurrencyPolicy string

const (
	// ConcurrencyForbid begins the next one after it.
	ConcurrencyForbid ConcurrencyPolicy = "Forbid"
	// ConcurrencyReplace gives the former one up.
	ConcurrencyReplace ConcurrencyPolicy = "Replace"
	// ConcurrencyAllow begins the next one beside it.
	ConcurrencyAllow ConcurrencyPolicy = "Allow"
)

// ScheduledBackup says how the backups of a schedule are made.
// +kubebuilder:validation:MinProperties=1
type ScheduledBackup struct {
	// secrets says whether the secrets bundle of the cluster is stored: Include or
	// Exclude. Defaults to Include.
	// +optional
	Secrets SecretsPolicy `json:"secrets,omitempty"`

	// deletionPolicy says what becomes of the data of a backup when somebody deletes it:
	// Retain or Delete. Retention deletes the data whatever this says. Defaults to Retain.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// timeoutSeconds is for how many seconds a backup is tried before it has failed.
	// Defaults to 3600.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// ScheduledVerification says how and when backups are verified once more.
type ScheduledVerification struct {
	// schedule says when, as that of the backups does, and in the same time zone.
	// +required
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=256
	Schedule string `json:"schedule,omitempty"`

	// level is how: Digest, Snapshot or Restore. Snapshot and Restore need the private keys
	// of the store's identitySecretName where backups are encrypted. Defaults to Snapshot.
	// +optional
	Level VerificationLevel `json:"level,omitempty"`
}

// Retention says which backups are kept: those that any rule keeps.
// +kubebuilder:validation:MinProperties=1
type Retention struct {
	// last is how many of the newest backups are kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Last *int32 `json:"last,omitempty"`

	// hourly is for how many hours with a backup the newest one is kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Hourly *int32 `json:"hourly,omitempty"`

	// daily is for how many days with a backup the newest one is kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Daily *int32 `json:"daily,omitempty"`

	// weekly is for how many weeks with a backup the newest one is kept. Weeks begin on
	// Monday.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Weekly *int32 `json:"weekly,omitempty"`

	// monthly is for how many months with a backup the newest one is kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Monthly *int32 `json:"monthly,omitempty"`

	// maxAgeDays is how many days old a backup may become, whichever rule keeps it. If it
	// is the only rule, younger ones are kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=36500
	MaxAgeDays *int32 `json:"maxAgeDays,omitempty"`
}

// TalosEtcdBackupScheduleStatus defines the observed state of a TalosEtcdBackupSchedule.
// +kubebuilder:validation:MinProperties=1
type TalosEtcdBackupScheduleStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the schedule's present state. Known types are
	// Ready and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// selectedClusters is how many Clusters are selected.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SelectedClusters *int32 `json:"selectedClusters,omitempty"`

	// nextAt is when the next backup of any Cluster is due; nothing while the schedule is
	// suspended.
	// +optional
	NextAt metav1.Time `json:"nextAt,omitempty,omitzero"`

	// intervalSeconds is the longest time between two backups that the schedule asks for.
	// +optional
	// +kubebuilder:validation:Minimum=60
	IntervalSeconds *int64 `json:"intervalSeconds,omitempty"`

	// lastRun is the value of the annotation backup.cluster.x-k8s.io/run that was last
	// heeded.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	LastRun string `json:"lastRun,omitempty"`

	// clusters are what is known of each selected Cluster.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2000
	Clusters []ScheduledCluster `json:"clusters,omitempty"`
}

// ScheduledCluster is what a schedule knows of a Cluster.
type ScheduledCluster struct {
	// name is the name of the Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// scheduledAt is the time of the schedule for which the last backup was begun.
	// +optional
	ScheduledAt metav1.Time `json:"scheduledAt,omitempty,omitzero"`

	// completedAt is when the snapshot of the newest backup was taken that is complete, and
	// not known to be damaged.
	// +optional
	CompletedAt metav1.Time `json:"completedAt,omitempty,omitzero"`

	// verifiedAt is when the newest of its backups that are sound was last verified.
	// +optional
	VerifiedAt metav1.Time `json:"verifiedAt,omitempty,omitzero"`

	// missed is how many backups were missed since the last one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Missed *int32 `json:"missed,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosetcdbackupschedules,shortName=tebs,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={cluster.x-k8s.io/v1beta2=v1alpha1,clusterctl.cluster.x-k8s.io/move-hierarchy=}
// +kubebuilder:printcolumn:name="Schedule",type="string",JSONPath=".spec.schedule",description="Schedule"
// +kubebuilder:printcolumn:name="Zone",type="string",JSONPath=".spec.timeZone",description="Time zone",priority=10
// +kubebuilder:printcolumn:name="Clusters",type="integer",JSONPath=".status.selectedClusters",description="Clusters that are selected"
// +kubebuilder:printcolumn:name="Next",type="string",JSONPath=".status.nextAt",description="When the next backup is due"
// +kubebuilder:printcolumn:name="Suspended",type="boolean",JSONPath=".spec.suspend",description="No backup is begun"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The newest backups of all Clusters are complete"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="What is wrong"
// +kubebuilder:printcolumn:name="Store",type="string",JSONPath=".spec.storeName",description="Store",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosEtcdBackupSchedule makes backups of the Clusters of its namespace whose labels match,
// again and again, and deletes those that are not to be kept.
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a schedule is the value of a label: at most 63 characters"
type TalosEtcdBackupSchedule struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosEtcdBackupScheduleSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosEtcdBackupScheduleStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the schedule.
func (in *TalosEtcdBackupSchedule) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the schedule.
func (in *TalosEtcdBackupSchedule) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosEtcdBackupScheduleList is a list of TalosEtcdBackupSchedules.
type TalosEtcdBackupScheduleList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosEtcdBackupSchedules.
	Items []TalosEtcdBackupSchedule `json:"items"`
}
