package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// TalosConfigTemplateResource is the TalosConfig that a template makes.
type TalosConfigTemplateResource struct {
	// metadata holds the labels and annotations of the TalosConfigs made from the
	// template. By default there are none.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the spec of the TalosConfigs made from the template.
	// +required
	Spec TalosConfigSpec `json:"spec,omitempty,omitzero"`
}

// TalosConfigTemplateSpec is the desired state of a TalosConfigTemplate.
type TalosConfigTemplateSpec struct {
	// template is the TalosConfig to make. It is immutable.
	// +required
	Template TalosConfigTemplateResource `json:"template,omitempty,omitzero"`
}

// TalosConfigTemplate is a template of TalosConfigs.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosconfigtemplates,shortName=tcfgt,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1beta1
// +kubebuilder:printcolumn:name="Type",type="string",JSONPath=".spec.template.spec.generateType",description="Role of the machines"
// +kubebuilder:printcolumn:name="Contract",type="string",JSONPath=".spec.template.spec.talosVersion",description="Talos configuration contract"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"
type TalosConfigTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the desired state. It is immutable.
	// +required
	Spec TalosConfigTemplateSpec `json:"spec,omitempty,omitzero"`
}

// TalosConfigTemplateList is a list of TalosConfigTemplates.
// +kubebuilder:object:root=true
type TalosConfigTemplateList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosConfigTemplates.
	Items []TalosConfigTemplate `json:"items"`
}
