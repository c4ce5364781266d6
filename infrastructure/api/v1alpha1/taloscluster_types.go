package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// DefaultControlPlaneServicePort is used when
// spec.container.controlPlaneService.port is not set.
const DefaultControlPlaneServicePort = int32(6443)

// ControlPlaneServiceType is how the Service of a control plane is reached.
// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
type ControlPlaneServiceType string

const (
	// ControlPlaneServiceClusterIP is reached inside the management cluster.
	ControlPlaneServiceClusterIP ControlPlaneServiceType = "ClusterIP"
	// ControlPlaneServiceNodePort is also reached at each node of the management
	// cluster.
	ControlPlaneServiceNodePort ControlPlaneServiceType = "NodePort"
	// ControlPlaneServiceLoadBalancer is reached at a load balancer, whose address
	// is the endpoint.
	ControlPlaneServiceLoadBalancer ControlPlaneServiceType = "LoadBalancer"
)

// TalosClusterContainerSpec says what is made for a cluster whose control plane
// runs in Pods of the management cluster.
type TalosClusterContainerSpec struct {
	// controlPlaneService is the Service at which the API servers of the cluster are
	// reached. By default its type is ClusterIP and its port 6443.
	// +optional
	ControlPlaneService ControlPlaneServiceSpec `json:"controlPlaneService,omitempty,omitzero"`
}

// ControlPlaneServiceSpec says what the Service of a control plane is like.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",message="loadBalancerClass needs type LoadBalancer"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'LoadBalancer' || !has(oldSelf.type) || oldSelf.type != 'LoadBalancer' || (has(self.loadBalancerClass) == has(oldSelf.loadBalancerClass) && (!has(self.loadBalancerClass) || self.loadBalancerClass == oldSelf.loadBalancerClass))",message="loadBalancerClass cannot be changed while type is LoadBalancer: a Service keeps its load balancer"
type ControlPlaneServiceSpec struct {
	// type is how the Service is reached: ClusterIP, NodePort or LoadBalancer. Of a
	// LoadBalancer the endpoint is the address of the load balancer, else it is
	// the cluster IP. Defaults to ClusterIP.
	// +optional
	Type ControlPlaneServiceType `json:"type,omitempty"`

	// port is the port of the Service and of the endpoint. It cannot be changed once
	// the endpoint is set. Defaults to 6443.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// annotations are put on the Service, for the controller of the load balancer.
	// By default there are none.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`

	// loadBalancerClass names the load balancer that is to serve the Service. It
	// cannot be changed while type is LoadBalancer. By default the cluster's own does.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
}

// TalosClusterSpec defines the desired state of a TalosCluster.
// +kubebuilder:validation:XValidation:rule="!has(self.container) || !has(self.controlPlaneEndpoint) || self.controlPlaneEndpoint.?port.orValue(0) == self.container.?controlPlaneService.?port.orValue(6443)",message="controlPlaneEndpoint.port must be container.controlPlaneService.port (6443 by default), at which the Service is reached"
type TalosClusterSpec struct {
	// container has the provider make a Service for the control plane of the
	// cluster, whose machines run in Pods; controlPlaneEndpoint is set from it.
	// By default the endpoint is the user's, and the control plane runs on metal.
	// Workers may be of either kind.
	// +optional
	Container *TalosClusterContainerSpec `json:"container,omitempty"`

	// controlPlaneEndpoint is the host and port at which the API server of the
	// cluster is reached: a load balancer, a DNS name or a Talos virtual IP that
	// the user provides; where container is set, the provider sets it. It can be
	// set once; without it the cluster waits.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.host) && has(self.port)",message="host and port must both be set"
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// TalosClusterInitializationStatus tells how far the first set-up of the
// infrastructure is.
// +kubebuilder:validation:MinProperties=1
type TalosClusterInitializationStatus struct {
	// provisioned is true once the infrastructure of the cluster is complete,
	// which is when it has an endpoint. It never goes back to false. It is part
	// of the Cluster API contract.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// TalosClusterStatus defines the observed state of a TalosCluster.
// +kubebuilder:validation:MinProperties=1
type TalosClusterStatus struct {
	// conditions are the observations of the cluster's present state. Known
	// types are Ready, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization tells how far the first set-up is. It is part of the
	// Cluster API contract.
	// +optional
	Initialization TalosClusterInitializationStatus `json:"initialization,omitempty,omitzero"`

	// failureDomains are the failure domains of all TalosHosts of the
	// namespace, free or not; where the control plane runs in Pods, the zones of
	// the nodes of the management cluster.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosclusters,shortName=tc,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster"
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.controlPlaneEndpoint.host",description="Host of the control plane endpoint"
// +kubebuilder:printcolumn:name="Port",type="integer",JSONPath=".spec.controlPlaneEndpoint.port",description="Port of the control plane endpoint",priority=10
// +kubebuilder:printcolumn:name="Provisioned",type="boolean",JSONPath=".status.initialization.provisioned",description="The infrastructure is complete"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Condition Ready"
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosCluster is the infrastructure of a cluster on machines that run Talos
// Linux: its endpoint and its failure domains.
type TalosCluster struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.container) == has(oldSelf.container)",message="container cannot be added or removed: a cluster is made with one kind of control plane"
	// +kubebuilder:validation:XValidation:rule="!has(oldSelf.controlPlaneEndpoint) || (has(self.controlPlaneEndpoint) && self.controlPlaneEndpoint == oldSelf.controlPlaneEndpoint)",message="controlPlaneEndpoint is immutable once it is set"
	Spec TalosClusterSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosClusterStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the cluster.
func (in *TalosCluster) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the cluster.
func (in *TalosCluster) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosClusterList is a list of TalosClusters.
type TalosClusterList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosClusters.
	Items []TalosCluster `json:"items"`
}

// TalosClusterTemplateSpec defines the desired state of a TalosClusterTemplate.
type TalosClusterTemplateSpec struct {
	// template is what TalosClusters are made from. It is immutable.
	// +optional
	Template TalosClusterTemplateResource `json:"template,omitempty,omitzero"`
}

// TalosClusterTemplateResource describes a TalosCluster made from a template.
type TalosClusterTemplateResource struct {
	// metadata holds the labels and annotations of the TalosCluster. By default
	// there are none.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the specification of the TalosCluster.
	// +optional
	Spec TalosClusterSpec `json:"spec,omitempty,omitzero"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosclustertemplates,shortName=tct,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosClusterTemplate is a template of TalosClusters, for ClusterClasses.
type TalosClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +optional
	Spec TalosClusterTemplateSpec `json:"spec,omitempty,omitzero"`
}

// +kubebuilder:object:root=true

// TalosClusterTemplateList is a list of TalosClusterTemplates.
type TalosClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosClusterTemplates.
	Items []TalosClusterTemplate `json:"items"`
}
