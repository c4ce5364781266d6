package etcdhistory

import "errors"

// Shrink drops steps of a history as long as what is left still diverges, and
// returns the last divergence. rerun runs a history; at most limit times.
func Shrink(found *Divergence, limit int, rerun func(History) error) *Divergence {
	for step := len(found.History.Steps) - 2; step >= 0 && limit > 0; step-- {
		limit--
		if smaller, is := errors.AsType[*Divergence](rerun(found.History.without(step))); is {
			found = smaller
			step = min(step, len(found.History.Steps)-1)
		}
	}
	return found
}
