package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultHostRetryAfterSeconds is used when spec.hostRetryAfterSeconds is not
// set.
const DefaultHostRetryAfterSeconds = int32(3600)

// HostState is the state of a TalosHost.
// +kubebuilder:validation:Enum=Unknown;Available;Claimed;Provisioning;Provisioned;Releasing;Error
type HostState string

// States of a TalosHost: Unknown → Available → Claimed → Provisioning →
// Provisioned → Releasing → Available or Error.
const (
	// HostUnknown says that the machine has not been seen, or does not answer.
	HostUnknown HostState = "Unknown"
	// HostAvailable says that the machine waits in maintenance mode and may be
	// claimed.
	HostAvailable HostState = "Available"
	// HostClaimed says that a TalosMachine has claimed the host, but has not
	// begun to configure it.
	HostClaimed HostState = "Claimed"
	// HostProvisioning says that the machine was, or is about to be, given its
	// configuration.
	HostProvisioning HostState = "Provisioning"
	// HostProvisioned says that the machine has run with its configuration.
	HostProvisioned HostState = "Provisioned"
	// HostReleasing says that the machine is being wiped.
	HostReleasing HostState = "Releasing"
	// HostError says that the host needs attention. It is not claimed.
	HostError HostState = "Error"
)

// AdoptionPolicy tells what happens to a machine that somebody else has
// configured.
// +kubebuilder:validation:Enum=Never;WipeForeign
type AdoptionPolicy string

const (
	// AdoptionNever leaves such a machine alone.
	AdoptionNever AdoptionPolicy = "Never"
	// AdoptionWipeForeign wipes it, with the credentials of adoptionSecretRef.
	AdoptionWipeForeign AdoptionPolicy = "WipeForeign"
)

// TalosHostSpec defines the desired state of a TalosHost.
// +kubebuilder:validation:XValidation:rule="!has(self.adoptionPolicy) || self.adoptionPolicy != 'WipeForeign' || has(self.adoptionSecretRef)",message="adoptionPolicy WipeForeign needs adoptionSecretRef: a configured machine answers to its own clients only"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.consumerRef) || !has(self.consumerRef) || (has(oldSelf.providerID) == has(self.providerID) && (!has(self.providerID) || self.providerID == oldSelf.providerID))",message="providerID is immutable while the host is claimed"
type TalosHostSpec struct {
	// addresses are the IP addresses or DNS names of the machine's Talos API.
	// They are tried in order, and whoever answers must have the right identity.
	// A static address in network need not be repeated here.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Addresses []string `json:"addresses,omitempty"`

	// identity tells the machine from all others, whatever its address is. By
	// default the identity that the machine had at the hand-over is the one that
	// it must have until it is wiped.
	// +optional
	Identity HostIdentity `json:"identity,omitempty,omitzero"`

	// maintenanceCertFingerprint is the fingerprint of the certificate that the
	// machine's maintenance service presents, as Talos prints it on the console.
	// When set, the next hand-over goes to no other; the provider clears it when
	// the host is released, because Talos makes a new certificate at each boot.
	// By default any certificate is taken, and condition IdentityVerified of the
	// TalosMachine is Unknown.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	MaintenanceCertFingerprint string `json:"maintenanceCertFingerprint,omitempty"`

	// failureDomain is the failure domain of the machine. By default it has none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// network is the static network configuration of the machine. By default the
	// machine configuration says it, or DHCP does.
	// +optional
	Network HostNetwork `json:"network,omitempty,omitzero"`

	// install says where and what is installed. It goes before the machine
	// configuration, which says it by default.
	// +optional
	Install HostInstall `json:"install,omitempty,omitzero"`

	// strategicPatches are Talos strategic merge patches, in YAML, that are
	// merged in order into every machine configuration that this host is given.
	// By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=65536
	StrategicPatches []string `json:"strategicPatches,omitempty"`

	// unschedulable keeps a free host from being claimed. A host that is claimed
	// is not affected. Defaults to false.
	// +optional
	Unschedulable *bool `json:"unschedulable,omitempty"`

	// adoptionPolicy tells what happens when the machine is found configured by
	// somebody else: Never leaves it alone, WipeForeign wipes it with the
	// credentials of adoptionSecretRef. Defaults to Never.
	// +optional
	AdoptionPolicy AdoptionPolicy `json:"adoptionPolicy,omitempty"`

	// adoptionSecretRef names a Secret of the namespace whose key "talosconfig"
	// is a talosconfig with the role os:admin on the machine as it is found. One
	// that belongs to a Cluster or a TalosHost that exists is not taken. By default
	// there is none.
	// +optional
	AdoptionSecretRef SecretReference `json:"adoptionSecretRef,omitempty,omitzero"`

	// hostRetryAfterSeconds is how long, in seconds, a host is in quarantine
	// after the release of an unhealthy Machine, and how long the provider waits
	// before it wipes a host again that came back unwiped. Defaults to 3600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	HostRetryAfterSeconds *int32 `json:"hostRetryAfterSeconds,omitempty"`

	// providerID is the provider ID of the machine where somebody else, such as
	// a cloud controller manager, decides on it. It is immutable while the host
	// is claimed. By default the provider mints one at each claim.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// consumerRef is the TalosMachine that has claimed the host. It belongs to
	// the provider.
	// +optional
	ConsumerRef ConsumerReference `json:"consumerRef,omitempty,omitzero"`

	// handover records that the machine was, or is about to be, given a
	// configuration. With it the host is never available without proof of a
	// wipe. It belongs to the provider.
	// +optional
	Handover HostHandover `json:"handover,omitempty,omitzero"`

	// release asks for the wipe of the machine. It belongs to the provider.
	// +optional
	Release HostRelease `json:"release,omitempty,omitzero"`

	// quarantine records that the host was released by an unhealthy Machine. It
	// belongs to the provider.
	// +optional
	Quarantine HostQuarantine `json:"quarantine,omitempty,omitzero"`

	// reprovision records that the machine is wiped to be given the
	// configuration of its TalosMachine again. It belongs to the provider.
	// +optional
	Reprovision HostReprovision `json:"reprovision,omitempty,omitzero"`

	// wiped are the claims of which nothing is left on the machine: it was
	// proven wiped after it had their configuration, or never got it. The latest
	// is the first; one that is given its configuration again is taken out. It
	// belongs to the provider.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Wiped []HostWipe `json:"wiped,omitempty"`
}

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=taloshosts,shortName=th,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:metadata:labels=clusterctl.cluster.x-k8s.io/move-hierarchy=
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state",description="State of the host"
// +kubebuilder:printcolumn:name="Consumer",type="string",JSONPath=".spec.consumerRef.name",description="TalosMachine that has claimed the host"
// +kubebuilder:printcolumn:name="Domain",type="string",JSONPath=".spec.failureDomain",description="Failure domain"
// +kubebuilder:printcolumn:name="Address",type="string",JSONPath=".status.address",description="Address at which the machine answered last"
// +kubebuilder:printcolumn:name="Talos",type="string",JSONPath=".status.hardware.talosVersion",description="Talos release"
// +kubebuilder:printcolumn:name="Arch",type="string",JSONPath=".status.hardware.architecture",description="Processor architecture",priority=10
// +kubebuilder:printcolumn:name="CPUs",type="integer",JSONPath=".status.hardware.cpus",description="Processor cores",priority=10
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Available")].reason`,description="Why the host is, or is not, available"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=`.status.conditions[?(@.type=="Available")].message`,description="What is known and what comes next",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosHost is a machine that somebody has booted into the maintenance mode of
// Talos Linux, for TalosMachines to claim.
type TalosHost struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosHostSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosHostStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the host.
func (in *TalosHost) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the host.
func (in *TalosHost) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosHostList is a list of TalosHosts.
type TalosHostList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosHosts.
	Items []TalosHost `json:"items"`
}
