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
	// is given .Cluster, .InfraCluster and .ControlPlane, as the management
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

// TalosClusterAddonStatus defines the observed state of a TalosClusterAddon.
// +kubebuilder:validation:MinProperties=1
type TalosClusterAddonStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the add-on's present state. Known types are
	// Ready, ChartAvailable, ReleasesReady, Deleting and Paused.
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
