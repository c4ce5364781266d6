package othervendor

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clusterReconciler gives clusters an endpoint.
type clusterReconciler struct {
	client.Client

	cloud Cloud
}

// Reconcile implements reconcile.Reconciler.
func (r *clusterReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := newObject(clusterKind)
	if err := r.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, metav1.ObjectMeta{Namespace: object.GetNamespace(), OwnerReferences: object.GetOwnerReferences()})
	if err != nil || !object.GetDeletionTimestamp().IsZero() || cluster == nil || annotations.IsPaused(cluster, object) {
		return ctrl.Result{}, err
	}
	host, port, err := r.cloud.Balance(ctx, cluster.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := patchSpec(ctx, r.Client, object, map[string]any{
		"controlPlaneEndpoint": map[string]any{"host": host, "port": int64(port)},
	}); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, patchStatus(ctx, r.Client, object, map[string]any{"initialization": map[string]any{"provisioned": true}})
}
