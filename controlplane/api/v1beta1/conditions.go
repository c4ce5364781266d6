package v1beta1

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Condition Available of a TalosControlPlane and its reasons.
const (
	// AvailableCondition is true when the control plane is not being deleted,
	// its secrets are there, the API server answers at the endpoint, etcd has
	// quorum, and at least one Machine has only healthy components.
	AvailableCondition = clusterv1.AvailableCondition

	// AvailableReason says that all of that holds.
	AvailableReason = clusterv1.AvailableReason

	// NotAvailableReason says that at least one part does not hold.
	NotAvailableReason = clusterv1.NotAvailableReason

	// AvailableUnknownReason says that at least one part cannot be observed,
	// and that no other is known to fail.
	AvailableUnknownReason = clusterv1.AvailableUnknownReason
)

// Condition Initialized of a TalosControlPlane and its reasons. The reasons of
// status False name what the provider is waiting for.
const (
	// InitializedCondition is true once the API server has answered for the
	// first time. It never goes back to false.
	InitializedCondition = "Initialized"

	// InitializedReason says that the API server has answered.
	InitializedReason = "Initialized"

	// NotInitializedReason says that the control plane is being set up and the
	// message says how far it is.
	NotInitializedReason = "NotInitialized"

	// WaitingForClusterInfrastructureReason says that the infrastructure of the
	// Cluster is not provisioned.
	WaitingForClusterInfrastructureReason = "WaitingForClusterInfrastructure"

	// WaitingForControlPlaneEndpointReason says that the Cluster has no control
	// plane endpoint.
	WaitingForControlPlaneEndpointReason = "WaitingForControlPlaneEndpoint"

	// WaitingForCertificatesReason says that the secrets of the cluster are not
	// there (yet).
	WaitingForCertificatesReason = "WaitingForCertificates"

	// WaitingForMachineReason says that the first Machine is not provisioned,
	// or that its node has not answered.
	WaitingForMachineReason = "WaitingForMachine"

	// WaitingForEtcdReason says that etcd was bootstrapped and is not up.
	WaitingForEtcdReason = "WaitingForEtcd"

	// WaitingForRestoreReason says that a TalosEtcdRestore holds the control plane.
	WaitingForRestoreReason = "WaitingForRestore"

	// WaitingForAPIServerReason says that etcd is up and the API server has not
	// answered.
	WaitingForAPIServerReason = "WaitingForAPIServer"

	// EndpointInUseReason says that something answers at the control plane
	// endpoint though no control plane node has etcd data: etcd is not
	// bootstrapped beside it.
	EndpointInUseReason = "EndpointInUse"

	// BootstrapIntentStaleReason says that etcd was to be, or was,
	// bootstrapped on a Machine that is not among the present ones. It is not
	// bootstrapped on another before a person has set the annotation
	// controlplane.cluster.x-k8s.io/talos-bootstrap-override.
	BootstrapIntentStaleReason = "BootstrapIntentStale"

	// EtcdDataLostReason says that etcd was bootstrapped, and that now no
	// control plane node has etcd data. It is not bootstrapped again before a
	// person has set the annotation
	// controlplane.cluster.x-k8s.io/talos-bootstrap-override.
	EtcdDataLostReason = "EtcdDataLost"

	// ForeignMachinesReason says that the Cluster has control plane Machines
	// that do not belong to this TalosControlPlane; nothing is done then.
	ForeignMachinesReason = "ForeignMachines"

	// InfrastructureMismatchReason says that the infrastructure template makes
	// machines in Pods for a TalosCluster of a control plane on metal, or the
	// reverse; no Machine is made then.
	InfrastructureMismatchReason = "InfrastructureMismatch"
)

// Condition CertificatesAvailable of a TalosControlPlane and its reasons.
const (
	// CertificatesAvailableCondition is true when the secrets bundle of the
	// cluster and the Secrets derived from it are there and are those with
	// which the cluster was bootstrapped.
	CertificatesAvailableCondition = "CertificatesAvailable"

	// CertificatesAvailableReason says that they are.
	CertificatesAvailableReason = clusterv1.AvailableReason

	// CertificatesNotAvailableReason says that a Secret is missing. Before the
	// cluster is bootstrapped it will be made; afterwards it was lost, and must
	// be restored by a person.
	CertificatesNotAvailableReason = clusterv1.NotAvailableReason

	// CertificatesChangedReason says that the secrets bundle is not the one
	// with which the cluster was bootstrapped; the original must be restored by
	// a person.
	CertificatesChangedReason = "Changed"

	// CertificatesInternalErrorReason says that the Secrets could not be read.
	CertificatesInternalErrorReason = clusterv1.InternalErrorReason
)

// Condition CertificatesExpiring of a TalosControlPlane and its reasons.
const (
	// CertificatesExpiringCondition is true when a CA of the cluster expires
	// within 180 days, or the client certificate in the kubeconfig or in the
	// talosconfig within 30 days. The message says when each of them expires.
	// Certificates on the nodes are not looked at: Talos renews them by itself.
	CertificatesExpiringCondition = "CertificatesExpiring"

	// CertificatesExpiringReason says that at least one expires soon.
	CertificatesExpiringReason = "Expiring"

	// CertificatesExpiredReason says that at least one has expired.
	CertificatesExpiredReason = "Expired"

	// CertificatesNotExpiringReason says that all are valid for long enough.
	CertificatesNotExpiringReason = "NotExpiring"

	// CertificatesExpiryUnknownReason says that the CAs cannot be read; the
	// condition CertificatesAvailable says why.
	CertificatesExpiryUnknownReason = "ExpiryUnknown"
)

// Condition ManifestsUpToDate of a TalosControlPlane and its reasons.
const (
	// ManifestsUpToDateCondition is true when Talos' own manifests in the cluster
	// (kube-proxy, CoreDNS, Flannel and what they need) are those of spec.version.
	ManifestsUpToDateCondition = "ManifestsUpToDate"

	// ManifestsUpToDateReason says that they are.
	ManifestsUpToDateReason = clusterv1.UpToDateReason

	// ManifestsWaitingReason says that they follow once all control plane Machines
	// are of that version.
	ManifestsWaitingReason = "WaitingForRollout"

	// ManifestsNotAppliedReason says that the API server of the cluster has refused
	// one of them, or could not be asked; it is tried again.
	ManifestsNotAppliedReason = "NotApplied"

	// ManifestsSkippedReason says that a person wants them left alone.
	ManifestsSkippedReason = "Skipped"

	// ManifestsUnknownReason says that there is no cluster yet.
	ManifestsUnknownReason = "NotInitialized"
)

// Condition EtcdClusterHealthy of a TalosControlPlane and its reasons.
const (
	// EtcdClusterHealthyCondition is true when etcd has quorum, each member
	// belongs to a Machine, no member is a learner and no alarm is raised.
	EtcdClusterHealthyCondition = "EtcdClusterHealthy"

	// EtcdClusterHealthyReason says that all of that holds.
	EtcdClusterHealthyReason = "Healthy"

	// EtcdClusterNotHealthyReason says that at least one part does not hold.
	EtcdClusterNotHealthyReason = "NotHealthy"

	// EtcdClusterHealthUnknownReason says that etcd cannot be observed.
	EtcdClusterHealthUnknownReason = "HealthUnknown"
)

// Condition ControlPlaneComponentsHealthy of a TalosControlPlane and its
// reasons.
const (
	// ControlPlaneComponentsHealthyCondition sums up the conditions of the
	// Machines about the API server, the controller manager, the scheduler and
	// the etcd service.
	ControlPlaneComponentsHealthyCondition = "ControlPlaneComponentsHealthy"

	// ControlPlaneComponentsHealthyReason says that all components are healthy.
	ControlPlaneComponentsHealthyReason = "Healthy"

	// ControlPlaneComponentsNotHealthyReason says that at least one is not.
	ControlPlaneComponentsNotHealthyReason = "NotHealthy"

	// ControlPlaneComponentsHealthUnknownReason says that at least one cannot
	// be observed, and that no other is known to be unhealthy.
	ControlPlaneComponentsHealthUnknownReason = "HealthUnknown"
)

// Condition MachinesReady of a TalosControlPlane and its reasons.
const (
	// MachinesReadyCondition sums up the Ready conditions of the Machines.
	MachinesReadyCondition = clusterv1.MachinesReadyCondition

	// MachinesReadyReason says that all are ready.
	MachinesReadyReason = clusterv1.ReadyReason

	// MachinesNotReadyReason says that at least one is not.
	MachinesNotReadyReason = clusterv1.NotReadyReason

	// MachinesReadyUnknownReason says that of at least one it is not known, and
	// that no other is known not to be ready.
	MachinesReadyUnknownReason = clusterv1.ReadyUnknownReason

	// MachinesReadyNoReplicasReason says that there are no Machines.
	MachinesReadyNoReplicasReason = clusterv1.NoReplicasReason

	// MachinesReadyInternalErrorReason says that the sum could not be made.
	MachinesReadyInternalErrorReason = clusterv1.InternalErrorReason
)

// Condition MachinesUpToDate of a TalosControlPlane and its reasons.
const (
	// MachinesUpToDateCondition sums up the UpToDate conditions of the
	// Machines.
	MachinesUpToDateCondition = clusterv1.MachinesUpToDateCondition

	// MachinesUpToDateReason says that all are up to date.
	MachinesUpToDateReason = clusterv1.UpToDateReason

	// MachinesNotUpToDateReason says that at least one is not.
	MachinesNotUpToDateReason = clusterv1.NotUpToDateReason

	// MachinesUpToDateUnknownReason says that of at least one it is not known,
	// and that no other is known to be outdated.
	MachinesUpToDateUnknownReason = clusterv1.UpToDateUnknownReason

	// MachinesUpToDateNoReplicasReason says that there are no Machines.
	MachinesUpToDateNoReplicasReason = clusterv1.NoReplicasReason

	// MachinesUpToDateInternalErrorReason says that the sum could not be made.
	MachinesUpToDateInternalErrorReason = clusterv1.InternalErrorReason
)

// Condition RollingOut of a TalosControlPlane and its reasons.
const (
	// RollingOutCondition is true when at least one Machine is not up to date.
	RollingOutCondition = clusterv1.RollingOutCondition

	// RollingOutReason says that at least one Machine is not up to date.
	RollingOutReason = clusterv1.RollingOutReason

	// NoSpareHostReason says that at least one Machine is not up to date, and that
	// its replacement, which comes before it goes, finds no host. Add a host, or
	// set spec.rollout.strategy.rollingUpdate.maxSurge to 0 with three or more
	// replicas: then an old Machine goes first, and its host is used again.
	NoSpareHostReason = "NoSpareHost"

	// NotRollingOutReason says that all Machines are up to date.
	NotRollingOutReason = clusterv1.NotRollingOutReason
)

// Conditions ScalingUp and ScalingDown of a TalosControlPlane and their
// reasons.
const (
	// ScalingUpCondition is true when there are fewer Machines than wanted, those that
	// are being deleted not counted, or when one waits for its turn to join etcd. The
	// message says what is waited for.
	ScalingUpCondition = clusterv1.ScalingUpCondition

	// ScalingUpReason says that there are fewer Machines than wanted.
	ScalingUpReason = clusterv1.ScalingUpReason

	// NotScalingUpReason says that there are enough Machines.
	NotScalingUpReason = clusterv1.NotScalingUpReason

	// ScalingDownCondition is true when there are more Machines than wanted.
	ScalingDownCondition = clusterv1.ScalingDownCondition

	// ScalingDownReason says that there are more Machines than wanted.
	ScalingDownReason = clusterv1.ScalingDownReason

	// NotScalingDownReason says that there are not too many Machines.
	NotScalingDownReason = clusterv1.NotScalingDownReason

	// WaitingForReplicasSetReason says that spec.replicas is not set.
	WaitingForReplicasSetReason = clusterv1.WaitingForReplicasSetReason
)

// Condition Remediating of a TalosControlPlane and its reasons.
const (
	// RemediatingCondition is true when at least one Machine waits for, or
	// undergoes, remediation.
	RemediatingCondition = clusterv1.RemediatingCondition

	// RemediatingReason says that at least one Machine is to be remediated.
	RemediatingReason = clusterv1.RemediatingReason

	// NotRemediatingReason says that no Machine is to be remediated.
	NotRemediatingReason = clusterv1.NotRemediatingReason

	// MachineRemediationDeferredReason is the reason of condition
	// OwnerRemediated of a Machine whose replacement has to wait; the message
	// says for what.
	MachineRemediationDeferredReason = "RemediationDeferred"

	// MachineRemediationMachineDeletingReason is the reason of condition
	// OwnerRemediated of a Machine that is being deleted for its remediation.
	MachineRemediationMachineDeletingReason = "MachineDeleting"

	// MachineCannotBeRemediatedReason is the reason of condition
	// OwnerRemediated of a Machine that cannot be replaced.
	MachineCannotBeRemediatedReason = "CannotBeRemediated"
)

// Condition Deleting of a TalosControlPlane and its reasons.
const (
	// DeletingCondition is true when the control plane is being deleted.
	DeletingCondition = clusterv1.DeletingCondition

	// NotDeletingReason says that it is not.
	NotDeletingReason = clusterv1.NotDeletingReason

	// DeletingWaitingForWorkersDeletionReason says that workers of the Cluster
	// are left.
	DeletingWaitingForWorkersDeletionReason = "WaitingForWorkersDeletion"

	// DeletingWaitingForMachineDeletionReason says that the control plane
	// Machines are being deleted.
	DeletingWaitingForMachineDeletionReason = "WaitingForMachineDeletion"

	// DeletingDeletionCompletedReason says that nothing is left.
	DeletingDeletionCompletedReason = clusterv1.DeletionCompletedReason

	// DeletingInternalErrorReason says that the deletion failed and is tried
	// again.
	DeletingInternalErrorReason = clusterv1.InternalErrorReason
)

// Conditions of a control plane Machine about its components, and their
// reasons. Their names begin as core Cluster API expects, which shortens its
// summaries by them.
const (
	// MachineAPIServerPodHealthyCondition tells about the static Pod of the API
	// server.
	MachineAPIServerPodHealthyCondition = "APIServerPodHealthy"

	// MachineControllerManagerPodHealthyCondition tells about the static Pod of
	// the controller manager.
	MachineControllerManagerPodHealthyCondition = "ControllerManagerPodHealthy"

	// MachineSchedulerPodHealthyCondition tells about the static Pod of the
	// scheduler.
	MachineSchedulerPodHealthyCondition = "SchedulerPodHealthy"

	// MachineEtcdPodHealthyCondition tells about etcd, which is a system service
	// in Talos.
	MachineEtcdPodHealthyCondition = "EtcdPodHealthy"

	// MachinePodRunningReason says that the component runs and is healthy.
	MachinePodRunningReason = "Running"

	// MachinePodProvisioningReason says that the component is being started.
	MachinePodProvisioningReason = "Provisioning"

	// MachinePodDoesNotExistReason says that the component is not there.
	MachinePodDoesNotExistReason = "DoesNotExist"

	// MachinePodFailedReason says that the component runs and is not healthy, or
	// has ended.
	MachinePodFailedReason = "Failed"

	// MachinePodInspectionFailedReason says that the component cannot be
	// observed.
	MachinePodInspectionFailedReason = clusterv1.InspectionFailedReason

	// MachinePodDeletingReason says that the Machine is being deleted.
	MachinePodDeletingReason = clusterv1.DeletingReason
)

// Condition EtcdMemberHealthy of a control plane Machine and its reasons.
const (
	// MachineEtcdMemberHealthyCondition is true when the Machine's etcd member
	// votes, knows a leader, reports no error and has no alarm.
	MachineEtcdMemberHealthyCondition = "EtcdMemberHealthy"

	// MachineEtcdMemberHealthyReason says that all of that holds.
	MachineEtcdMemberHealthyReason = "Healthy"

	// MachineEtcdMemberNotHealthyReason says that at least one part does not
	// hold.
	MachineEtcdMemberNotHealthyReason = "NotHealthy"

	// MachineEtcdMemberRemovedReason says that somebody removed the member from
	// etcd while its Machine stays; the node cannot join again with its data.
	MachineEtcdMemberRemovedReason = "Removed"

	// MachineEtcdMemberNeverPromotedReason says that the member is a learner, and has been
	// for so long that Talos does not have it promoted any more: delete the Machine.
	MachineEtcdMemberNeverPromotedReason = "NeverPromoted"

	// MachineEtcdMemberInspectionFailedReason says that the member cannot be
	// observed.
	MachineEtcdMemberInspectionFailedReason = clusterv1.InspectionFailedReason

	// MachineEtcdMemberDeletingReason says that the Machine is being deleted.
	MachineEtcdMemberDeletingReason = clusterv1.DeletingReason
)
