// Package pacing says how soon a machine is asked again that cannot be watched.
package pacing

import (
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

const (
	// configuringPart of the interval is for machines that are being configured.
	configuringPart = 2
	// laterFactor is for what only a person can mend, and for machines that have run.
	laterFactor = 3
	// unreachableFactor makes the longest interval for machines that do not answer, and
	// wrongFactor for those that are not the right ones.
	unreachableFactor, wrongFactor = 6, 30
	// backoffPart of the time that something has not come about is waited before it is
	// looked for again.
	backoffPart = 6
	// RefusedInterval is how often the API server is asked again to take what it has
	// refused: nothing tells when a quota, a name or a rule of a namespace changes.
	RefusedInterval = 20 * time.Second
)

// Pacing spreads the questions to machines. All fields are required.
type Pacing struct {
	// Interval is about how often a machine is asked that cannot be watched.
	Interval time.Duration
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random spreads what begins together.
	Random requeue.Random
}

// After is a requeue after about d.
func (p Pacing) After(d time.Duration) ctrl.Result {
	return requeue.After(p.Random, d)
}

// Next asks again after the interval.
func (p Pacing) Next() ctrl.Result {
	return p.After(p.Interval)
}

// Soon asks again a machine that is being configured.
func (p Pacing) Soon() ctrl.Result {
	return p.After(p.Interval / configuringPart)
}

// Later asks again a machine that has run, or looks again at what only a person can mend.
func (p Pacing) Later() ctrl.Result {
	return p.After(laterFactor * p.Interval)
}

// Refused tries again what the API server has refused.
func (p Pacing) Refused() ctrl.Result {
	return p.After(RefusedInterval)
}

// Unreachable asks again a machine that has not answered since a time, which may be unknown:
// every least at first, then less and less, up to six intervals.
func (p Pacing) Unreachable(since time.Time, least time.Duration) ctrl.Result {
	return p.backoff(since, least, unreachableFactor)
}

// Wrong asks again a machine that has not been the right one since a time, which is
// somebody's to mend: as Unreachable does, but up to thirty intervals.
func (p Pacing) Wrong(since time.Time, least time.Duration) ctrl.Result {
	return p.backoff(since, least, wrongFactor)
}

func (p Pacing) backoff(since time.Time, least time.Duration, factor int) ctrl.Result {
	waited := time.Duration(0)
	if !since.IsZero() {
		waited = p.Clock.Since(since)
	}

	return p.After(max(least, min(waited/backoffPart, time.Duration(factor)*p.Interval)))
}
