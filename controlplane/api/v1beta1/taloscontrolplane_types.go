package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// TalosControlPlaneRolloutStrategyType names a way of replacing outdated
// control plane Machines.
// +kubebuilder:validation:Enum=RollingUpdate;OnDelete
type TalosControlPlaneRolloutStrategyType string

const (
	// RollingUpdateStrategyType replaces outdated Machines one after the other.
	RollingUpdateStrategyType TalosControlPlaneRolloutStrategyType = "RollingUpdate"

	// OnDeleteStrategyType replaces an outdated Machine only after somebody has
	// deleted it.
	OnDeleteStrategyType TalosControlPlaneRolloutStrategyType = "OnDelete"
)

// TalosControlPlaneSpec defines the desired state of a TalosControlPlane.
type TalosControlPlaneSpec struct {
	// replicas is the number of control plane Machines. Each of them is an etcd
	// member, so only odd numbers are permitted: 1, 3, 5 and so on.
	// Defaults to 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self % 2 == 1",message="must be an odd number (1, 3, 5, ...), because each control plane machine is an etcd member"
	Replicas *int32 `json:"replicas,omitempty"`

	// version is the Kubernetes version of the control plane, a semantic
	// version with the prefix v, for example v1.36.3.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^v(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)([-+].+)?$')",message="must be a semantic version with the prefix v, for example v1.36.3"
	Version string `json:"version,omitempty"`

	// machineTemplate describes the control plane Machines.
	// +required
	MachineTemplate TalosControlPlaneMachineTemplate `json:"machineTemplate,omitempty,omitzero"`

	// talosConfigSpec is the Talos machine configuration of the control plane
	// Machines. Its generateType is controlplane (the default), or none with
	// the complete configuration of a control plane node in data. Its
	// hostname.source is MachineName (the default): Talos identifies etcd
	// members by host name when they join, so the host names are the
	// provider's.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.generateType) || self.generateType in ['controlplane', 'none']",message="generateType must be controlplane, or none with the configuration of a control plane node in data"
	// +kubebuilder:validation:XValidation:rule="!has(self.hostname) || !has(self.hostname.source) || self.hostname.source == 'MachineName'",message="hostname.source must be MachineName for a control plane: Talos identifies etcd members by host name when they join"
	TalosConfigSpec bootstrapv1.TalosConfigSpec `json:"talosConfigSpec,omitempty,omitzero"`

	// rollout controls how Machines are replaced when they are outdated.
	// Defaults to the strategy RollingUpdate with a maxSurge of 1.
	// +optional
	Rollout TalosControlPlaneRolloutSpec `json:"rollout,omitempty,omitzero"`

	// remediation controls how Machines that a MachineHealthCheck has found
	// unhealthy are replaced. By default they are replaced without a limit of
	// retries.
	// +optional
	Remediation TalosControlPlaneRemediationSpec `json:"remediation,omitempty,omitzero"`

	// etcd controls how the provider treats etcd members. By default a departing
	// one may be silent for 120 seconds.
	// +optional
	Etcd TalosControlPlaneEtcdSpec `json:"etcd,omitempty,omitzero"`

	// backup has etcd backed up before a rollout and before the number of replicas is
	// reduced. It needs the backup provider. By default nothing is backed up.
	// +optional
	Backup TalosControlPlaneBackupSpec `json:"backup,omitempty,omitzero"`

	// machineNaming controls the names of the Machines, and so the host names
	// of the nodes. By default a Machine is named after the TalosControlPlane,
	// with a random suffix of five characters.
	// +optional
	MachineNaming MachineNamingSpec `json:"machineNaming,omitempty,omitzero"`
}

// TalosControlPlaneMachineTemplate describes the Machines of a control plane.
type TalosControlPlaneMachineTemplate struct {
	// metadata holds the labels and annotations of the Machines, of their
	// infrastructure machines and of their TalosConfigs. Annotations that are for
	// one machine are refused. Changes reach existing objects in place. By default
	// there are none beside the provider's own.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec describes the Machines.
	// +required
	Spec TalosControlPlaneMachineTemplateSpec `json:"spec,omitempty,omitzero"`
}

// TalosControlPlaneMachineTemplateSpec is the part of the Machines' spec that
// the user decides.
type TalosControlPlaneMachineTemplateSpec struct {
	// infrastructureRef refers to the infrastructure provider's machine
	// template in the same namespace, for example a TalosMachineTemplate.
	// +required
	InfrastructureRef clusterv1.ContractVersionedObjectReference `json:"infrastructureRef,omitempty,omitzero"`

	// readinessGates are further conditions of a Machine that must be true for
	// it to be Ready. The provider always adds its own: APIServerPodHealthy,
	// ControllerManagerPodHealthy, SchedulerPodHealthy, EtcdPodHealthy and
	// EtcdMemberHealthy. With them a Machine has at most 32. By default there are
	// no others. Changes reach existing Machines in place.
	// +optional
	// +listType=map
	// +listMapKey=conditionType
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=27
	ReadinessGates []clusterv1.MachineReadinessGate `json:"readinessGates,omitempty"`

	// deletion holds the time limits for the deletion of a Machine. By default
	// draining and detaching have none. Changes reach existing Machines in place.
	// +optional
	Deletion TalosControlPlaneMachineTemplateDeletionSpec `json:"deletion,omitempty,omitzero"`

	// taints are the taints of the nodes that Cluster API manages. Taints of
	// others stay untouched. Keys that Kubernetes or Cluster API keeps for itself
	// are refused. Changes reach existing Machines in place. By default there are
	// none.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Taints []clusterv1.MachineTaint `json:"taints,omitempty"`
}

// TalosControlPlaneMachineTemplateDeletionSpec holds time limits for the
// deletion of a Machine.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneMachineTemplateDeletionSpec struct {
	// nodeDrainTimeoutSeconds limits how long a node is drained, in seconds.
	// Defaults to 0, which means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeDrainTimeoutSeconds *int32 `json:"nodeDrainTimeoutSeconds,omitempty"`

	// nodeVolumeDetachTimeoutSeconds limits how long the volumes of a node are
	// waited for, in seconds. Defaults to 0, which means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeVolumeDetachTimeoutSeconds *int32 `json:"nodeVolumeDetachTimeoutSeconds,omitempty"`

	// nodeDeletionTimeoutSeconds limits how long the deletion of the Node object
	// is tried, in seconds; 0 means no limit. Defaults to the default of the
	// Machine.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeDeletionTimeoutSeconds *int32 `json:"nodeDeletionTimeoutSeconds,omitempty"`
}

// TalosControlPlaneRolloutSpec controls how outdated Machines are replaced.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneRolloutSpec struct {
	// after is a time after which all Machines that were created before it are
	// replaced, even if nothing else has changed, in RFC 3339 form. By default
	// there is none.
	// +optional
	After metav1.Time `json:"after,omitempty,omitzero"`

	// strategy is the way of replacing Machines. Defaults to RollingUpdate with
	// a maxSurge of 1.
	// +optional
	Strategy TalosControlPlaneRolloutStrategy `json:"strategy,omitempty,omitzero"`
}

// TalosControlPlaneRolloutStrategy is the way of replacing outdated Machines.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneRolloutStrategy struct {
	// type is RollingUpdate (the provider replaces outdated Machines one after
	// the other) or OnDelete (the provider replaces a Machine only after
	// somebody has deleted it). Defaults to RollingUpdate.
	// +required
	Type TalosControlPlaneRolloutStrategyType `json:"type,omitempty"`

	// rollingUpdate holds the settings of the type RollingUpdate; with another
	// type it is dropped. Defaults to a maxSurge of 1.
	// +optional
	RollingUpdate TalosControlPlaneRolloutStrategyRollingUpdate `json:"rollingUpdate,omitempty,omitzero"`
}

// TalosControlPlaneRolloutStrategyRollingUpdate holds the settings of a rolling
// update.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneRolloutStrategyRollingUpdate struct {
	// maxSurge is the number of Machines, 0 or 1, that may exist beyond
	// spec.replicas during a rolling update: with 1 a new Machine comes before
	// an old one goes, with 0 an old one goes first, which needs at least three
	// replicas: with fewer it counts as 1. Defaults to 1.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int && (self == 0 || self == 1)",message="must be 0 or 1"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// TalosControlPlaneRemediationSpec controls how unhealthy Machines are
// replaced.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.maxRetry) || self.maxRetry == 0 || (has(self.retryPeriodSeconds) ? self.retryPeriodSeconds : 0) < (has(self.minHealthyPeriodSeconds) ? self.minHealthyPeriodSeconds : 3600)",message="retryPeriodSeconds must be less than minHealthyPeriodSeconds (3600 by default): else each failure starts a new count, and maxRetry is never reached"
type TalosControlPlaneRemediationSpec struct {
	// maxRetry limits how often the replacement of an unhealthy Machine may
	// itself be replaced. A Machine that fails later than
	// minHealthyPeriodSeconds after the previous remediation starts a new count,
	// so retryPeriodSeconds must be less. By default there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRetry *int32 `json:"maxRetry,omitempty"`

	// retryPeriodSeconds is the time to wait before a replacement is itself
	// replaced, in seconds. Defaults to 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RetryPeriodSeconds *int32 `json:"retryPeriodSeconds,omitempty"`

	// minHealthyPeriodSeconds is the time after a remediation, in seconds, from
	// which on a failure counts as unrelated to it. Defaults to 3600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinHealthyPeriodSeconds *int32 `json:"minHealthyPeriodSeconds,omitempty"`
}

// TalosControlPlaneEtcdSpec controls how etcd members are treated.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneEtcdSpec struct {
	// leaveTimeoutSeconds is how long, in seconds, a departing node may be
	// silent before its etcd member is removed through another member, which
	// also needs the quorum to stay safe. Defaults to 120.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	LeaveTimeoutSeconds *int32 `json:"leaveTimeoutSeconds,omitempty"`
}

// MachineNamingSpec controls the names of the Machines.
// +kubebuilder:validation:MinProperties=1
type MachineNamingSpec struct {
	// template is the Go template of the name of a Machine, of its
	// infrastructure machine and of its TalosConfig. It knows the variables
	// .cluster.name, .talosControlPlane.name and .random (five random
	// alphanumeric characters, which the name must contain), and has no loops and
	// no templates of its own. A result of more than 63
	// characters is cut to 58 and gets a random suffix of five. The name is the
	// host name of the node, so it must have no dots.
	// Defaults to "{{ .talosControlPlane.name }}-{{ .random }}".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('.random')",message="must contain {{ .random }}"
	Template string `json:"template,omitempty"`
}

// TalosControlPlaneStatus defines the observed state of a TalosControlPlane.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneStatus struct {
	// conditions are the observations of the control plane's present state.
	// Known types are Available, Initialized, CertificatesAvailable,
	// CertificatesExpiring, EtcdClusterHealthy, ControlPlaneComponentsHealthy,
	// MachinesReady, MachinesUpToDate, ManifestsUpToDate, RollingOut, ScalingUp,
	// ScalingDown, Remediating, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization tells how far the first set-up of the control plane is.
	// It is part of the Cluster API contract.
	// +optional
	Initialization TalosControlPlaneInitializationStatus `json:"initialization,omitempty,omitzero"`

	// selector is the label selector of the control plane Machines in string
	// form, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Selector string `json:"selector,omitempty"`

	// replicas is the number of Machines of this control plane.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// readyReplicas is the number of Machines whose Ready condition is true.
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`

	// availableReplicas is the number of Machines whose Available condition is
	// true.
	// +optional
	AvailableReplicas *int32 `json:"availableReplicas,omitempty"`

	// upToDateReplicas is the number of Machines whose UpToDate condition is
	// true.
	// +optional
	UpToDateReplicas *int32 `json:"upToDateReplicas,omitempty"`

	// versions are the Kubernetes versions of the Machines, oldest first.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Versions []clusterv1.StatusVersion `json:"versions,omitempty"`

	// version is the lowest Kubernetes version of the Machines. versions says
	// more; this field is for readers that do not know it yet.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Version string `json:"version,omitempty"`

	// observedGeneration is the latest generation that was reconciled without
	// an error.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// gracePeriods are the grace periods that run.
	// +optional
	GracePeriods TalosControlPlaneGracePeriodsStatus `json:"gracePeriods,omitempty,omitzero"`

	// lastRemediation tells about the last remediation.
	// +optional
	LastRemediation LastRemediationStatus `json:"lastRemediation,omitempty,omitzero"`
}

// TalosControlPlaneGracePeriodsStatus has the grace periods that run for nodes and etcd
// members of a control plane.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneGracePeriodsStatus struct {
	// running are the grace periods that run, so that a manager that starts goes on with
	// them.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Running []GracePeriod `json:"running,omitempty"`

	// observedTime is when the reasons of all that run were seen last. While any runs, it
	// is renewed about every 20 seconds. A manager that starts more than 60 seconds later
	// begins all of them anew, because nobody knows what has been in between.
	// +optional
	ObservedTime metav1.Time `json:"observedTime,omitempty,omitzero"`
}

// GracePeriod is the time that a node or an etcd member is given.
type GracePeriod struct {
	// type says why it runs. EtcdSilent: etcd of the node of a Machine does not answer, and
	// NotObserved: not everything of the node of a Machine can be observed. WithoutMachine:
	// an etcd member belongs to no Machine, and WithoutName: etcd lists a member without a
	// name. That of NotObserved ends after 2 minutes, when conditions of the Machine become
	// Unknown; the others end after spec.etcd.leaveTimeoutSeconds.
	// +required
	Type GracePeriodType `json:"type,omitempty"`

	// name is the name of the Machine, or the ID of the etcd member in hexadecimal digits.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// startTime is when it began.
	// +required
	StartTime metav1.Time `json:"startTime,omitempty,omitzero"`
}

// GracePeriodType says why a grace period runs.
// +kubebuilder:validation:Enum=EtcdSilent;NotObserved;WithoutMachine;WithoutName
type GracePeriodType string

const (
	// EtcdSilentGracePeriod runs while etcd of the node of a Machine does not answer.
	EtcdSilentGracePeriod GracePeriodType = "EtcdSilent"
	// NotObservedGracePeriod runs while not everything of the node of a Machine can be
	// observed.
	NotObservedGracePeriod GracePeriodType = "NotObserved"
	// WithoutMachineGracePeriod runs while an etcd member belongs to no Machine.
	WithoutMachineGracePeriod GracePeriodType = "WithoutMachine"
	// WithoutNameGracePeriod runs while etcd lists a member without a name.
	WithoutNameGracePeriod GracePeriodType = "WithoutName"
)

// TalosControlPlaneInitializationStatus tells how far the first set-up of the
// control plane is.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneInitializationStatus struct {
	// controlPlaneInitialized is true once the API server has answered for the
	// first time. It never goes back to false. It is part of the Cluster API
	// contract.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// LastRemediationStatus tells about the last remediation.
type LastRemediationStatus struct {
	// machine is the name of the Machine that was remediated last.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Machine string `json:"machine,omitempty"`

	// time is when that happened, in UTC.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// retryCount is the number of times the replacement of this Machine was
	// itself replaced.
	// +required
	// +kubebuilder:validation:Minimum=0
	RetryCount *int32 `json:"retryCount,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=taloscontrolplanes,shortName=tcp,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1beta1
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster"
// +kubebuilder:printcolumn:name="Available",type="string",JSONPath=`.status.conditions[?(@.type=="Available")].status`,description="The control plane passes all availability checks"
// +kubebuilder:printcolumn:name="Desired",type="integer",JSONPath=".spec.replicas",description="The desired number of machines"
// +kubebuilder:printcolumn:name="Current",type="integer",JSONPath=".status.replicas",description="The number of machines"
// +kubebuilder:printcolumn:name="Ready",type="integer",JSONPath=".status.readyReplicas",description="The number of machines with condition Ready true"
// +kubebuilder:printcolumn:name="Available",type="integer",JSONPath=".status.availableReplicas",description="The number of machines with condition Available true"
// +kubebuilder:printcolumn:name="Up-to-date",type="integer",JSONPath=".status.upToDateReplicas",description="The number of machines with condition UpToDate true"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Initialized",type="boolean",JSONPath=".status.initialization.controlPlaneInitialized",description="The API server has answered"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".spec.version",description="Kubernetes version"

// TalosControlPlane is a Kubernetes control plane on machines that run Talos
// Linux.
type TalosControlPlane struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosControlPlaneSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosControlPlaneStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the control plane.
func (in *TalosControlPlane) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the control plane.
func (in *TalosControlPlane) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosControlPlaneList is a list of TalosControlPlanes.
type TalosControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosControlPlanes.
	Items []TalosControlPlane `json:"items"`
}
