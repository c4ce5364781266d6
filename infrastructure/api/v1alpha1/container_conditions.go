package v1alpha1

// Reasons of the conditions of a TalosMachine that runs in a Pod. Allocated
// tells about the Pod and its node, ConfigurationApplied about the configuration,
// Running about Talos.
const (
	// PodScheduledReason says that the Pod has a node.
	PodScheduledReason = "PodScheduled"
	// PodPreparingReason says that what the Pod needs is being made: the Service of
	// its etcd, its volume claim; or that the namespace cannot be read.
	PodPreparingReason = "PreparingPod"
	// PodNotScheduledReason says that no node of the management cluster fits; the
	// message has the scheduler's words.
	PodNotScheduledReason = "PodNotScheduled"
	// EtcdAddressLostReason says that the Service of etcd has another address than the
	// one that the other members know the machine by, or none.
	EtcdAddressLostReason = "EtcdAddressLost"
	// NodeNotReadyReason says that the node of the Pod is not ready, so that nobody tells
	// whether the Pod has ended; it is a reason of Allocated, Running and Deleting.
	NodeNotReadyReason = "NodeNotReady"
	// PodRefusedReason says that the API server does not take the Pod, its volume claim,
	// its Service or its Secret: the namespace forbids privileged Pods, a quota is used up,
	// or a webhook does not answer.
	PodRefusedReason = "PodRefused"
	// PodsNotAllowedReason says that the namespace lacks the label PodSecurityLabel with
	// the value PodSecurityPrivileged, with which an administrator lets machines be Pods
	// there, and a TalosCluster make a Service for them.
	PodsNotAllowedReason = "PodsNotAllowed"
	// VolumeNotBoundReason says that the volume of the Pod cannot be had, for example
	// because its storage class is missing.
	VolumeNotBoundReason = "VolumeNotBound"
	// NameConflictReason says that an object that is not of this TalosMachine has the
	// name of its Pod, volume claim, Secret or Service.
	NameConflictReason = "NameConflict"
	// PodLostReason says that the Pod is gone, and the data of the machine with it.
	// With a volume it is the volume that is gone. The Pod is made again only where the
	// machine is re-provisioned: let a MachineHealthCheck replace the Machine, or delete it.
	PodLostReason = "PodLost"
	// PodReplacingReason says that the Pod is gone or failed, and is made again on
	// its volume.
	PodReplacingReason = "ReplacingPod"
	// ClusterMismatchReason says that the TalosCluster of a control plane machine in
	// a Pod makes no Service for it, or that the one of a machine on metal does.
	ClusterMismatchReason = "ClusterMismatch"
	// ContainerNotStartedReason says that the container of the Pod does not start;
	// the message has the kubelet's words.
	ContainerNotStartedReason = "ContainerNotStarted"
	// ContainerRestartingReason says that the container of the Pod has ended, and is
	// started again.
	ContainerRestartingReason = "ContainerRestarting"
	// ImageUnavailableReason says that the image cannot be pulled; the message has
	// the kubelet's words.
	ImageUnavailableReason = "ImageUnavailable"
	// NotTalosReason says that the container runs, but that Talos does not answer in
	// it.
	NotTalosReason = "NotTalos"
	// WrongReleaseReason says that the image is another release than asked for; on
	// metal, where ConfigurationApplied has it too, that the machine runs, or would
	// go on with, another one.
	WrongReleaseReason = "WrongRelease"
	// WaitingForPodDeletionReason says that the Pod of a TalosMachine that is being
	// deleted, or what belongs to it, is still there.
	WaitingForPodDeletionReason = "WaitingForPodDeletion"
)

// Reasons of condition Ready of a TalosCluster that makes its own Service. The first
// one is also a reason of its condition Deleting.
const (
	// WaitingForServiceReason says that the Service of the control plane has no
	// address yet, or that it is being deleted; in condition Deleting, that what the
	// TalosCluster has made is still there; of a TalosMachine, that the names of the
	// Service are waited for, which belong into the configuration.
	WaitingForServiceReason = "WaitingForService"
	// ServiceRefusedReason says that the API server does not take the Service as it is
	// to be, for example because a webhook does not answer; the message has its words.
	ServiceRefusedReason = "ServiceRefused"
	// ServiceNameConflictReason says that a Service of that name belongs to somebody
	// else.
	ServiceNameConflictReason = "ServiceNameConflict"
	// ServiceAddressLostReason says that the Service has another address than the
	// endpoint of the cluster.
	ServiceAddressLostReason = "ServiceAddressLost"
	// BudgetMissingReason says that evictions of control plane machines are not held
	// back, because the API server does not take the PodDisruptionBudget, or because its
	// name is somebody else's.
	BudgetMissingReason = "BudgetMissing"
	// NetworkOverlapReason says that a network of the cluster overlaps one of the
	// management cluster.
	NetworkOverlapReason = "NetworkOverlap"
)

// Reasons of events about Pods.
const (
	// EventPodCreated is recorded when the Pod of a machine was created.
	EventPodCreated = "PodCreated"
	// EventPodLost is recorded when the Pod of a machine is gone for good.
	EventPodLost = "PodLost"
	// EventPodReplaced is recorded when the Pod of a machine is made again on its
	// volume.
	EventPodReplaced = "PodReplaced"
	// EventPodDeleted is recorded when the Pod of a machine and its data are gone.
	EventPodDeleted = "PodDeleted"
)
