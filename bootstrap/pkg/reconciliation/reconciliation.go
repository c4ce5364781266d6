// Package reconciliation is what the reconciles of our controllers share: how they begin,
// when an object has its next one, how namespaces share the workers, and the recorder of
// events.
//
// Cluster API's controllers reconcile an object at most once a second, so what a
// reconcile leaves to the next one costs the user a second.
package reconciliation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Begin sets condition Paused, and gives the object the finalizer, unless it is empty
// or the object is being deleted. It reports whether to proceed: not while the object or
// its Cluster, which may be nil, is paused. The object is as the management cluster has
// it then, whatever was written: live reads it again.
func Begin(
	ctx context.Context, c client.Client, live client.Reader, cluster *clusterv1.Cluster, object paused.ConditionSetter, finalizer string,
) (proceed bool, err error) {
	isPaused, written, err := paused.EnsurePausedCondition(ctx, c, cluster, object)
	if err != nil || isPaused {
		return false, err
	}
	if finalizer != "" {
		added, err := finalizers.EnsureFinalizer(ctx, c, object, finalizer)
		if err != nil {
			return false, fmt.Errorf("adding the finalizer: %w", err)
		}
		// The answer to that was the whole object.
		written = written && !added
	}
	if written {
		if err := live.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return false, client.IgnoreNotFound(err)
		}
	}

	return true, nil
}

// Requests are those for the objects of a list that are meant.
func Requests[T any, P interface {
	*T
	client.Object
}](objects []T, are func(P) bool,
) []reconcile.Request {
	var requests []reconcile.Request
	for i := range objects {
		if object := P(&objects[i]); are(object) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		}
	}

	return requests
}

// Limiter decides when an object is reconciled next: Cluster API's controllers do.
type Limiter interface {
	DeferNextReconcile(req reconcile.Request, reconcileAfter time.Time)
}

// OnlyWaits lets the next reconcile of an object begin as soon as there is a reason for
// it: this one has changed nothing and asked no machine, so that it does not count. A
// limiter that is nil limits nothing.
func OnlyWaits(limiter Limiter, req reconcile.Request) {
	if limiter != nil {
		limiter.DeferNextReconcile(req, time.Time{})
	}
}

// conflictRetryInterval is how soon an object is reconciled again after a conflict, when no
// event has been faster.
const conflictRetryInterval = 200 * time.Millisecond

// AgainAfterConflict reconciles again on what is there now, when somebody else was
// faster, or the cache was behind: that is no error, and does not count.
func AgainAfterConflict(ctx context.Context, limiter Limiter, req reconcile.Request, result reconcile.Result, err error) (reconcile.Result, error) {
	if err == nil || kerrors.FilterOut(err, apierrors.IsConflict) != nil {
		return result, err
	}
	ctrl.LoggerFrom(ctx).V(4).Info("Trying again after a conflict", "reason", err.Error())
	OnlyWaits(limiter, req)

	return reconcile.Result{RequeueAfter: conflictRetryInterval}, nil
}
