package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConsumerReference names the TalosMachine that has claimed a host. Its UID is
// an identity only inside one management cluster; where kind, namespace, name
// and providerID match it is bound again.
type ConsumerReference struct {
	// kind is the kind of the consumer, always TalosMachine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// namespace is the namespace of the consumer, always the host's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// name is the name of the consumer.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// uid is the UID of the consumer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid,omitempty"`

	// providerID is the provider ID of this claim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// HandoverProgress tells how far a hand-over is.
// +kubebuilder:validation:Enum=Started;Ran
type HandoverProgress string

const (
	// HandoverStarted says that the configuration was, or is about to be, sent.
	HandoverStarted HandoverProgress = "Started"
	// HandoverRan says that the machine was seen running with it.
	HandoverRan HandoverProgress = "Ran"
)

// HostHandover records that a machine was, or is about to be, given a
// configuration.
type HostHandover struct {
	// providerID is the provider ID of the claim that it was given for.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// progress is Started before the configuration is sent, and Ran once the
	// machine was seen running with it.
	// +required
	Progress HandoverProgress `json:"progress,omitempty"`

	// maintenanceCertFingerprint is the fingerprint of the maintenance
	// certificate of the boot in which the machine was given its configuration.
	// Another one proves another boot.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	MaintenanceCertFingerprint string `json:"maintenanceCertFingerprint,omitempty"`

	// identity is the identity that the machine had at the hand-over.
	// +optional
	Identity HostIdentity `json:"identity,omitempty,omitzero"`

	// installerImage is the image with which the machine installs Talos; empty where
	// that is installed already, or in a container.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	InstallerImage string `json:"installerImage,omitempty"`
}

// HostRelease asks for the wipe of a machine.
type HostRelease struct {
	// policy tells what is wiped.
	// +required
	Policy ReleasePolicy `json:"policy,omitempty"`

	// requestedAt is when the release was asked for.
	// +required
	RequestedAt metav1.Time `json:"requestedAt,omitempty,omitzero"`

	// timeoutSeconds is how long, in seconds, the consumer waits for the
	// release.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// consumerHealth is Unhealthy when the Machine was: the host goes into
	// quarantine.
	// +optional
	ConsumerHealth ConsumerHealth `json:"consumerHealth,omitempty"`

	// leftEtcdOf is the name of the Cluster whose etcd the machine has left. A
	// restart before the reset makes it join again: it is not wiped while it votes
	// there, as long as the Cluster is there and not being deleted. Empty means
	// that it is wiped whatever etcd says.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	LeftEtcdOf string `json:"leftEtcdOf,omitempty"`

	// identity is the identity of a machine that somebody else has configured and
	// that is wiped for its adoption: no other one is. By default it is the identity
	// of the hand-over.
	// +optional
	Identity HostIdentity `json:"identity,omitempty,omitzero"`

	// resetAt is when the machine was last told to wipe itself.
	// +optional
	ResetAt metav1.Time `json:"resetAt,omitempty,omitzero"`

	// resetCertFingerprint is the fingerprint of the certificate that the
	// configured machine presented at that time. Another one on a configured
	// machine proves that it has booted, and was not wiped.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ResetCertFingerprint string `json:"resetCertFingerprint,omitempty"`

	// volumes are the UUIDs of the volumes of the cluster that lay on the disks of the
	// machine when it was told to wipe itself: those of partitions, and of what lay on
	// whole disks. The machine is not proven wiped while one of them is found.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	Volumes []string `json:"volumes,omitempty"`
}

// MaxReleaseVolumes is how many volumes a HostRelease holds.
const MaxReleaseVolumes = 256

// HostReprovision records that a machine is wiped, and then given the
// configuration of its TalosMachine again. It is there from before the release
// until the machine was seen running again.
type HostReprovision struct {
	// clusterName is the name of the Cluster that the machine belongs to: of one
	// Cluster one machine is re-provisioned at a time.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterName string `json:"clusterName,omitempty"`

	// previous is the hand-over that is undone. Its identity is the one that the
	// machine must have when it is configured again.
	// +required
	Previous HostHandover `json:"previous,omitempty,omitzero"`
}

// MaxHostWipes is how many wipes a host remembers.
const MaxHostWipes = 8

// HostWipe records that nothing of a claim is left on the machine of a host.
type HostWipe struct {
	// providerID is the provider ID of the claim.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// provenAt is when that was proven.
	// +required
	ProvenAt metav1.Time `json:"provenAt,omitempty,omitzero"`
}

// ConsumerHealth is the health of a Machine when its host was released.
// +kubebuilder:validation:Enum=Healthy;Unhealthy
type ConsumerHealth string

const (
	// ConsumerHealthy says that nothing was known against the Machine.
	ConsumerHealthy ConsumerHealth = "Healthy"
	// ConsumerUnhealthy says that a MachineHealthCheck has found the Machine
	// unhealthy, or that the machine had lost its configuration.
	ConsumerUnhealthy ConsumerHealth = "Unhealthy"
)

// HostQuarantine records that a host was released by an unhealthy Machine. It
// is not claimed for hostRetryAfterSeconds, and after that only when no other
// host fits.
type HostQuarantine struct {
	// since is when the host was released.
	// +required
	Since metav1.Time `json:"since,omitempty,omitzero"`
}
