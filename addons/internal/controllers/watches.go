package controllers

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/order"
)

// With 50 add-ons on 40 clusters there are 2000 releases, and an add-on counts them anew
// each time one of them becomes ready. The predicates of this file let those updates pass
// alone that somebody has to act on.

// updates are the updates of a kind of objects that change something.
func updates[T client.Object](change func(before, after T) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, isBefore := e.ObjectOld.(T)
		after, isAfter := e.ObjectNew.(T)

		return isBefore && isAfter && change(before, after)
	}}
}

// selectable passes updates of a Cluster after which other add-ons may select it, or their
// releases may be deleted, which waits while it is paused.
func selectable() predicate.Predicate {
	return updates(func(before, after *clusterv1.Cluster) bool {
		return !maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations) ||
			ptr.Deref(before.Spec.Paused, false) != ptr.Deref(after.Spec.Paused, false) || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
	})
}

// releasable passes updates of an add-on that concern its releases. What it tells about
// them does not.
func releasable() predicate.Predicate {
	return updates(func(before, after *addonv1.TalosClusterAddon) bool {
		return before.Generation != after.Generation || !maps.Equal(before.Annotations, after.Annotations) || before.Status.Chart != after.Status.Chart
	})
}

// awaited passes events of a release that the others of its cluster may wait for.
func awaited() predicate.Predicate {
	passes := updates(func(before, after *addonv1.TalosClusterAddonRelease) bool {
		return order.IsCurrent(before) != order.IsCurrent(after) || before.Status.AddonGeneration != after.Status.AddonGeneration ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
	})
	isCurrent := predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		made, isRelease := e.Object.(*addonv1.TalosClusterAddonRelease)

		return isRelease && order.IsCurrent(made)
	}}

	return predicate.And(passes, isCurrent)
}

// jobToRelease maps a job to its release. How a job has ended is recorded at once, and not
// a second after the reconcile that has begun it.
func (r *ReleaseReconciler) jobToRelease(_ context.Context, object client.Object) []ctrl.Request {
	req := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}
	if r.Jobs.Result(req.NamespacedName) != nil {
		r.pace.OnlyWaits(req)
	}

	return []ctrl.Request{req}
}
