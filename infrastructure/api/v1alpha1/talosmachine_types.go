package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// DefaultReleaseTimeoutSeconds is used when
// spec.metal.releaseTimeoutSeconds is not set.
const DefaultReleaseTimeoutSeconds = int32(600)

// FailureDomainPolicy tells what the wish for a failure domain is worth.
// +kubebuilder:validation:Enum=Required;Preferred
type FailureDomainPolicy string

const (
	// FailureDomainRequired takes hosts of the wished failure domain only.
	FailureDomainRequired FailureDomainPolicy = "Required"
	// FailureDomainPreferred takes a host of another failure domain where the
	// wished one has none left.
	FailureDomainPreferred FailureDomainPolicy = "Preferred"
)

// ReleasePolicy tells what happens to a host when its TalosMachine goes.
// +kubebuilder:validation:Enum=WipeSystem;WipeAll;Retain
type ReleasePolicy string

const (
	// ReleaseWipeSystem wipes STATE, EPHEMERAL and every user, raw and swap
	// volume, and reboots to maintenance mode. Boot loader and META stay, and all
	// partitions and disks that are no volumes of the cluster.
	ReleaseWipeSystem ReleasePolicy = "WipeSystem"
	// ReleaseWipeAll wipes the whole system disk with the boot loader, the whole
	// disks of STATE and EPHEMERAL, every user, raw and swap volume and partition
	// of machine.disks, and other disks on which there is nothing but those. The
	// machine comes back only where it boots from network or ISO.
	ReleaseWipeAll ReleasePolicy = "WipeAll"
	// ReleaseRetain leaves the machine as it is. The host is not claimed again
	// before somebody has wiped it.
	ReleaseRetain ReleasePolicy = "Retain"
)

// HostClaim tells how far a claim of a host is.
// +kubebuilder:validation:Enum=Intended;Bound
type HostClaim string

const (
	// HostClaimIntended says that the host was chosen, but may not be claimed
	// yet; another one may be chosen in its place.
	HostClaimIntended HostClaim = "Intended"
	// HostClaimBound says that the host was claimed. The TalosMachine never
	// changes to another host.
	HostClaimBound HostClaim = "Bound"
)

// HostProgress tells how far the machine behind a claimed host has come.
// +kubebuilder:validation:Enum=Ran
type HostProgress string

// HostRan says that the machine was seen running with its configuration.
const HostRan HostProgress = "Ran"

// TalosMachineSpec defines the desired state of a TalosMachine. It is a union:
// exactly one way of getting a machine is set.
// +kubebuilder:validation:XValidation:rule="has(self.metal) != has(self.container)",message="exactly one of metal and container must be set"
type TalosMachineSpec struct {
	// providerID identifies the machine and its Node. It is set by the provider
	// before the host is claimed or the Pod is made, as "talos://<uuid>" or the
	// provider ID that the TalosHost names, and never changes from then on. It is
	// part of the Cluster API contract.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// hostRef names the TalosHost, in the same namespace, that this machine has
	// or is about to claim. It is set by the provider.
	// +optional
	HostRef TalosMachineHostReference `json:"hostRef,omitempty,omitzero"`

	// pod is what must not be forgotten of the Pod of this machine. It is set by the
	// provider.
	// +optional
	Pod TalosMachinePod `json:"pod,omitempty,omitzero"`

	// metal takes a TalosHost: a machine, physical or virtual, that somebody
	// else has booted into the maintenance mode of Talos. Exactly one of metal and
	// container is set.
	// +optional
	Metal *TalosMachineMetalSpec `json:"metal,omitempty"`

	// container runs the Talos image in a Pod of the management cluster, in the
	// namespace and with the name of this object. The namespace must have the label
	// pod-security.kubernetes.io/enforce: privileged.
	// +optional
	Container *TalosMachineContainerSpec `json:"container,omitempty"`
}

// TalosMachineHostReference names the TalosHost of a TalosMachine.
type TalosMachineHostReference struct {
	// name is the name of the TalosHost.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// claim is Intended before the host is known to be claimed, and Bound from
	// then on.
	// +required
	Claim HostClaim `json:"claim,omitempty"`

	// progress is Ran once the machine was seen running with its configuration:
	// from then on no machine is given it, whatever becomes of the TalosHost, until
	// this one is wiped to be configured again. By default it has not run.
	// +optional
	Progress HostProgress `json:"progress,omitempty"`
}

// TalosMachineMetalSpec says which TalosHost a machine claims, and how it is
// treated.
type TalosMachineMetalSpec struct {
	// hostSelector selects the TalosHosts of the namespace that may be claimed,
	// by their labels. By default all may.
	// +optional
	HostSelector metav1.LabelSelector `json:"hostSelector,omitempty,omitzero"`

	// failureDomainPolicy tells what the failure domain of the Machine is worth:
	// Required takes hosts of that domain only, Preferred takes another one
	// where there is none left. Defaults to Preferred.
	// +optional
	FailureDomainPolicy FailureDomainPolicy `json:"failureDomainPolicy,omitempty"`

	// releasePolicy tells what happens to the host when the machine goes:
	// WipeSystem wipes STATE, EPHEMERAL and the user, raw and swap volumes, WipeAll
	// also the whole system disk with the boot loader (the machine must then boot
	// from network or ISO), the whole disks of STATE and EPHEMERAL, and those on
	// which there is nothing but volumes of the cluster, Retain nothing. All wipes
	// are fast: without disk encryption, blocks may stay readable. Defaults to
	// WipeSystem.
	// +optional
	ReleasePolicy ReleasePolicy `json:"releasePolicy,omitempty"`

	// releaseTimeoutSeconds is how long, in seconds, the release of a host is
	// waited for. After it the machine is let go, and the host is in state Error
	// until it answers and is wiped. Defaults to 600.
	// +optional
	// +kubebuilder:validation:Minimum=30
	// +kubebuilder:validation:Maximum=86400
	ReleaseTimeoutSeconds *int32 `json:"releaseTimeoutSeconds,omitempty"`

	// talos is the Talos release to install. By default it is the one that the host
	// has booted. A host on which another one is installed is not claimed.
	// +optional
	Talos TalosReleaseSpec `json:"talos,omitempty,omitzero"`
}

// TalosReleaseSpec names a Talos release.
// +kubebuilder:validation:MinProperties=1
type TalosReleaseSpec struct {
	// version is the Talos release, for example v1.13.9. On metal it is by default,
	// and where it is empty, the release that the host runs in maintenance mode; in
	// a container it is required.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^v(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)([-+].+)?$')",message="must be a semantic version with the prefix v, for example v1.13.9"
	Version string `json:"version,omitempty"`

	// image is the image of that release. On metal it is the installer image, by
	// default the one of the machine configuration, else the one of the version for
	// the platform and the schematic that the host has booted; install.image of a
	// TalosHost goes before it. In a container it is the Talos image, by default the
	// official one of the version.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// TalosMachineInitializationStatus tells how far the first set-up of the
// machine is.
// +kubebuilder:validation:MinProperties=1
type TalosMachineInitializationStatus struct {
	// provisioned is true once the machine has run with its configuration. It
	// never goes back to false. It is part of the Cluster API contract.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// TalosMachineStatus defines the observed state of a TalosMachine.
// +kubebuilder:validation:MinProperties=1
type TalosMachineStatus struct {
	// conditions are the observations of the machine's present state. Known
	// types are Ready, Allocated, ConfigurationApplied, Running,
	// IdentityVerified, Reprovisioning, Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// initialization tells how far the first set-up is. It is part of the
	// Cluster API contract.
	// +optional
	Initialization TalosMachineInitializationStatus `json:"initialization,omitempty,omitzero"`

	// addresses are the present addresses of the machine, and its host name. Those of
	// the Node in Kubernetes come first, as InternalIP, then the others on its links,
	// as InternalIP; those that the platform tells, and the one at which the machine is
	// reached where it does not know that itself, are ExternalIP or ExternalDNS. Left
	// out are addresses that are link-local, of Pods and Services, of links of the CNI
	// and of kube-proxy, and the control plane endpoint unless it is that of the Node.
	// At most 32 are told.
	// +optional
	Addresses clusterv1.MachineAddresses `json:"addresses,omitempty"`

	// failureDomain is the failure domain of the host, or the zone of the node on
	// which the Pod runs.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// talosVersion is the Talos release that the machine runs. Where it is another
	// one than the talos.version that is wished, the condition Running says so.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TalosVersion string `json:"talosVersion,omitempty"`

	// installerImage is the image with which Talos was installed when the host was
	// configured; empty where it was installed before, or in a container.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	InstallerImage string `json:"installerImage,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosmachines,shortName=tm,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster"
// +kubebuilder:printcolumn:name="Host",type="string",JSONPath=".spec.hostRef.name",description="TalosHost of the machine"
// +kubebuilder:printcolumn:name="Machine",type="string",JSONPath=`.metadata.ownerReferences[?(@.kind=="Machine")].name`,description="Machine that owns it",priority=10
// +kubebuilder:printcolumn:name="ProviderID",type="string",JSONPath=".spec.providerID",description="Provider ID",priority=10
// +kubebuilder:printcolumn:name="Provisioned",type="boolean",JSONPath=".status.initialization.provisioned",description="The machine has run with its configuration"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Condition Ready"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of condition Ready",priority=10
// +kubebuilder:printcolumn:name="Talos",type="string",JSONPath=".status.talosVersion",description="Talos release",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosMachine is the infrastructure of one Machine: a claim on a TalosHost, or a
// Pod.
type TalosMachine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosMachineSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosMachineStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the machine.
func (in *TalosMachine) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the machine.
func (in *TalosMachine) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosMachineList is a list of TalosMachines.
type TalosMachineList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosMachines.
	Items []TalosMachine `json:"items"`
}

// TalosMachineTemplateSpec defines the desired state of a TalosMachineTemplate.
type TalosMachineTemplateSpec struct {
	// template is what TalosMachines are made from. It is immutable.
	// +required
	Template TalosMachineTemplateResource `json:"template,omitempty,omitzero"`
}

// TalosMachineTemplateResource describes a TalosMachine made from a template.
type TalosMachineTemplateResource struct {
	// metadata holds the labels and annotations of the TalosMachine. By default
	// there are none.
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	// spec is the specification of the TalosMachine.
	// +required
	// +kubebuilder:validation:XValidation:rule="!has(self.providerID) && !has(self.hostRef) && !has(self.pod)",message="providerID, hostRef and pod belong to the provider and must not be set in a template"
	Spec TalosMachineSpec `json:"spec,omitempty,omitzero"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosmachinetemplates,shortName=tmt,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:printcolumn:name="CPU",type="string",JSONPath=".status.capacity.cpu",description="CPU of a Node made from it",priority=10
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".status.capacity.memory",description="Memory of a Node made from it",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosMachineTemplate is a template of TalosMachines.
type TalosMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosMachineTemplateSpec `json:"spec,omitempty,omitzero"`

	// status is what a Node made from the template will be like.
	// +optional
	Status TalosMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// +kubebuilder:object:root=true

// TalosMachineTemplateList is a list of TalosMachineTemplates.
type TalosMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosMachineTemplates.
	Items []TalosMachineTemplate `json:"items"`
}
