package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of a TalosClusterAddon.
const (
	// DefaultSourceIntervalSeconds is how often a version range is resolved again.
	DefaultSourceIntervalSeconds = int32(3600)
	// DefaultTimeoutSeconds is how long an action of Helm may take.
	DefaultTimeoutSeconds = int32(600)
	// DefaultHistoryLimit is how many revisions of a release Helm keeps.
	DefaultHistoryLimit = int32(5)
	// DefaultRetries is how often a failed action is tried again.
	DefaultRetries = int32(3)
	// DefaultDriftIntervalSeconds is how often drift is looked for.
	DefaultDriftIntervalSeconds = int32(600)
	// DefaultRemovalTimeoutSeconds is how long an uninstallation is tried.
	DefaultRemovalTimeoutSeconds = int32(900)
	// DefaultReleaseNamespace is where a release goes that names no namespace.
	DefaultReleaseNamespace = "default"
)

// Phase says when an add-on is installed in the life of a cluster.
// +kubebuilder:validation:Enum=Network;Workloads
type Phase string

const (
	// PhaseNetwork is installed as soon as the API server of the cluster answers, before
	// any of its nodes is ready.
	PhaseNetwork Phase = "Network"
	// PhaseWorkloads is installed after the add-ons of phase Network of the cluster are
	// ready.
	PhaseWorkloads Phase = "Workloads"
)

// DeletionPolicy says what becomes of a release that is no longer wanted.
// +kubebuilder:validation:Enum=Uninstall;Orphan
type DeletionPolicy string

const (
	// DeletionUninstall uninstalls it.
	DeletionUninstall DeletionPolicy = "Uninstall"
	// DeletionOrphan leaves it in place.
	DeletionOrphan DeletionPolicy = "Orphan"
)

// FailurePolicy says what is done after an action has failed.
// +kubebuilder:validation:Enum=Retry;Rollback;Uninstall
type FailurePolicy string

const (
	// FailureRetry tries it again.
	FailureRetry FailurePolicy = "Retry"
	// FailureRollback rolls back to the last revision that was deployed, and then tries
	// again. A first installation has none, and is tried again.
	FailureRollback FailurePolicy = "Rollback"
	// FailureUninstall uninstalls a failed first installation before it is tried again.
	// An upgrade is rolled back.
	FailureUninstall FailurePolicy = "Uninstall"
)

// CRDPolicy says what is done with the CustomResourceDefinitions in the folder crds of a
// chart.
// +kubebuilder:validation:Enum=Skip;Create;CreateReplace
type CRDPolicy string

const (
	// CRDSkip leaves them out.
	CRDSkip CRDPolicy = "Skip"
	// CRDCreate creates those that are missing, and changes none.
	CRDCreate CRDPolicy = "Create"
	// CRDCreateReplace creates those that are missing, and changes the others to what the
	// chart has.
	CRDCreateReplace CRDPolicy = "CreateReplace"
)

// WaitPolicy says what an action waits for.
// +kubebuilder:validation:Enum=None;Resources;ResourcesAndJobs
type WaitPolicy string

const (
	// WaitNone waits for nothing.
	WaitNone WaitPolicy = "None"
	// WaitResources waits until the objects of the release are ready.
	WaitResources WaitPolicy = "Resources"
	// WaitResourcesAndJobs waits until its Jobs are completed, too.
	WaitResourcesAndJobs WaitPolicy = "ResourcesAndJobs"
)

// NamespacePolicy says who makes the namespace of a release.
// +kubebuilder:validation:Enum=Create;Require
type NamespacePolicy string

const (
	// NamespaceCreate has it made where it is missing. It is never deleted.
	NamespaceCreate NamespacePolicy = "Create"
	// NamespaceRequire has the release wait for it.
	NamespaceRequire NamespacePolicy = "Require"
)

// TestPolicy says whether the test hooks of a chart are run.
// +kubebuilder:validation:Enum=Skip;Run
type TestPolicy string

const (
	// TestSkip leaves them out.
	TestSkip TestPolicy = "Skip"
	// TestRun runs them after each installation and upgrade, which fail when they do.
	TestRun TestPolicy = "Run"
)

// AdoptionPolicy says what is done with a release that is there already.
// +kubebuilder:validation:Enum=Never;Always
type AdoptionPolicy string

const (
	// AdoptNever leaves it alone.
	AdoptNever AdoptionPolicy = "Never"
	// AdoptAlways takes it over, unless it belongs to another TalosClusterAddon.
	AdoptAlways AdoptionPolicy = "Always"
)

// DriftMode says what is done about objects of a release that were changed.
// +kubebuilder:validation:Enum=Ignore;Warn;Correct
type DriftMode string

const (
	// DriftIgnore does not look for it.
	DriftIgnore DriftMode = "Ignore"
	// DriftWarn reports it.
	DriftWarn DriftMode = "Warn"
	// DriftCorrect reports it and changes the objects back.
	DriftCorrect DriftMode = "Correct"
)

// TalosClusterAddonSpec defines the desired state of a TalosClusterAddon.
// +kubebuilder:validation:XValidation:rule="has(self.clusterSelector) != (has(self.matchAll) && self.matchAll)",message="set clusterSelector, or matchAll: true for all Clusters of the namespace, and not both"
// +kubebuilder:validation:XValidation:rule="!has(self.phase) || self.phase != 'Network' || !has(self.dependsOn) || self.dependsOn.size() == 0",message="an add-on of phase Network cannot depend on others: they wait for it"
type TalosClusterAddonSpec struct {
	// clusterSelector selects the Clusters of the namespace that get the add-on, by
	// their labels. A Cluster whose labels no longer match loses it, as deletionPolicy
	// says.
	// +optional
	// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && self.matchLabels.size() > 0) || (has(self.matchExpressions) && self.matchExpressions.size() > 0)",message="an empty selector selects nothing; set matchAll: true for all Clusters of the namespace"
	ClusterSelector metav1.LabelSelector `json:"clusterSelector,omitempty,omitzero"`

	// matchAll selects all Clusters of the namespace, instead of clusterSelector.
	// Defaults to false.
	// +optional
	MatchAll *bool `json:"matchAll,omitempty"`

	// source says where the chart comes from.
	// +required
	Source AddonSource `json:"source,omitempty,omitzero"`

	// release says how the chart is installed in a cluster.
	// +optional
	Release ReleaseSpec `json:"release,omitempty,omitzero"`

	// values are values of the chart. By default the chart's own are used. Nothing
	// secret belongs here: use valuesFrom.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Values *apiextensionsv1.JSON `json:"values,omitempty"`

	// valuesTemplate is a Go template that renders to values of the chart, as YAML. It
	// is given .Cluster, .InfrastructureCluster and .ControlPlane, as the management
	// cluster has them, and the functions of sprig but for those that read the
	// environment, the network or the clock, or give another result each time. What it
	// says goes before values. By default there is none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	ValuesTemplate string `json:"valuesTemplate,omitempty"`

	// valuesFrom are Secrets and ConfigMaps of the namespace with values of the chart.
	// They go before values and valuesTemplate, and a later one before an earlier one.
	// Their changes are rolled out. By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	ValuesFrom []ValuesReference `json:"valuesFrom,omitempty"`

	// phase says when the add-on is installed: Network as soon as the API server of the
	// cluster answers, before any node is ready, or Workloads after the add-ons of phase
	// Network that the cluster has. Defaults to Workloads.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// dependsOn are add-ons of the namespace that must be ready in a cluster before this
	// one is installed there or changed. One that does not select the cluster is waited
	// for, too. By default there are none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	DependsOn []AddonReference `json:"dependsOn,omitempty"`

	// failure says what is done when an action has failed. By default it is tried again
	// three times.
	// +optional
	Failure FailureSpec `json:"failure,omitempty,omitzero"`

	// drift says what is done about objects of the release that somebody has changed. By
	// default nobody looks.
	// +optional
	Drift DriftSpec `json:"drift,omitempty,omitzero"`

	// rollout bounds how many clusters are changed at a time. By default all are changed
	// at once.
	// +optional
	Rollout RolloutSpec `json:"rollout,omitempty,omitzero"`

	// deletionPolicy says what becomes of the releases when the add-on is deleted or a
	// cluster is no longer selected: Uninstall or Orphan. Defaults to Uninstall.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// ReleaseSpec says how a chart is installed in a cluster.
type ReleaseSpec struct {
	// name is the name of the release. It cannot be changed. Defaults to the name of the
	// add-on.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be lower case letters, digits, - and ., and begin and end with a letter or digit"
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the release in the workload cluster. It cannot be
	// changed. Defaults to default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="must be the name of a namespace: lower case letters, digits and -"
	Namespace string `json:"namespace,omitempty"`

	// namespacePolicy says who makes the namespace: Create has it made where it is
	// missing, and never deleted; Require has the release wait for it. Defaults to Create.
	// +optional
	NamespacePolicy NamespacePolicy `json:"namespacePolicy,omitempty"`

	// crds says what is done with the CustomResourceDefinitions in the folder crds of the
	// chart, at installations and at upgrades: Skip, Create those that are missing, or
	// CreateReplace. None is ever deleted. Defaults to Create.
	// +optional
	CRDs CRDPolicy `json:"crds,omitempty"`

	// wait says what an action waits for: None, Resources or ResourcesAndJobs. Defaults
	// to Resources. An add-on of phase Network is installed without waiting, and is ready
	// when its objects are.
	// +optional
	Wait WaitPolicy `json:"wait,omitempty"`

	// timeoutSeconds is how many seconds an action may take, each of its hooks apart.
	// Defaults to 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// historyLimit is how many revisions of the release Helm keeps in the workload
	// cluster. Defaults to 5.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=100
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// tests says whether the test hooks of the chart are run after each installation and
	// upgrade: Skip or Run. Defaults to Skip.
	// +optional
	Tests TestPolicy `json:"tests,omitempty"`

	// adoption says what is done with a release of the name that is there already and
	// was not installed by an add-on: Never leaves it alone and says so; Always takes it
	// over with the next revision. Defaults to Never.
	// +optional
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// ValuesReferenceKind is a kind of object that holds values.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type ValuesReferenceKind string

// The kinds of objects that hold values.
const (
	SecretValues    ValuesReferenceKind = "Secret"
	ConfigMapValues ValuesReferenceKind = "ConfigMap"
)

// Presence says whether something that is referred to must be there.
// +kubebuilder:validation:Enum=Required;Optional
type Presence string

// Whether something must be there.
const (
	PresenceRequired Presence = "Required"
	PresenceOptional Presence = "Optional"
)

// ValuesReference refers to a Secret or ConfigMap with values of a chart.
type ValuesReference struct {
	// kind is the kind of the object: Secret or ConfigMap.
	// +required
	Kind ValuesReferenceKind `json:"kind,omitempty"`

	// name is the name of the object, in the namespace of the add-on.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key whose content is values, as YAML. Defaults to values.yaml.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`

	// presence is Optional where the object or its key may be missing. Defaults to
	// Required.
	// +optional
	Presence Presence `json:"presence,omitempty"`
}

// AddonReference refers to an add-on of the same namespace.
type AddonReference struct {
	// name is the name of the TalosClusterAddon.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// FailureSpec says what is done when an action has failed.
// +kubebuilder:validation:MinProperties=1
type FailureSpec struct {
	// onFailure is what is done before an action is tried again: Retry does nothing,
	// Rollback rolls a failed upgrade back, Uninstall also uninstalls a failed first
	// installation. Defaults to Retry.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`

	// retries is how often an action is tried again, with growing intervals, before the
	// release is given up: then nothing is done until the add-on, its values or chart
	// change, or the annotation addons.cluster.x-k8s.io/force does. Defaults to 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Retries *int32 `json:"retries,omitempty"`
}

// DriftSpec says what is done about objects of a release that were changed.
// +kubebuilder:validation:MinProperties=1
type DriftSpec struct {
	// mode is Ignore, Warn or Correct. With Warn drift is a condition and an event; with
	// Correct the objects are changed back as well. Fields that the chart does not state
	// are not drift. Defaults to Ignore.
	// +optional
	Mode DriftMode `json:"mode,omitempty"`

	// intervalSeconds is after how many seconds it is looked for again. Defaults to 600.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// ignore are fields of objects that others may change. By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Ignore []DriftIgnoreRule `json:"ignore,omitempty"`
}

// DriftIgnoreRule names fields of objects that others may change.
type DriftIgnoreRule struct {
	// kind is the kind of the objects. By default objects of all kinds are meant.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// name is the name of the objects. By default objects of all names are meant.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// paths are JSON pointers (RFC 6901) to the fields: /spec/replicas. What is below
	// them is ignored, too. An empty pointer ignores the whole object.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self == '' || self.startsWith('/')",message="must be a JSON pointer, which begins with /"
	Paths []string `json:"paths,omitempty"`
}

// RolloutSpec bounds how many clusters are changed at a time.
// +kubebuilder:validation:MinProperties=1
type RolloutSpec struct {
	// maxConcurrent is how many clusters are changed at a time. By default there is no
	// bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrent *int32 `json:"maxConcurrent,omitempty"`

	// maxFailures is in how many clusters a change may fail before it is brought to no
	// further one. By default there is no bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailures *int32 `json:"maxFailures,omitempty"`
}

// TalosClusterAddonStatus defines the observed state of a TalosClusterAddon.
// +kubebuilder:validation:MinProperties=1
type TalosClusterAddonStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the add-on's present state. Known types are
	// Ready, ChartAvailable, ReleasesReady, RollingOut, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// chart is the chart that the source was last resolved to.
	// +optional
	Chart ChartStatus `json:"chart,omitempty,omitzero"`

	// selectedClusters is how many Clusters are selected.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SelectedClusters *int32 `json:"selectedClusters,omitempty"`

	// readyReleases is in how many of them the add-on is ready as it is asked for now.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReadyReleases *int32 `json:"readyReleases,omitempty"`

	// failedReleases is in how many of them the last action has failed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailedReleases *int32 `json:"failedReleases,omitempty"`

	// driftedReleases is in how many of them objects were changed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DriftedReleases *int32 `json:"driftedReleases,omitempty"`
}

// ChartStatus is a chart that a source was resolved to.
// +kubebuilder:validation:MinProperties=1
type ChartStatus struct {
	// name is the name of the chart.
	// +optional
	// +kubebuilder:validation:MaxLength=250
	Name string `json:"name,omitempty"`

	// version is the version of the chart.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// appVersion is the version of what the chart installs, as the chart says.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	AppVersion string `json:"appVersion,omitempty"`

	// digest is the SHA-256 digest of the archive: sha256:<hex>.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Digest string `json:"digest,omitempty"`

	// resolvedAt is when the source was last resolved.
	// +optional
	ResolvedAt metav1.Time `json:"resolvedAt,omitempty,omitzero"`

	// sourceDigest is a digest of the source, without its credentials, and of the
	// versions that its ConfigMap or range had then: another one is resolved at once.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	SourceDigest string `json:"sourceDigest,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosclusteraddons,shortName=tca,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={cluster.x-k8s.io/v1beta2=v1alpha1,clusterctl.cluster.x-k8s.io/move-hierarchy=}
// +kubebuilder:printcolumn:name="Chart",type="string",JSONPath=".status.chart.name",description="Chart"
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".status.chart.version",description="Version of the chart"
// +kubebuilder:printcolumn:name="Clusters",type="integer",JSONPath=".status.selectedClusters",description="Clusters that are selected"
// +kubebuilder:printcolumn:name="Ready",type="integer",JSONPath=".status.readyReleases",description="Clusters in which it is ready"
// +kubebuilder:printcolumn:name="Failed",type="integer",JSONPath=".status.failedReleases",description="Clusters in which the last action has failed"
// +kubebuilder:printcolumn:name="Drifted",type="integer",JSONPath=".status.driftedReleases",description="Clusters in which objects were changed",priority=10
// +kubebuilder:printcolumn:name="Phase",type="string",JSONPath=".spec.phase",description="Phase",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosClusterAddon is a Helm chart that is installed in the Clusters of its namespace
// whose labels match.
// +kubebuilder:validation:XValidation:rule="(has(self.spec.release) && has(self.spec.release.name)) || size(self.metadata.name) <= 53",message="the name of a release has at most 53 characters: set spec.release.name, or give the add-on a shorter name"
type TalosClusterAddon struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	// +kubebuilder:validation:XValidation:rule="(!has(oldSelf.release) || !has(oldSelf.release.name) || (has(self.release) && has(self.release.name) && self.release.name == oldSelf.release.name)) && (!has(self.release) || !has(self.release.name) || (has(oldSelf.release) && has(oldSelf.release.name))) && (!has(oldSelf.release) || !has(oldSelf.release.__namespace__) || (has(self.release) && has(self.release.__namespace__) && self.release.__namespace__ == oldSelf.release.__namespace__)) && (!has(self.release) || !has(self.release.__namespace__) || (has(oldSelf.release) && has(oldSelf.release.__namespace__)))",message="release.name and release.namespace cannot be changed: Helm cannot move a release; make another add-on, and delete this one"
	Spec TalosClusterAddonSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosClusterAddonStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the add-on.
func (in *TalosClusterAddon) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the add-on.
func (in *TalosClusterAddon) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosClusterAddonList is a list of TalosClusterAddons.
type TalosClusterAddonList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosClusterAddons.
	Items []TalosClusterAddon `json:"items"`
}
