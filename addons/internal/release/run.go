package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// Objects looks after the objects of a release in a workload cluster. An error that wraps
// ErrUnreachable says that its API server did not answer.
type Objects interface {
	// HasNamespace reports whether the cluster has a namespace.
	HasNamespace(ctx context.Context, name string) (bool, error)
	// Drift returns the objects that are not as the release has them.
	Drift(ctx context.Context, content Content) ([]addonv1.DriftedObject, error)
	// Correct makes those objects as the release has them, and touches no other.
	Correct(ctx context.Context, content Content, drifted []addonv1.DriftedObject) error
	// Waiting says what is waited for until the objects work; empty when they do.
	Waiting(ctx context.Context, content Content) (string, error)
}

// Task is a release that is to be made what is asked for.
type Task struct {
	Facts

	Request Request
	// Fetch returns the archive of the chart. It is called when it is needed.
	Fetch func(ctx context.Context) ([]byte, error)
	// LookForDrift has the objects of a release looked at that is in sync.
	LookForDrift bool
	// LookWhetherReady has them waited for, where Helm does not.
	LookWhetherReady bool
}

// Result is how a release was left.
type Result struct {
	Decision

	// Digest is that of what was asked for.
	Digest string
	// Last is the newest revision, and Deployed the one that the cluster has; nil when
	// there is none.
	Last, Deployed *Revision
	// Failures, FailedAt and Failure tell of actions that have failed with this digest.
	Failures int32
	FailedAt time.Time
	Failure  *Failure
	// Drift are the objects that were changed, when DriftLookedFor says that it was looked
	// for, and DriftMissed that it could not be, though it was to be: Err says why.
	Drift                       []addonv1.DriftedObject
	DriftLookedFor, DriftMissed bool
	// Waiting says what is waited for until the objects work, when ReadinessLookedFor says
	// that it was looked for.
	Waiting            string
	ReadinessLookedFor bool
	// Plan is what would be done, where only that was asked.
	Plan *addonv1.ReleasePlan
	// Done are the actions that were carried out, and how long they took.
	Done []Done
	// Err is why nothing more is known, or could be tried. It counts as no failure.
	Err error
}

// Redacted is a result whose messages a function has changed, so that no values are in them.
func (r Result) Redacted(change func(string) string) Result {
	if r.Failure != nil {
		failure := *r.Failure
		failure.Message = change(failure.Message)
		r.Failure = &failure
	}
	if r.Plan != nil {
		plan := *r.Plan
		plan.Message = change(plan.Message)
		r.Plan = &plan
	}
	r.Done = slices.Clone(r.Done)
	for i := range r.Done {
		r.Done[i].Err = Redact(r.Done[i].Err, change)
	}
	r.Err = Redact(r.Err, change)

	return r
}

// Failure is an action that has failed.
type Failure struct {
	Action          addonv1.ReleaseAction
	Reason, Message string
}

// Done is an action that was carried out.
type Done struct {
	Action   addonv1.ReleaseAction
	Revision int32
	Took     time.Duration
	Err      error
}

// Runner carries out what is decided. All fields are required.
type Runner struct {
	Helm    Helm
	Objects Objects
	Clock   clock.PassiveClock
}

// Run judges a release, does what is next, and judges it again, until nothing is left to
// do, or only what was done before. progress is told each action before it begins.
func (r Runner) Run(ctx context.Context, task Task, progress func(addonv1.ReleaseAction)) Result {
	run := &run{Runner: r, task: task, done: map[addonv1.ReleaseAction]bool{}}
	run.result.Failures, run.result.FailedAt, run.result.Digest = task.Failures, task.FailedAt, task.Digest
	for run.step(ctx, progress) {
	}
	run.result.DriftMissed = task.LookForDrift && !run.result.DriftLookedFor && run.result.Err != nil

	return run.result
}

// run is a task that is being carried out.
type run struct {
	Runner

	task   Task
	result Result
	done   map[addonv1.ReleaseAction]bool
}

// step judges the release, does one thing, and reports whether to go on.
func (r *run) step(ctx context.Context, progress func(addonv1.ReleaseAction)) bool {
	if err := r.judge(ctx); err != nil {
		r.result.Err = err
		return false
	}
	action := r.result.Action
	if action == "" || r.done[action] {
		return false
	}
	r.done[action] = true
	progress(action)
	request, err := r.prepare(ctx, r.task, action)
	if err != nil {
		// Nothing was tried: what is missing is waited for.
		r.result.Err = err
		return false
	}
	began := r.Clock.Now()
	err = r.act(ctx, action, request)
	r.result.Done = append(r.result.Done, Done{Action: action, Revision: r.number(), Took: r.Clock.Since(began), Err: err})
	if err != nil {
		return r.fail(ctx, action, err)
	}

	return true
}

// prepare is the request for an action, with the chart where it is of use. An error says
// what is missing that others bring.
func (r Runner) prepare(ctx context.Context, task Task, action addonv1.ReleaseAction) (Request, error) {
	request := task.Request
	if action != addonv1.ActionInstall && action != addonv1.ActionUpgrade {
		return request, nil
	}
	if action == addonv1.ActionInstall && !request.Options.CreateNamespace {
		there, err := r.Objects.HasNamespace(ctx, request.Namespace)
		if err != nil {
			return request, err
		}
		if !there {
			return request, &RefusedError{Reason: addonv1.WaitingForNamespaceReason, Message: fmt.Sprintf(
				"namespace %s is not there; make it, or set release.namespacePolicy to Create", request.Namespace)}
		}
	}
	archive, err := task.Fetch(ctx)
	if err != nil {
		return request, &RefusedError{Reason: addonv1.WaitingForChartReason, Message: err.Error()}
	}
	request.Chart = archive

	return request, nil
}

// judge reads the history of the release and decides, after a look at its objects where
// that is due.
func (r *run) judge(ctx context.Context) error {
	history, err := r.Helm.History(ctx, r.task.Request.Target)
	if err != nil {
		return err
	}
	r.task.History, r.result.Last, r.result.Deployed = history, nil, deployedOf(history)
	if len(history) > 0 && history[0].Status != Uninstalled {
		r.result.Last = &history[0]
	}
	r.task.Failures, r.task.FailedAt, r.task.Now = r.result.Failures, r.result.FailedAt, r.Clock.Now()
	r.result.Decision = Decide(r.task.Facts)
	if r.result.State != addonv1.StateInSync {
		return nil
	}
	lookForDrift, lookWhetherReady := r.task.LookForDrift && !r.result.DriftLookedFor, r.task.LookWhetherReady && !r.result.ReadinessLookedFor
	if !lookForDrift && !lookWhetherReady {
		return nil
	}

	return r.look(ctx, lookForDrift, lookWhetherReady)
}

// deployedOf is the revision that the cluster has; nil when there is none.
func deployedOf(history []Revision) *Revision {
	i := slices.IndexFunc(history, func(revision Revision) bool { return revision.Status == Deployed })
	if i < 0 {
		return nil
	}

	return &history[i]
}

// look looks at the objects of the release, and decides once more.
func (r *run) look(ctx context.Context, forDrift, whetherReady bool) error {
	content, err := r.Helm.Get(ctx, r.task.Request.Target)
	if err != nil {
		return err
	}
	if whetherReady {
		if r.result.Waiting, err = r.Objects.Waiting(ctx, content); err != nil {
			return fmt.Errorf("looking whether the objects are ready: %w", err)
		}
		r.result.ReadinessLookedFor = true
	}
	if forDrift {
		if r.result.Drift, err = r.Objects.Drift(ctx, content); err != nil {
			return fmt.Errorf("looking for drift: %w", err)
		}
		r.result.DriftLookedFor = true
		r.task.Drifted = len(r.result.Drift) > 0
	}
	r.result.Decision = Decide(r.task.Facts)

	return nil
}

// number is the newest revision; 0 when there is none.
func (r *run) number() int32 {
	if r.result.Last == nil {
		return 0
	}

	return r.result.Last.Number
}

func (r *run) act(ctx context.Context, action addonv1.ReleaseAction, request Request) error {
	var err error
	switch action {
	case addonv1.ActionInstall:
		_, err = r.Helm.Install(ctx, request)
	case addonv1.ActionUpgrade:
		_, err = r.Helm.Upgrade(ctx, request)
	case addonv1.ActionUnlock:
		err = r.Helm.Unlock(ctx, request.Target, r.result.Revision)
	case addonv1.ActionRollback:
		err = r.Helm.Rollback(ctx, request.Target, r.result.Revision, request.Options)
	case addonv1.ActionUninstall:
		err = r.Helm.Uninstall(ctx, request.Target, request.Options)
	case addonv1.ActionTest:
		err = r.Helm.Test(ctx, request.Target, request.Options)
	case addonv1.ActionCorrectDrift:
		err = r.correct(ctx)
	}

	return err
}

func (r *run) correct(ctx context.Context) error {
	content, err := r.Helm.Get(ctx, r.task.Request.Target)
	if err != nil {
		return err
	}
	if err := r.Objects.Correct(ctx, content, r.result.Drift); err != nil {
		return err
	}
	r.task.Drifted = false

	return nil
}

// fail counts a failure, and reports whether to go on. What never reached Helm's storage
// because the API server did not answer is none: nothing was tried.
func (r *run) fail(ctx context.Context, action addonv1.ReleaseAction, err error) bool {
	if errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
		history, readErr := r.Helm.History(ctx, r.task.Request.Target)
		if readErr != nil || (len(history) == len(r.task.History) && (len(history) == 0 || history[0] == r.task.History[0])) {
			r.result.Err = err
			return false
		}
	}
	reason := addonv1.ActionFailedReason
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		reason = refused.Reason
	}
	r.result.Failures++
	r.result.FailedAt = r.Clock.Now()
	r.result.Failure = &Failure{Action: action, Reason: reason, Message: err.Error()}

	return true
}
