package reconciliation

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// fullJitter is by what part of Soonest a reconcile is put off at most that found the share
// of its namespace taken, so that those that were refused together do not come together again.
const fullJitter = 0.5

// Fairly shares the workers of a controller so that no namespace takes all of them: it
// gets at most half of those that the others leave. A reconcile waits for machines, which
// users name: a thousand that take calls and never answer would keep the machines of
// everybody else from being looked at.
func Fairly(reconciler reconcile.Reconciler, workers int) reconcile.Reconciler {
	return &fair{inner: reconciler, workers: max(workers, 1), running: map[string]int{}}
}

// Share is how many of some workers a namespace may take, while others have so many: half
// of those that are left, and at least one.
func Share(workers, others int) int { return max((workers-others+1)/2, 1) }

type fair struct {
	inner   reconcile.Reconciler
	workers int

	mu sync.Mutex
	// running are the reconciles by namespace, and total is their sum.
	running map[string]int
	total   int
}

// Reconcile implements reconcile.Reconciler.
func (f *fair) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !f.begin(req.Namespace) {
		ctrl.LoggerFrom(ctx).V(4).Info("Waiting until fewer objects of the namespace are worked on")
		return reconcile.Result{RequeueAfter: wait.Jitter(Soonest, fullJitter)}, nil
	}
	defer f.end(req.Namespace)

	return f.inner.Reconcile(ctx, req)
}

func (f *fair) begin(namespace string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[namespace] >= Share(f.workers, f.total-f.running[namespace]) {
		return false
	}
	f.running[namespace]++
	f.total++

	return true
}

func (f *fair) end(namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total--
	if f.running[namespace]--; f.running[namespace] == 0 {
		delete(f.running, namespace)
	}
}
