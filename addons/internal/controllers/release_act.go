package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

const (
	// readyInterval is how soon is looked again whether the objects of a release work.
	readyInterval = 10 * time.Second
	// unreachableInterval is how soon is tried again what the API server has not answered.
	unreachableInterval = 15 * time.Second
	// unmanagedInterval is how soon is looked again at the release of somebody else.
	unmanagedInterval = 2 * time.Minute
	// stalledInterval is how soon is looked again at a release that was given up and could
	// not be undone.
	stalledInterval = 10 * time.Minute
	// busyInterval is how soon a job is tried to be started again, when no event has told
	// that there is room.
	busyInterval = 30 * time.Second
)

// act starts a job where something is to be done.
func (r *ReleaseReconciler) act(ctx context.Context, s *releaseScope) error {
	if action, running := r.Jobs.Running(s.key()); running {
		s.released = condition.Unknownf(addonv1.ActingReason, "%s is under way", actionText(action))
		return nil
	}
	r.heedForce(s)
	s.heedAbsence()
	wait, due := r.due(s)
	s.again(wait)
	if !due {
		return nil
	}
	connection, err := r.Connect(ctx, types.NamespacedName{Namespace: s.cluster.Namespace, Name: s.cluster.Name}, s.addon.Spec.Drift.Ignore)
	if err != nil {
		return fmt.Errorf("connecting to the Cluster: %w", err)
	}
	task := r.taskOf(s)
	task.Fetch = r.fetch(s.addon.DeepCopy())
	runner := release.Runner{Helm: connection.Helm, Objects: connection.Objects, Clock: r.Clock}
	started := r.start(s, func(ctx context.Context, progress func(addonv1.ReleaseAction)) release.Result {
		return runner.Run(ctx, task, progress)
	})
	if started && s.release.Status.Deployed.Digest != s.digest {
		s.released = condition.Unknown(addonv1.ActingReason, "it is looked at")
	}

	return nil
}

// start starts a job of the release, whose result is counted and has no values in it. It
// reports whether it does: not while too many are at work.
func (r *ReleaseReconciler) start(s *releaseScope, work jobs.Work[addonv1.ReleaseAction, release.Result]) bool {
	key, hidden := jobs.Key{Namespace: s.release.Namespace, Name: s.release.Name, Cluster: s.release.Spec.ClusterName}, s.hidden
	started := r.Jobs.Start(key, func(ctx context.Context, progress func(addonv1.ReleaseAction)) release.Result {
		result := work(ctx, progress).Redacted(hidden.In)
		r.Metrics.Ended(result)
		return result
	})
	if !started {
		s.again(busyInterval)
	}

	return started
}

func actionText(action addonv1.ReleaseAction) string {
	if action == "" {
		return "a look at the release"
	}

	return string(action)
}

// fetch fetches the archive of an add-on's chart.
func (r *ReleaseReconciler) fetch(addon *addonv1.TalosClusterAddon) func(ctx context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		from := addon.Spec.Source
		if from.ConfigMap.Name != "" {
			archive, err := archiveOf(ctx, r.Content, addon.Namespace, from.ConfigMap)
			if err == nil && source.DigestOf(archive) != addon.Status.Chart.Digest {
				return nil, &source.Error{Reason: addonv1.WaitingForChartReason, Message: fmt.Sprintf("ConfigMap %s was changed meanwhile", from.ConfigMap.Name)}
			}
			return archive, err
		}
		access, _, err := accessTo(ctx, r.Content, addon.Namespace, from)
		if err != nil {
			return nil, err
		}
		return r.Charts.Archive(ctx, from, access, addon.Status.Chart)
	}
}

// heedForce has a release tried again that was given up, or looked at whatever its status says,
// once for each value of the annotation.
func (r *ReleaseReconciler) heedForce(s *releaseScope) {
	value := s.release.Annotations[addonv1.ForceAnnotation] + s.addon.Annotations[addonv1.ForceAnnotation]
	value = condition.Cut(value, maxForced)
	if value == "" || value == s.release.Status.LastForced {
		return
	}
	s.release.Status.LastForced = value
	s.release.Status.Failure = addonv1.ReleaseFailure{}
	s.release.Status.State = ""
	r.holds.forget(s.key())
}

// heedAbsence has a release looked at whose cluster was not attended to for a while: its etcd may
// have been restored from a backup that has another revision, or none. That the state is not known
// is kept until a job has read the history.
func (s *releaseScope) heedAbsence() {
	if s.isDeployed() && (order.IsUnreachable(s.release) || s.wasPaused) {
		s.release.Status.State = ""
	}
}

// maxForced is how much of the annotation is kept.
const maxForced = 256

// due reports whether a job is to be started, or how soon to look again.
func (r *ReleaseReconciler) due(s *releaseScope) (time.Duration, bool) {
	status := &s.release.Status
	if hold := r.holds.left(s.key(), s.digest); hold > 0 {
		return hold, false
	}
	if s.isDeployed() {
		drift := r.driftIsDue(s)
		if drift == 0 || (s.addon.Spec.Phase == addonv1.PhaseNetwork && !conditions.IsTrue(s.release, addonv1.ReleasedCondition)) {
			return 0, true
		}
		return max(drift, 0), false
	}
	// What has failed is undone, where the policy says so, though it is not tried again.
	isUndone := status.State != addonv1.StateFailed || s.addon.Spec.Failure.OnFailure == "" || s.addon.Spec.Failure.OnFailure == addonv1.FailureRetry
	if failure := status.Failure; failure.Digest == s.digest && failure.Count > s.retries() && isUndone {
		return 0, false
	}

	return 0, true
}

// takeResult takes in how the last job has ended.
func (r *ReleaseReconciler) takeResult(ctx context.Context, s *releaseScope) {
	result := r.Jobs.Result(s.key())
	if result == nil {
		return
	}
	s.ended = result
	if result.Plan != nil {
		s.release.Status.Plan = *result.Plan
		s.release.Status.Plan.Message = condition.Cut(result.Plan.Message, maxPlanMessage)
		return
	}
	s.decided = decidedBy(result)
	s.removed = result.Digest == uninstallDigest && result.Err == nil && result.State == addonv1.StateAbsent
	status := &s.release.Status
	for _, done := range result.Done {
		r.tell(s, done)
	}
	if result.State != "" {
		status.State = result.State
	}
	r.takeDeployed(status, result)
	r.takeFailure(s, result)
	if result.ReadinessLookedFor {
		s.readiness = ptr.To(result.Waiting)
	}
	if result.DriftLookedFor {
		status.Drift, status.DriftCheckedAt = result.Drift, metav1.NewTime(r.Clock.Now())
		if result.State == addonv1.StateInSync {
			status.Drift = nil
		}
	}
	r.holds.set(s.key(), result.Digest, holdOf(result))
	if result.Err != nil {
		ctrl.LoggerFrom(ctx).Info("A job has ended without a result", "reason", result.Err.Error())
	}
}

// decidedBy is what a job has said that could do nothing.
func decidedBy(result *release.Result) condition.Finding {
	switch {
	case result.Err != nil:
		return condition.Unknown(reasonOf(result.Err, addonv1.ClusterUnreachableReason), cut(result.Err.Error()))
	case result.State == addonv1.StateUnmanaged:
		return condition.False(result.Reason, result.Message)
	case result.State == addonv1.StateLocked:
		return condition.Unknown(addonv1.LockedReason, result.Message)
	}

	return condition.Finding{}
}

// told is an error for a condition. Why an API server does not answer has addresses and
// times in it, with which the condition would change at each try.
func told(err error) string {
	if errors.Is(err, release.ErrUnreachable) {
		return release.ErrUnreachable.Error()
	}

	return cut(objects.Words(err))
}

// reasonOf is the reason that an error has, or another one.
func reasonOf(err error, other string) string {
	if refused := (*release.RefusedError)(nil); errors.As(err, &refused) {
		return refused.Reason
	}

	return other
}

func (r *ReleaseReconciler) takeDeployed(status *addonv1.TalosClusterAddonReleaseStatus, result *release.Result) {
	if result.Err != nil && result.Last == nil {
		return
	}
	status.Deployed = addonv1.DeployedRelease{}
	if has := result.Deployed; has != nil {
		status.Deployed = addonv1.DeployedRelease{
			// Whoever may write Secrets in the workload cluster may write anything there.
			Revision: max(has.Number, 0), Chart: condition.Cut(has.Chart, maxChartName), Version: condition.Cut(has.Version, maxChartVersion),
			Digest: condition.Cut(has.Digest, maxChartVersion), DeployedAt: metav1.NewTime(has.At),
		}
	}
}

// takeFailure keeps what has failed, until the release is as it was asked for.
func (r *ReleaseReconciler) takeFailure(s *releaseScope, result *release.Result) {
	status := &s.release.Status
	if result.State == addonv1.StateInSync || result.State == addonv1.StateDrifted {
		status.Failure = addonv1.ReleaseFailure{}
		return
	}
	if result.Failure == nil {
		return
	}
	status.Failure = addonv1.ReleaseFailure{
		Count: result.Failures, Digest: result.Digest, Action: result.Failure.Action, Reason: result.Failure.Reason,
		Message: cut(result.Failure.Message), At: metav1.NewTime(result.FailedAt),
	}
}

const (
	// maxMessage and maxPlanMessage are how long a message, and that of a plan, may be.
	maxMessage, maxPlanMessage = 2048, 1024
	// maxChartName and maxChartVersion are how long the name and the version of a chart may
	// be in a status.
	maxChartName, maxChartVersion = 250, 128
)

func cut(text string) string { return condition.Cut(text, maxMessage) }

// holdOf is how long to leave a release alone after a job.
func holdOf(result *release.Result) time.Duration {
	switch {
	case result.Err != nil:
		return unreachableInterval
	case result.After > 0:
		return result.After
	case result.Waiting != "":
		return readyInterval
	case result.State == addonv1.StateUnmanaged:
		return unmanagedInterval
	case result.Reason == addonv1.StalledReason:
		return stalledInterval
	}

	return 0
}

// tell records an action as an event.
func (r *ReleaseReconciler) tell(s *releaseScope, done release.Done) {
	if done.Err != nil {
		r.Recorder.Eventf(s.release, nil, corev1.EventTypeWarning, reasonOf(done.Err, addonv1.ActionFailedReason), string(done.Action), "%s has failed: %s", done.Action, done.Err.Error())
		return
	}
	r.Recorder.Eventf(s.release, nil, corev1.EventTypeNormal, string(done.Action), string(done.Action), "%s has taken %s", done.Action, done.Took.Round(time.Second/10))
}

// hold is until when a release is left alone, as long as the same is asked for.
type hold struct {
	digest string
	until  time.Time
}

// holds are the releases that are left alone. They need not outlive the process: then a
// release is looked at once more.
type holds struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	known map[types.NamespacedName]hold
}

func newHolds(clock clock.PassiveClock) *holds {
	return &holds{clock: clock, known: map[types.NamespacedName]hold{}}
}

func (h *holds) set(name types.NamespacedName, digest string, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if wait == 0 {
		delete(h.known, name)
		return
	}
	h.known[name] = hold{digest, h.clock.Now().Add(wait)}
}

func (h *holds) left(name types.NamespacedName, digest string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if found, known := h.known[name]; known && found.digest == digest {
		return found.until.Sub(h.clock.Now())
	}

	return 0
}

func (h *holds) forget(name types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.known, name)
}
