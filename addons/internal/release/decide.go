package release

import (
	"fmt"
	"time"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	// lockGrace is how long after its timeout a pending revision is waited for: clocks
	// differ, and what failed is still to be written then.
	lockGrace = 30 * time.Second
	// firstRetry is after how long a failed action is tried again, doubled with each
	// failure up to lastRetry.
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// Facts are what a release is judged by.
type Facts struct {
	// Owner is who wants it, and Digest what it shall be.
	Owner, Digest string
	// History are its revisions, the newest first.
	History []Revision
	// Drifted reports whether objects of it were changed.
	Drifted bool
	// Timeout is how long actions may take now.
	Timeout time.Duration
	// Adoption says what is done with the release of somebody else, Drift with one that
	// was changed, and OnFailure with one that failed.
	Adoption  addonv1.AdoptionPolicy
	Drift     addonv1.DriftMode
	OnFailure addonv1.FailurePolicy
	// Retries is how often is tried again what has failed Failures times with this
	// digest, the last time at FailedAt.
	Retries, Failures int32
	FailedAt          time.Time
	// Tests reports whether each revision is tested.
	Tests bool
	// Now is the time.
	Now time.Time
}

// Decision is what a release was judged to be, and what is done next.
type Decision struct {
	State addonv1.ReleaseState
	// Action is what is done next; empty when nothing is.
	Action addonv1.ReleaseAction
	// Revision is the one that is unlocked or rolled back to.
	Revision int32
	// After is how long to wait before it is judged again; 0 when nothing is waited for.
	After time.Duration
	// Reason and Message are those of condition Released while nothing can be done.
	Reason, Message string
}

// Decide judges a release.
func Decide(facts Facts) Decision {
	if len(facts.History) == 0 || facts.History[0].Status == Uninstalled {
		return facts.paced(Decision{State: addonv1.StateAbsent, Action: addonv1.ActionInstall})
	}
	last := facts.History[0]
	switch {
	case last.Owner != facts.Owner && last.Owner != "":
		return Decision{State: addonv1.StateUnmanaged, Reason: addonv1.ReleaseConflictReason, Message: "another TalosClusterAddon has installed the release; give one of the two another release.name or release.namespace"}
	case last.Owner != facts.Owner && facts.Adoption != addonv1.AdoptAlways:
		return Decision{State: addonv1.StateUnmanaged, Reason: addonv1.ReleaseNotManagedReason, Message: "a release of the name is there that no TalosClusterAddon has installed; set release.adoption to Always to take it over, or another release.name"}
	case last.Status == Pending:
		return facts.locked(last)
	case last.Status == Uninstalling:
		return Decision{State: addonv1.StateLocked, Action: addonv1.ActionUninstall}
	case last.Status == Failed && last.Digest == facts.Digest:
		return facts.remedied(addonv1.ActionUpgrade)
	case last.Digest != facts.Digest || last.Owner != facts.Owner:
		return facts.paced(Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade})
	}

	return facts.deployed(last)
}

// deployed judges a release that is what is asked for: whether its tests have passed, and
// its objects are as they were made.
func (f Facts) deployed(last Revision) Decision {
	switch {
	case f.Tests && last.Tests == TestsFailed:
		return f.remedied(addonv1.ActionTest)
	case f.Tests && last.Tests != TestsPassed:
		return f.paced(Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionTest})
	case f.Drifted && f.Drift == addonv1.DriftCorrect:
		return Decision{State: addonv1.StateDrifted, Action: addonv1.ActionCorrectDrift}
	case f.Drifted:
		return Decision{State: addonv1.StateDrifted}
	}

	return Decision{State: addonv1.StateInSync}
}

// locked waits for a pending revision as long as its action may take: whoever began it may
// be at it still.
func (f Facts) locked(last Revision) Decision {
	timeout := f.Timeout
	if last.Timeout > 0 {
		timeout = last.Timeout
	}
	if left := last.At.Add(timeout + lockGrace).Sub(f.Now); left > 0 {
		return Decision{
			State: addonv1.StateLocked, After: left, Reason: addonv1.LockedReason,
			Message: fmt.Sprintf("revision %d is pending; it is given up when its time is over", last.Number),
		}
	}

	return Decision{State: addonv1.StateLocked, Action: addonv1.ActionUnlock, Revision: last.Number}
}

// remedied undoes what has failed, where the policy says so, and has it tried again.
func (f Facts) remedied(again addonv1.ReleaseAction) Decision {
	former := f.lastGood()
	switch {
	case former != nil && (f.OnFailure == addonv1.FailureRollback || f.OnFailure == addonv1.FailureUninstall):
		return Decision{State: addonv1.StateFailed, Action: addonv1.ActionRollback, Revision: former.Number}
	case former == nil && f.OnFailure == addonv1.FailureUninstall:
		return Decision{State: addonv1.StateFailed, Action: addonv1.ActionUninstall}
	}

	return f.paced(Decision{State: addonv1.StateFailed, Action: again})
}

// lastGood is the newest former revision that was deployed, and has not failed its tests;
// nil when there is none.
func (f Facts) lastGood() *Revision {
	for _, status := range []Status{Deployed, Superseded} {
		for i := 1; i < len(f.History); i++ {
			if former := &f.History[i]; former.Status == status && (!f.Tests || former.Tests != TestsFailed) {
				return former
			}
		}
	}

	return nil
}

// paced puts an action off that has failed before, and gives it up after its retries.
func (f Facts) paced(decision Decision) Decision {
	if f.Failures == 0 {
		return decision
	}
	if f.Failures > f.Retries {
		decision.Action, decision.Reason = "", addonv1.StalledReason
		return decision
	}
	if left := f.FailedAt.Add(backoff(f.Failures)).Sub(f.Now); left > 0 {
		decision.Action, decision.After, decision.Reason = "", left, addonv1.ActionFailedReason
	}

	return decision
}

// backoff is how long to wait after so many failures.
func backoff(failures int32) time.Duration {
	wait := firstRetry
	for ; failures > 1 && wait < lastRetry; failures-- {
		wait *= 2
	}

	return min(wait, lastRetry)
}
