package reconciliation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// Cached reads from the cache that the reconciles read.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
	// Object is an empty object of the controller's kind.
	Object client.Object
}

// NewPace is the Pace of a controller of a manager that reconciles objects like this empty one.
func NewPace(mgr ctrl.Manager, controller Limiter, object client.Object) Pace {
	return Pace{Limiter: controller, Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Object: object}
}

// Limiter decides when an object is reconciled next: Cluster API's controllers do.
type Limiter interface {
	DeferNextReconcile(req reconcile.Request, reconcileAfter time.Time)
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

const (
	// cacheTimeout is how long the cache is waited for after a conflict, and cacheInterval is
	// how often it is looked at: as in Cluster API's controller of MachinePools.
	cacheTimeout  = 10 * time.Second
	cacheInterval = 100 * time.Millisecond
)

// AfterConflict reconciles again on what is there now, when all errors are conflicts:
// somebody else was faster, or the cache was behind. That is no error, and does not count.
// Any other result and error are returned as they are.
//
// It waits until the cache has the object as it is now, up to ten seconds. Otherwise a
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
	if err := p.awaitCache(ctx, req.NamespacedName); client.IgnoreNotFound(err) != nil {
		log.Info("The cache is still behind", "reason", err.Error())
	}

	return reconcile.Result{RequeueAfter: Soonest}, nil
}

// awaitCache waits until the cache has an object as the API server has it now.
func (p Pace) awaitCache(ctx context.Context, key client.ObjectKey) error {
	if p.Object == nil {
		return nil
	}
	now, err := p.version(ctx, p.Live, key)
	if err != nil {
		return err
	}

	return wait.PollUntilContextTimeout(ctx, cacheInterval, cacheTimeout, true, func(ctx context.Context) (bool, error) {
		cached, err := p.version(ctx, p.Cached, key)
		if err != nil {
			return false, err
		}
		difference, err := resourceversion.CompareResourceVersion(cached, now)

		return difference >= 0, err
	})
}

// version is the resource version of an object.
func (p Pace) version(ctx context.Context, from client.Reader, key client.ObjectKey) (string, error) {
	object := p.Object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // It is a copy of one.
	if err := from.Get(ctx, key, object); err != nil {
		return "", fmt.Errorf("reading %s: %w", key, err)
	}

	return object.GetResourceVersion(), nil
}
