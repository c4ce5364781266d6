package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// TalosControlPlaneTemplateSpec defines the desired state of a
// TalosControlPlaneTemplate.
type TalosControlPlaneTemplateSpec struct {
	// template is what the TalosControlPlanes are made from. It is immutable.
	// +required
	Template TalosControlPlaneTemplateResource `json:"template,omitempty,omitzero"`
}

// TalosControlPlaneTemplateResource is what TalosControlPlanes are made from.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneTemplateResource struct {
	// metadata holds the labels and annotations of the TalosControlPlanes. By
	// default there are none.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the specification of the TalosControlPlanes.
	// +optional
	Spec TalosControlPlaneTemplateResourceSpec `json:"spec,omitempty,omitzero"`
}

// TalosControlPlaneTemplateResourceSpec is the specification of a
// TalosControlPlane without what the topology of a Cluster decides: replicas,
// version and the reference to the infrastructure.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneTemplateResourceSpec struct {
	// machineTemplate describes the control plane Machines. By default nothing is
	// added to what the topology says.
	// +optional
	MachineTemplate TalosControlPlaneTemplateMachineTemplate `json:"machineTemplate,omitempty,omitzero"`

	// talosConfigSpec is the Talos machine configuration of the control plane
	// Machines. Its generateType is controlplane (the default), or none with
	// the complete configuration of a control plane node in data. Its
	// hostname.source is MachineName (the default).
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

// TalosControlPlaneTemplateMachineTemplate describes the Machines of a control
// plane without what the topology of a Cluster decides.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneTemplateMachineTemplate struct {
	// metadata holds the labels and annotations of the Machines, of their
	// infrastructure machines and of their TalosConfigs. Annotations that are for
	// one machine are refused. By default there are none beside the provider's own.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec describes the Machines.
	// +optional
	Spec TalosControlPlaneTemplateMachineTemplateSpec `json:"spec,omitempty,omitzero"`
}

// TalosControlPlaneTemplateMachineTemplateSpec is the part of the Machines'
// spec that a template decides.
// +kubebuilder:validation:MinProperties=1
type TalosControlPlaneTemplateMachineTemplateSpec struct {
	// readinessGates are further conditions of a Machine that must be true for
	// it to be Ready. With the provider's own five a Machine has at most 32. By
	// default there are none beside those.
	// +optional
	// +listType=map
	// +listMapKey=conditionType
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=27
	ReadinessGates []clusterv1.MachineReadinessGate `json:"readinessGates,omitempty"`

	// deletion holds the time limits for the deletion of a Machine. By default
	// draining and detaching have none.
	// +optional
	Deletion TalosControlPlaneMachineTemplateDeletionSpec `json:"deletion,omitempty,omitzero"`

	// taints are the taints of the nodes that Cluster API manages. Keys that
	// Kubernetes or Cluster API keeps for itself are refused. By default there are
	// none.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Taints []clusterv1.MachineTaint `json:"taints,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=taloscontrolplanetemplates,shortName=tcpt,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1beta1
// +kubebuilder:printcolumn:name="ClusterClass",type="string",JSONPath=`.metadata.ownerReferences[?(@.kind=="ClusterClass")].name`,description="Name of the ClusterClass that owns this template"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosControlPlaneTemplate is what the TalosControlPlanes of Clusters with a
// managed topology are made from.
type TalosControlPlaneTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosControlPlaneTemplateSpec `json:"spec,omitempty,omitzero"`
}

// +kubebuilder:object:root=true

// TalosControlPlaneTemplateList is a list of TalosControlPlaneTemplates.
type TalosControlPlaneTemplateList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosControlPlaneTemplates.
	Items []TalosControlPlaneTemplate `json:"items"`
}
