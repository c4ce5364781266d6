package controllers

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// begin begins a reconcile, and reports whether to proceed: not while the control plane or
// its Cluster is paused, nor when the Cluster was paused and is gone. Whoever deletes it
// without its finalizer has not ended the pause.
func (r *Reconciler) begin(ctx context.Context, cluster *clusterv1.Cluster, controlPlane *controlplanev1.TalosControlPlane) (bool, error) {
	if isGone(cluster) && wasPausedByCluster(controlPlane) {
		return false, r.stayPaused(ctx, cluster, controlPlane)
	}

	return reconciliation.Begin(ctx, r.Client, r.APIReader, cluster, controlPlane, controlplanev1.TalosControlPlaneFinalizer)
}

// isGone reports whether only the name of a Cluster is left.
func isGone(cluster *clusterv1.Cluster) bool { return cluster.UID == "" }

// ownPause is what Cluster API says in condition Paused of a control plane that only its own
// annotation pauses.
const ownPause = controlplanev1.TalosControlPlaneKind + " has the " + clusterv1.PausedAnnotation + " annotation"

// wasPausedByCluster reports whether the Cluster of a control plane was paused when it was
// seen last. Condition Paused is all that tells it once the Cluster is gone.
func wasPausedByCluster(controlPlane *controlplanev1.TalosControlPlane) bool {
	return conditions.IsTrue(controlPlane, clusterv1.PausedCondition) && conditions.GetMessage(controlPlane, clusterv1.PausedCondition) != ownPause
}

// stayPaused keeps condition Paused true, and says what a person can do. Nothing else is
// written.
func (r *Reconciler) stayPaused(ctx context.Context, cluster *clusterv1.Cluster, controlPlane *controlplanev1.TalosControlPlane) error {
	helper, err := patch.NewHelper(controlPlane, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return fmt.Errorf("preparing the patch: %w", err)
	}
	condition.Set(controlPlane, clusterv1.PausedCondition, condition.True(clusterv1.PausedReason,
		"Cluster "+cluster.Name+" does not exist any more, and it was paused: nothing is deleted. Create a Cluster of that name again, "+
			"with the same controlPlaneRef and infrastructureRef: the deletion goes on once spec.paused of it is not set"))
	if err := helper.Patch(ctx, controlPlane, patch.WithOwnedConditions{Conditions: []string{clusterv1.PausedCondition}}); err != nil {
		return fmt.Errorf("writing condition %s: %w", clusterv1.PausedCondition, err)
	}

	return nil
}
