package reconciliation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Pace says when the objects of a controller are reconciled next. Cluster API's controllers
// reconcile an object at most once a second, so what a reconcile leaves to the next one
// costs the user a second. An empty Pace defers nothing.
type Pace struct {
	// Limiter is the controller.
	Limiter Limiter
	// Live reads from the API server.
	Live client.Reader
	// Kind is that of the controller's objects, as its cache has them: not unstructured.
	Kind schema.GroupVersionKind
}

// Limiter decides when an object is reconciled next: Cluster API's controllers do.
type Limiter interface {
	DeferNextReconcile(req reconcile.Request, reconcileAfter time.Time)
	DeferNextReconcileUntilCacheUpToDate(object metav1.Object, kind capicontroller.GroupVersionKindType, resourceVersion string)
}

// OnlyWaits lets the next reconcile of an object begin as soon as there is a reason for
// it: this one has changed nothing and asked no machine, so that it does not count.
func (p Pace) OnlyWaits(req reconcile.Request) {
	if p.Limiter != nil {
		p.Limiter.DeferNextReconcile(req, time.Time{})
	}
}

// Soonest is after how long an object that is to be tried again at once is reconciled, when
// no event has been faster: Cluster API's controllers take no less.
const Soonest = time.Second

// AfterConflict reconciles again on what is there now, when all errors are conflicts:
// somebody else was faster, or the cache was behind. That is no error, and does not count.
// Any other result and error are returned as they are.
//
// The next reconcile waits until the cache has the object as it is now. Otherwise a
// reconcile that writes a status, and so changes the object, could make the next one meet a
// conflict, and that the one after it, for as long as the cache is behind by more than the
// time between them.
func (p Pace) AfterConflict(ctx context.Context, req reconcile.Request, result reconcile.Result, err error) (reconcile.Result, error) {
	if err == nil || kerrors.FilterOut(err, apierrors.IsConflict) != nil {
		return result, err
	}
	log := ctrl.LoggerFrom(ctx).V(4)
	log.Info("Trying again after a conflict", "reason", err.Error())
	p.OnlyWaits(req)
	if err := p.awaitCache(ctx, req); err != nil {
		log.Info("Not waiting for the cache", "reason", err.Error())
	}

	return reconcile.Result{RequeueAfter: Soonest}, nil
}

// awaitCache has the next reconcile of an object wait until the cache has what the API
// server has now.
func (p Pace) awaitCache(ctx context.Context, req reconcile.Request) error {
	if p.Limiter == nil || p.Live == nil {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(p.Kind)
	if err := p.Live.Get(ctx, req.NamespacedName, object); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading %s %s: %w", p.Kind.Kind, req, err)
	}
	p.Limiter.DeferNextReconcileUntilCacheUpToDate(object, capicontroller.StructuredObject(p.Kind.GroupVersion(), p.Kind.Kind), object.ResourceVersion)

	return nil
}
