package controllers

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What tests look at by itself: they are in a package of their own, as the harness
// imports this one.
var (
	ClusterMismatch      = clusterMismatch
	GetsHost             = getsHost
	IsOtherFailureDomain = isOtherFailureDomain
	IsOtherHardware      = isOtherHardware
	IsOtherNode          = isOtherNode
	IsOtherPlace         = isOtherPlace
	LeastAvailable       = leastAvailable
	Upgraded             = upgraded
)

// ControlPlaneToWorkers is what the events of TalosMachines of a control plane wake.
func (r *MachineReconciler) ControlPlaneToWorkers(ctx context.Context, object client.Object) []ctrl.Request {
	return r.controlPlaneToWorkers(ctx, object)
}

// HostToDuplicates is what the events of hosts wake.
func (r *HostReconciler) HostToDuplicates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.hostToDuplicates(ctx, object)
}

// NodeToClusters is what the events of nodes wake.
func (r *ClusterReconciler) NodeToClusters(ctx context.Context, object client.Object) []ctrl.Request {
	return r.nodeToClusters(ctx, object)
}

// HostToTemplates is what the events of hosts wake.
func (r *MachineTemplateReconciler) HostToTemplates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.hostToTemplates(ctx, object)
}

// NodeToTemplates is what the events of nodes wake.
func (r *MachineTemplateReconciler) NodeToTemplates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.nodeToTemplates(ctx, object)
}

// ClusterToTemplates is what the events of Clusters wake.
func (r *MachineTemplateReconciler) ClusterToTemplates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.clusterToTemplates(ctx, object)
}
