// Package pass is how every pass of a controller over an object of ours begins.
//
// Cluster API's controllers make at most one pass a second over an object, so what a
// pass leaves to the next one costs the user a second.
package pass

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/paused"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Begin sets condition Paused, and gives the object the finalizer, unless it is empty
// or the object is being deleted. It tells whether the pass goes on: it does not
// while the object or its Cluster, which may be nil, is paused. The object is as the
// management cluster has it then, whatever was written: live reads it again.
func Begin(
	ctx context.Context, c client.Client, live client.Reader, cluster *clusterv1.Cluster, object paused.ConditionSetter, finalizer string,
) (goesOn bool, err error) {
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

// WhenOwned keeps objects from passes that nobody owns yet, and that nobody has
// deleted: a pass over one that waits for its owner would put off the one that is
// worth something.
func WhenOwned() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		return len(object.GetOwnerReferences()) > 0 || !object.GetDeletionTimestamp().IsZero()
	})
}
