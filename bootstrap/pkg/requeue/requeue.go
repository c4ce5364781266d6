// Package requeue spreads when objects are reconciled again, so that what begins together
// does not stay together.
package requeue

import (
	"math/rand/v2"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Random picks numbers from 0 to n-1.
type Random interface {
	IntN(n int) int
}

// SharedRandom is the source of math/rand, which is seeded by the runtime and safe for
// concurrent use. It is not for secrets.
type SharedRandom struct{}

// IntN implements Random.
func (SharedRandom) IntN(n int) int {
	return rand.IntN(n) //nolint:gosec // Names, the choice of hosts and jitter are no secrets.
}

// Jitter is a duration between d and 1.25 d.
func Jitter(random Random, d time.Duration) time.Duration {
	const steps = 1000

	return d + d/4*time.Duration(random.IntN(steps))/steps
}

// After reconciles an object again after about d; not at all when d is 0.
func After(random Random, d time.Duration) ctrl.Result {
	return ctrl.Result{RequeueAfter: Jitter(random, d)}
}
