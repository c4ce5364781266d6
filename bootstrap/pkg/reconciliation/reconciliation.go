// Package reconciliation is what the reconciles of our controllers share: how they begin,
// when an object has its next one, how namespaces share the workers, and the recorder of
// events.
package reconciliation

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/paused"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// Begin sets condition Paused, and gives the object the finalizer, unless it is empty
// or the object is being deleted. It reports whether to proceed: not while the object or
// its Cluster, which may be nil, is paused. The object is as the management cluster has
// it then, whatever was written: live reads it again.
func Begin(
	ctx context.Context, c client.Client, live client.Reader, cluster *clusterv1.Cluster, object paused.ConditionSetter, finalizer string,
) (proceed bool, err error) {
	current := objects.ReadLive(c, live)
	isPaused, written, err := paused.EnsurePausedCondition(ctx, current, cluster, object)
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
		if err := current.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
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
