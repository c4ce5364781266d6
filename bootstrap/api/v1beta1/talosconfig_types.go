package v1beta1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GenerateType says for which role a machine configuration is generated.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="self in ['controlplane', 'worker', 'none']",message="must be controlplane, worker or none; where it was init use controlplane: the control plane provider bootstraps etcd"
type GenerateType string

const (
	// GenerateTypeControlPlane generates the configuration of a control plane
	// machine.
	GenerateTypeControlPlane GenerateType = "controlplane"
	// GenerateTypeWorker generates the configuration of a worker.
	GenerateTypeWorker GenerateType = "worker"
	// GenerateTypeNone generates nothing: data is the machine configuration.
	GenerateTypeNone GenerateType = "none"
)

// HostnameSource says what a machine's host name is taken from.
// +kubebuilder:validation:Enum=MachineName;InfrastructureName
type HostnameSource string

const (
	// HostnameSourceMachineName takes the name of the Machine.
	HostnameSourceMachineName HostnameSource = "MachineName"
	// HostnameSourceInfrastructureName takes the name of the infrastructure
	// machine.
	HostnameSourceInfrastructureName HostnameSource = "InfrastructureName"
)

// CNI says who brings the network of Pods.
// +kubebuilder:validation:Enum=flannel;none
type CNI string

const (
	// CNIFlannel leaves it to Talos, which installs Flannel.
	CNIFlannel CNI = "flannel"
	// CNINone leaves Flannel out: somebody else brings it, for instance an add-on.
	CNINone CNI = "none"
)

// HostnameSpec says how a machine gets its host name.
// +kubebuilder:validation:MinProperties=1
type HostnameSpec struct {
	// source is what the host name is taken from: MachineName or
	// InfrastructureName. Without it workers get their name from their platform
	// or patches; control plane machines always take MachineName, because Talos
	// removes an etcd member of the same name when a node joins.
	// +optional
	Source HostnameSource `json:"source,omitempty"`
}

// ConfigPatch is one operation of RFC 6902.
type ConfigPatch struct {
	// op is the operation: add, remove, replace, move, copy or test.
	// +required
	// +kubebuilder:validation:Enum=add;remove;replace;move;copy;test
	Op string `json:"op,omitempty"`

	// path is the JSON pointer of the field in the v1alpha1 document.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	Path string `json:"path,omitempty"`

	// from is the JSON pointer that move and copy take the value from. Other
	// operations need none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	From string `json:"from,omitempty"`

	// value is the value of add, replace and test. Other operations need none.
	// +optional
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
}

// TalosConfigSpec says how the machine configuration of a machine is made.
// +kubebuilder:validation:XValidation:rule="(has(self.generateType) && self.generateType == 'none') == has(self.data)",message="data must be set when generateType is none, and only then"
// +kubebuilder:validation:XValidation:rule="!has(self.cni) || !has(self.generateType) || self.generateType == 'controlplane'",message="cni is for generateType controlplane alone: only control plane machines install a CNI"
type TalosConfigSpec struct {
	// generateType is the role for which the configuration is generated:
	// controlplane, worker, or none to pass data through. In a
	// TalosControlPlane it defaults to controlplane, else it must be set. The
	// former type init is refused: use controlplane, the control plane provider
	// bootstraps etcd.
	// +optional
	GenerateType GenerateType `json:"generateType,omitempty"`

	// talosVersion is the configuration contract, for example v1.13: the
	// configuration is generated as that minor release of Talos understands
	// it. It does not select the release that is installed. Supported: v1.12,
	// v1.13, v1.14.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^v1[.](12|13|14)([.][0-9]+(-[0-9A-Za-z.-]+)?)?$')",message="must be one of the supported configuration contracts v1.12, v1.13 and v1.14, for example v1.13"
	TalosVersion string `json:"talosVersion,omitempty"`

	// data is a complete machine configuration, for generateType none only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=524288
	Data string `json:"data,omitempty"`

	// configPatches are RFC 6902 operations on the generated v1alpha1 document
	// alone, applied first and in order. By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	ConfigPatches []ConfigPatch `json:"configPatches,omitempty"`

	// strategicPatches are Talos strategic merge patches, each of one or more
	// YAML documents, applied after configPatches and in order. By default there
	// are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=262144
	StrategicPatches []string `json:"strategicPatches,omitempty"`

	// cni says who brings the network of Pods (CNI): flannel, which Talos installs, or
	// none, where an add-on or somebody else does. What it stands for is the same in
	// each contract, and it is stated before the patches. Only control plane machines
	// make these manifests, so it is for generateType controlplane alone. Defaults to
	// flannel.
	// +optional
	CNI CNI `json:"cni,omitempty"`

	// hostname says how the machine gets its host name. By default a control plane
	// machine has that of its Machine, and a worker that of its platform.
	// +optional
	Hostname HostnameSpec `json:"hostname,omitempty,omitzero"`
}

// TalosConfigInitializationStatus tells how far the first set-up is.
// +kubebuilder:validation:MinProperties=1
type TalosConfigInitializationStatus struct {
	// dataSecretCreated is true once the bootstrap data Secret exists. It is
	// part of the Cluster API contract.
	// +optional
	DataSecretCreated *bool `json:"dataSecretCreated,omitempty"`
}

// TalosConfigStatus is what was observed of a TalosConfig.
// +kubebuilder:validation:MinProperties=1
type TalosConfigStatus struct {
	// conditions are the observations of the present state. Known types are
	// Ready, CertificatesAvailable, DataSecretAvailable, ClientConfigAvailable
	// and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization tells how far the first set-up is. It is part of the
	// Cluster API contract.
	// +optional
	Initialization TalosConfigInitializationStatus `json:"initialization,omitempty,omitzero"`

	// dataSecretName is the name of the Secret that holds the machine
	// configuration under the key value.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	DataSecretName string `json:"dataSecretName,omitempty"`

	// observedGeneration is the generation that the last successful reconcile saw.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// TalosConfig makes the machine configuration of one Machine.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosconfigs,shortName=tcfg,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1beta1
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster"
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".spec.generateType",description="Role of the machine"
// +kubebuilder:printcolumn:name="Contract",type="string",JSONPath=".spec.talosVersion",description="Talos configuration contract"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status",description="The bootstrap data Secret exists"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=".status.conditions[?(@.type=='Paused')].status",description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type TalosConfig struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the desired state. It is immutable.
	// +required
	Spec TalosConfigSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosConfigStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions.
func (c *TalosConfig) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions.
func (c *TalosConfig) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}

// TalosConfigList is a list of TalosConfigs.
// +kubebuilder:object:root=true
type TalosConfigList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosConfigs.
	Items []TalosConfig `json:"items"`
}
