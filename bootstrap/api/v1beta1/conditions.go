package v1beta1

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// Condition types of a TalosConfig. Paused is Cluster API's own.
const (
	// TalosConfigReadyCondition is True when the bootstrap data Secret exists. It
	// is mirrored into the Machine as BootstrapConfigReady. Certificates that are
	// missed later do not change it: the machine has its configuration.
	TalosConfigReadyCondition = clusterv1.ReadyCondition

	// TalosConfigCertificatesAvailableCondition reports whether the secrets
	// bundle of the cluster is there and is the one the cluster began with.
	TalosConfigCertificatesAvailableCondition = "CertificatesAvailable"

	// TalosConfigDataSecretAvailableCondition reports whether the machine
	// configuration is rendered and stored in the bootstrap data Secret.
	TalosConfigDataSecretAvailableCondition = "DataSecretAvailable"

	// TalosConfigClientConfigAvailableCondition reports whether the
	// <cluster>-talosconfig Secret is there and current. It is set on the
	// TalosConfigs of control plane Machines only.
	TalosConfigClientConfigAvailableCondition = "ClientConfigAvailable"
)

// Reasons of CertificatesAvailable.
const (
	// CertificatesAvailableReason: the bundle is there.
	CertificatesAvailableReason = clusterv1.AvailableReason
	// CertificatesWaitingReason: the bundle is made once the infrastructure of
	// the cluster is provisioned.
	CertificatesWaitingReason = "WaitingForClusterInfrastructure"
	// BundleMissingReason: the cluster has begun and its bundle is gone; the
	// message tells what shows that it has begun. No new one is ever made;
	// restore the Secret from a backup.
	BundleMissingReason = "BundleMissing"
	// BundleChangedReason: the bundle is another one than the cluster began
	// with; restore the former content.
	BundleChangedReason = "BundleChanged"
	// BundleInvalidReason: the Secret's content is no Talos secrets bundle.
	BundleInvalidReason = "BundleInvalid"
	// CertificatesErrorReason: a Secret with keys of the cluster could not be read or
	// made. The condition is false when the API server does not take it, in whose words
	// the message says why, and else unknown. It is retried.
	CertificatesErrorReason = clusterv1.InternalErrorReason
)

// Reasons of DataSecretAvailable.
const (
	// DataSecretAvailableReason: the Secret exists.
	DataSecretAvailableReason = clusterv1.AvailableReason
	// WaitingForClusterInfrastructureReason: the Cluster's infrastructure is
	// not provisioned yet.
	WaitingForClusterInfrastructureReason = "WaitingForClusterInfrastructure"
	// WaitingForControlPlaneEndpointReason: the Cluster has no control plane
	// endpoint yet; set it on the TalosCluster.
	WaitingForControlPlaneEndpointReason = "WaitingForControlPlaneEndpoint"
	// WaitingForCertificatesReason: the secrets bundle is not usable.
	WaitingForCertificatesReason = "WaitingForCertificates"
	// PatchFailedReason: a patch does not apply, or makes what Talos would
	// refuse; the message names it.
	PatchFailedReason = "PatchFailed"
	// InvalidConfigurationReason: Talos would refuse the configuration; the
	// message carries its words.
	InvalidConfigurationReason = "InvalidConfiguration"
	// HeldByOwnerReason: what made the TalosConfig holds the bootstrap data
	// back with HoldBootstrapDataAnnotation; the message says why.
	HeldByOwnerReason = "HeldByOwner"
	// ClusterNetworkChangedReason: spec.clusterNetwork of the Cluster is another
	// one than when its first machine was made; change it back, or see
	// AllowNetworkChangeAnnotation.
	ClusterNetworkChangedReason = "ClusterNetworkChanged"
	// DataSecretForeignReason: a Secret of that name belongs to somebody else.
	DataSecretForeignReason = "DataSecretNotOwned"
	// DataSecretErrorReason: a call to the Kubernetes API has failed. The condition is
	// false when that does not take the Secret, in whose words the message says why, and
	// else unknown. It is retried.
	DataSecretErrorReason = clusterv1.InternalErrorReason
)

// Reasons of ClientConfigAvailable.
const (
	// ClientConfigAvailableReason: the Secret exists and is current.
	ClientConfigAvailableReason = clusterv1.AvailableReason
	// ClientConfigWaitingReason: the secrets bundle is not usable, or the
	// TalosControlPlane, which makes the Secret for its Cluster, has not yet.
	ClientConfigWaitingReason = WaitingForCertificatesReason
	// ClientConfigErrorReason: the Secret could not be read or written. The condition is
	// false when the API server does not take it, in whose words the message says why, and
	// else unknown. It is retried.
	ClientConfigErrorReason = clusterv1.InternalErrorReason
)

// EventAttention is the reason of the event that is recorded when the API server does not
// take a Secret; its note begins with the condition that says why.
const EventAttention = "NeedsAttention"

// BundleDigestAnnotation on a Cluster's `<cluster>-ca` Secret records the
// digest of the secrets bundle that the cluster began with, so that a changed
// bundle is found (design D6). A Secret that a user brought outlives the Cluster,
// and the record with it: it counts only once this Cluster has begun.
const BundleDigestAnnotation = "bootstrap.cluster.x-k8s.io/talos-bundle-digest"

// EncryptionDigestAnnotation beside it records a digest of the key with which
// API servers encrypt Secrets in etcd. It is keyed with the bundle.
const EncryptionDigestAnnotation = "bootstrap.cluster.x-k8s.io/talos-encryption-digest"

// ClusterNetworkAnnotation beside it records spec.clusterNetwork of the Cluster,
// as JSON, with Talos' defaults for what it leaves open.
const ClusterNetworkAnnotation = "bootstrap.cluster.x-k8s.io/talos-cluster-network"

// AllowNetworkChangeAnnotation on a Cluster lets machines that are made from now on
// have the networks that are in its spec, though it has begun with others, and
// records those. Its value does not matter. It can be removed once new machines
// have their configuration.
const AllowNetworkChangeAnnotation = "bootstrap.cluster.x-k8s.io/talos-allow-network-change"

// GeneratedAnnotation marks the Secrets of a cluster that the provider made: they
// belong to the Cluster, and go with it. A Secret of their names without it was
// brought by a user, and outlives the Cluster. Its value does not matter.
const GeneratedAnnotation = "bootstrap.cluster.x-k8s.io/generated"

// HoldBootstrapDataAnnotation on a TalosConfig holds its bootstrap data back:
// while it is there no bootstrap data Secret is made, so that the machine is
// claimed but not configured. Its value tells a person why, and is the message of
// the conditions DataSecretAvailable and Ready, which are False with the reason
// HeldByOwner. Whoever set it removes it. It means nothing once the Secret
// exists: a configuration that was handed over cannot be taken back.
const HoldBootstrapDataAnnotation = "bootstrap.cluster.x-k8s.io/hold-bootstrap-data"
