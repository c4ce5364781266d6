package release

import (
	"context"
	"time"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// removeRetry is how soon an uninstallation is tried again that has failed.
const removeRetry = 15 * time.Second

// Removal is a release that is to be uninstalled.
type Removal struct {
	Target

	// Owner is whose release it must be: another one is left alone.
	Owner   string
	Options Options
	// Digest stands for what is asked for, in the result.
	Digest string
}

// Remove uninstalls a release. The State of the result is Absent when there is none, or
// none that the owner has installed. An action that may be under way is not waited for:
// whoever began it is gone, or has ended.
func (r Runner) Remove(ctx context.Context, removal Removal, progress func(addonv1.ReleaseAction)) Result {
	result := Result{Digest: removal.Digest}
	history, err := r.Helm.History(ctx, removal.Target)
	if err != nil {
		result.Err = err
		return result
	}
	if len(history) == 0 || history[0].Owner != removal.Owner {
		result.State = addonv1.StateAbsent
		return result
	}
	result.Last, result.Deployed = &history[0], deployedOf(history)
	progress(addonv1.ActionUninstall)
	began := r.Clock.Now()
	err = r.Helm.Uninstall(ctx, removal.Target, removal.Options)
	result.Done = []Done{{Action: addonv1.ActionUninstall, Revision: history[0].Number, Took: r.Clock.Since(began), Err: err}}
	if err != nil {
		result.State, result.After = addonv1.StateFailed, removeRetry
		result.Failures, result.FailedAt = 1, r.Clock.Now()
		result.Failure = &Failure{Action: addonv1.ActionUninstall, Reason: addonv1.UninstallFailedReason, Message: err.Error()}
		return result
	}
	result.State, result.Last, result.Deployed = addonv1.StateAbsent, nil, nil

	return result
}
