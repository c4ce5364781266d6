package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReleaseState is what a release was last judged to be.
// +kubebuilder:validation:Enum=Absent;Unmanaged;OutOfSync;Drifted;Locked;Failed;InSync
type ReleaseState string

const (
	// StateAbsent says that there is no release.
	StateAbsent ReleaseState = "Absent"
	// StateUnmanaged says that there is a release that this add-on has not installed.
	StateUnmanaged ReleaseState = "Unmanaged"
	// StateOutOfSync says that the release is of another chart, other values or other options.
	StateOutOfSync ReleaseState = "OutOfSync"
	// StateDrifted says that objects of the release were changed.
	StateDrifted ReleaseState = "Drifted"
	// StateLocked says that an action is under way, or has ended without saying so.
	StateLocked ReleaseState = "Locked"
	// StateFailed says that the last action has failed.
	StateFailed ReleaseState = "Failed"
	// StateInSync says that the release is as it is asked for.
	StateInSync ReleaseState = "InSync"
)

// ReleaseAction is something that is done to a release.
// +kubebuilder:validation:Enum=Install;Upgrade;Unlock;CorrectDrift;Rollback;Uninstall;Test
type ReleaseAction string

const (
	// ActionInstall installs the chart.
	ActionInstall ReleaseAction = "Install"
	// ActionUpgrade makes a new revision.
	ActionUpgrade ReleaseAction = "Upgrade"
	// ActionUnlock marks a revision as failed whose action has ended without saying so.
	ActionUnlock ReleaseAction = "Unlock"
	// ActionCorrectDrift changes objects back.
	ActionCorrectDrift ReleaseAction = "CorrectDrift"
	// ActionRollback makes a new revision out of the last one that was deployed.
	ActionRollback ReleaseAction = "Rollback"
	// ActionUninstall uninstalls the release.
	ActionUninstall ReleaseAction = "Uninstall"
	// ActionTest runs the test hooks of the chart.
	ActionTest ReleaseAction = "Test"
)

// TalosClusterAddonReleaseSpec defines the desired state of a TalosClusterAddonRelease.
// The provider writes it. It is what must be known to remove the release when the
// TalosClusterAddon is gone.
type TalosClusterAddonReleaseSpec struct {
	// clusterName is the name of the Cluster, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	ClusterName string `json:"clusterName,omitempty"`

	// addonName is the name of the TalosClusterAddon, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	AddonName string `json:"addonName,omitempty"`

	// releaseName is the name of the release in the workload cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	ReleaseName string `json:"releaseName,omitempty"`

	// releaseNamespace is the namespace of the release in the workload cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable"
	ReleaseNamespace string `json:"releaseNamespace,omitempty"`

	// deletionPolicy says what becomes of the release when this object is deleted:
	// Uninstall or Orphan.
	// +required
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// timeoutSeconds is how many seconds the uninstallation may take.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// admittedDigest is the digest that may be rolled out, where the add-on bounds its
	// rollout. By default whatever is asked for may.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AdmittedDigest string `json:"admittedDigest,omitempty"`
}

// TalosClusterAddonReleaseStatus defines the observed state of a TalosClusterAddonRelease.
// +kubebuilder:validation:MinProperties=1
type TalosClusterAddonReleaseStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the release's present state. Known types are
	// Ready, ClusterReachable, Released, Drifted, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// state is what the release was last judged to be.
	// +optional
	State ReleaseState `json:"state,omitempty"`

	// action is what is being done to it; empty when nothing is.
	// +optional
	Action ReleaseAction `json:"action,omitempty"`

	// desiredDigest is the digest of what is asked for: chart, values and options.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	DesiredDigest string `json:"desiredDigest,omitempty"`

	// deployed is what the workload cluster has.
	// +optional
	Deployed DeployedRelease `json:"deployed,omitempty,omitzero"`

	// failure tells of actions that have failed since the release was in sync or something
	// else was asked for.
	// +optional
	Failure ReleaseFailure `json:"failure,omitempty,omitzero"`

	// addonGeneration is the generation of the TalosClusterAddon that desiredDigest was
	// made of.
	// +optional
	// +kubebuilder:validation:Minimum=1
	AddonGeneration int64 `json:"addonGeneration,omitempty"`

	// lastForced is the value of the annotation addons.cluster.x-k8s.io/force that was
	// last heeded.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	LastForced string `json:"lastForced,omitempty"`

	// drift are the objects that were changed, at most 32 of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Drift []DriftedObject `json:"drift,omitempty"`

	// driftCheckedAt is when drift was last looked for.
	// +optional
	DriftCheckedAt metav1.Time `json:"driftCheckedAt,omitempty,omitzero"`

	// removalStartedAt is since when the release is being removed, by the clock of the
	// manager.
	// +optional
	RemovalStartedAt metav1.Time `json:"removalStartedAt,omitempty,omitzero"`

	// plan is what would be done, where the annotation addons.cluster.x-k8s.io/plan asks
	// for it.
	// +optional
	Plan ReleasePlan `json:"plan,omitempty,omitzero"`
}

// ReleaseFailure tells of actions that have failed.
// +kubebuilder:validation:MinProperties=1
type ReleaseFailure struct {
	// count is how many of them have failed.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Count int32 `json:"count,omitempty"`

	// digest is the digest of what was asked for when they failed.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Digest string `json:"digest,omitempty"`

	// action is the last of them.
	// +optional
	Action ReleaseAction `json:"action,omitempty"`

	// reason is why it failed, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason,omitempty"`

	// message is why it failed, without values.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// at is when it failed.
	// +optional
	At metav1.Time `json:"at,omitempty,omitzero"`
}

// DeployedRelease is a release that a workload cluster has.
// +kubebuilder:validation:MinProperties=1
type DeployedRelease struct {
	// revision is the revision of the release.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Revision int32 `json:"revision,omitempty"`

	// chart is the name of the chart.
	// +optional
	// +kubebuilder:validation:MaxLength=250
	Chart string `json:"chart,omitempty"`

	// version is the version of the chart.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// digest is the digest of what was asked for when it was made.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Digest string `json:"digest,omitempty"`

	// deployedAt is when it was made.
	// +optional
	DeployedAt metav1.Time `json:"deployedAt,omitempty,omitzero"`
}

// DriftedObject is an object of a release that was changed.
type DriftedObject struct {
	// object is the object: <kind>/<namespace>/<name>.
	// +required
	// +kubebuilder:validation:MaxLength=512
	Object string `json:"object,omitempty"`

	// change is what was found: Missing, or the JSON pointers of the fields. It never has
	// values.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	Change string `json:"change,omitempty"`
}

// ReleasePlan is what would be done to a release.
// +kubebuilder:validation:MinProperties=1
type ReleasePlan struct {
	// action is what would be done; empty when nothing would be.
	// +optional
	Action ReleaseAction `json:"action,omitempty"`

	// digest is the digest of what it was made for.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Digest string `json:"digest,omitempty"`

	// message says why it could not be made.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// create are the objects that would be created: <kind>/<namespace>/<name>.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=512
	Create []string `json:"create,omitempty"`

	// change are the objects that would be changed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=512
	Change []string `json:"change,omitempty"`

	// delete are the objects that would be deleted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=512
	Delete []string `json:"delete,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosclusteraddonreleases,shortName=tcar,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".spec.clusterName",description="Cluster"
// +kubebuilder:printcolumn:name="Release",type="string",JSONPath=".spec.releaseName",description="Name of the release"
// +kubebuilder:printcolumn:name="Namespace",type="string",JSONPath=".spec.releaseNamespace",description="Namespace of the release",priority=10
// +kubebuilder:printcolumn:name="Chart",type="string",JSONPath=".status.deployed.chart",description="Chart that is deployed"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.deployed.version",description="Version of the chart that is deployed"
// +kubebuilder:printcolumn:name="Revision",type="integer",JSONPath=".status.deployed.revision",description="Revision that is deployed"
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state",description="What the release was judged to be"
// +kubebuilder:printcolumn:name="Action",type="string",JSONPath=".status.action",description="What is being done"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Condition Ready"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is not",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosClusterAddonRelease is a TalosClusterAddon in one Cluster. The provider makes it;
// delete the labels of the Cluster or the TalosClusterAddon to have it removed.
type TalosClusterAddonRelease struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosClusterAddonReleaseSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosClusterAddonReleaseStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the release.
func (in *TalosClusterAddonRelease) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the release.
func (in *TalosClusterAddonRelease) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosClusterAddonReleaseList is a list of TalosClusterAddonReleases.
type TalosClusterAddonReleaseList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosClusterAddonReleases.
	Items []TalosClusterAddonRelease `json:"items"`
}
