package v1alpha1

import clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

// Condition types of a TalosClusterAddon. Paused is Cluster API's own.
const (
	// AddonReadyCondition is True when the chart is available and the add-on is ready in
	// all Clusters that are selected.
	AddonReadyCondition = clusterv1.ReadyCondition
	// ChartAvailableCondition reports whether the source was resolved to a chart.
	ChartAvailableCondition = "ChartAvailable"
	// ReleasesReadyCondition reports whether all releases of the add-on are ready.
	ReleasesReadyCondition = "ReleasesReady"
	// AddonDeletingCondition is True while the add-on is being deleted; the message says
	// what it waits for.
	AddonDeletingCondition = clusterv1.DeletingCondition
)

// Condition types of a TalosClusterAddonRelease. Paused is Cluster API's own.
const (
	// ReleaseReadyCondition is True when the cluster has the release as it is asked for.
	ReleaseReadyCondition = clusterv1.ReadyCondition
	// ClusterReachableCondition reports whether the API server of the cluster answers.
	ClusterReachableCondition = "ClusterReachable"
	// ReleasedCondition reports whether the chart, values and options that are asked for
	// are deployed.
	ReleasedCondition = "Released"
	// DriftedCondition is True when objects of the release were changed. It is set only
	// where drift is looked for.
	DriftedCondition = "Drifted"
	// ReleaseDeletingCondition is True while the release is being removed; the message
	// says what it waits for.
	ReleaseDeletingCondition = clusterv1.DeletingCondition
)

// Reasons of Ready, beside those of the condition that is not True.
const (
	// ReadyReason: everything is as it is asked for.
	ReadyReason = clusterv1.ReadyReason
	// NotYetKnownReason: something was not looked at yet.
	NotYetKnownReason = "NotYetKnown"
)

// Reasons of ChartAvailable.
const (
	// ChartAvailableReason: the source was resolved.
	ChartAvailableReason = clusterv1.AvailableReason
	// SourceNotFoundReason: the repository, chart, ConfigMap or its key is not there.
	SourceNotFoundReason = "SourceNotFound"
	// VersionNotFoundReason: no version of the chart is in the range.
	VersionNotFoundReason = "VersionNotFound"
	// SourceUnreachableReason: the server of the source does not answer, or its
	// certificate is not trusted.
	SourceUnreachableReason = "SourceUnreachable"
	// SourceUnauthorizedReason: the server refuses the credentials, or wants some.
	SourceUnauthorizedReason = "SourceUnauthorized"
	// SourceRefusedReason: the address may not be asked: it is one of the manager's own
	// machine or network, or can be asked by HTTP only.
	SourceRefusedReason = "SourceRefused"
	// SecretInvalidReason: a Secret of the source is missing, or of another type.
	SecretInvalidReason = "SecretInvalid"
	// ChartInvalidReason: what the source has is no chart, or too large.
	ChartInvalidReason = "ChartInvalid"
)

// Reasons of ReleasesReady.
const (
	// ReleasesReadyReason: all are ready.
	ReleasesReadyReason = "ReleasesReady"
	// ReleasesNotReadyReason: some are not; the message names some of them.
	ReleasesNotReadyReason = "ReleasesNotReady"
	// NoClusterSelectedReason: no Cluster is selected.
	NoClusterSelectedReason = "NoClusterSelected"
	// DependencyCycleReason: the add-on depends on itself by way of others.
	DependencyCycleReason = "DependencyCycle"
	// RolloutStoppedReason: the change has failed in more clusters than
	// rollout.maxFailures; it is brought to no further one.
	RolloutStoppedReason = "RolloutStopped"
)

// Reasons of ClusterReachable.
const (
	// ClusterReachableReason: the API server answers.
	ClusterReachableReason = "ClusterReachable"
	// WaitingForControlPlaneReason: the control plane of the Cluster is not initialized.
	WaitingForControlPlaneReason = "WaitingForControlPlane"
	// ClusterUnreachableReason: the API server does not answer.
	ClusterUnreachableReason = "ClusterUnreachable"
)

// Reasons of Released.
const (
	// ReleasedReason: what is asked for is deployed.
	ReleasedReason = "Released"
	// WaitingForChartReason: the source was not resolved yet.
	WaitingForChartReason = "WaitingForChart"
	// WaitingForNamespaceReason: the cluster lacks the namespace, which others are to make.
	WaitingForNamespaceReason = "WaitingForNamespace"
	// WaitingForNetworkReason: add-ons of phase Network are not ready in the cluster.
	WaitingForNetworkReason = "WaitingForNetwork"
	// WaitingForDependenciesReason: add-ons that it depends on are not ready.
	WaitingForDependenciesReason = "WaitingForDependencies"
	// WaitingForRolloutReason: other clusters are changed first.
	WaitingForRolloutReason = "WaitingForRollout"
	// WaitingForResourcesReason: an add-on of phase Network is installed, and its objects
	// are not ready.
	WaitingForResourcesReason = "WaitingForResources"
	// ValuesInvalidReason: the values cannot be made: a template fails, or something that
	// they come from is missing or no YAML.
	ValuesInvalidReason = "ValuesInvalid"
	// ActingReason: an action is under way.
	ActingReason = "Acting"
	// LockedReason: a revision is pending; it is waited for until its timeout is over.
	LockedReason = "Locked"
	// ReleaseNotManagedReason: a release of the name is there already.
	ReleaseNotManagedReason = "ReleaseNotManaged"
	// ReleaseConflictReason: another add-on has the release of that name.
	ReleaseConflictReason = "ReleaseConflict"
	// CRDConflictReason: a CustomResourceDefinition of the chart belongs to another
	// release.
	CRDConflictReason = "CRDConflict"
	// ActionFailedReason: the last action has failed; it is tried again.
	ActionFailedReason = "ActionFailed"
	// StalledReason: the last action has failed, and is not tried again before something
	// changes.
	StalledReason = "Stalled"
	// PlannedReason: the add-on is only planned.
	PlannedReason = "Planned"
)

// Reasons of Drifted, beside ClusterUnreachable and ActionFailed when drift could not be
// looked for.
const (
	// DriftedReason: objects were changed; status.drift names them.
	DriftedReason = "Drifted"
	// NotDriftedReason: no object was changed.
	NotDriftedReason = "NotDrifted"
)

// Reasons of Deleting.
const (
	// WaitingForReleasesReason: releases of the add-on are still there.
	WaitingForReleasesReason = "WaitingForReleases"
	// UninstallingReason: the release is being uninstalled.
	UninstallingReason = "Uninstalling"
	// UninstallFailedReason: it could not be uninstalled; it is tried again until its
	// time is over.
	UninstallFailedReason = "UninstallFailed"
)
