package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/wipe"
)

// releaseFactor makes the interval for a machine that is being wiped out of
// ProbeInterval.
const releaseFactor = 3

// reconcileRelease wipes a machine that is given back, as soon as it answers,
// and looks for the proof.
func (r *HostReconciler) reconcileRelease(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	// A machine that another host stands for is not even asked.
	if held, err := r.leftToDuplicate(ctx, s, taloshost.KnownIdentity(s.host)); err != nil || held.Action != "" {
		return r.leaveToDuplicate(ctx, s, held, err)
	}
	answer, err := r.reachReleased(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	defer answer.Close()
	s.setReachable(answer.Outcome)
	s.setVerdict(answer.Verdict)
	decision, err := r.decideRelease(ctx, s, answer)
	if err != nil || decision.Reason == infrav1.ReleaseDuplicateReason {
		return r.leaveToDuplicate(ctx, s, decision, err)
	}
	r.reportRelease(s, decision)

	switch decision.Action {
	case wipe.Done:
		return ctrl.Result{}, r.endRelease(ctx, s)
	case wipe.Reset:
		return r.reset(ctx, s, answer, decision)
	case wipe.WipeDevices:
		return r.wipeDevices(ctx, s, answer, decision)
	case wipe.Wait:
	}

	return r.wait(ctx, s, decision)
}

// decideRelease says what the release needs next, now that the machine has answered.
func (r *HostReconciler) decideRelease(ctx context.Context, s *hostScope, answer probe.Answer) (wipe.Decision, error) {
	if held, err := r.leftToDuplicate(ctx, s, s.seen(answer)); err != nil || held.Action != "" {
		return held, err
	}
	facts, err := r.releaseFacts(ctx, s, answer)
	if err != nil {
		return wipe.Decision{}, err
	}
	decision := wipe.Decide(facts)
	if decision.Action != wipe.Reset {
		return decision, nil
	}
	if held, err := r.leftToItsClaim(ctx, s, answer); err != nil || held.Action != "" {
		return held, err
	}
	if held, err := r.leftToEtcd(ctx, s); err != nil || held.Action != "" {
		return held, err
	}

	return decision, nil
}

// leaveToDuplicate leaves the machine to another host.
func (r *HostReconciler) leaveToDuplicate(ctx context.Context, s *hostScope, held wipe.Decision, err error) (ctrl.Result, error) {
	if err != nil {
		return ctrl.Result{}, err
	}
	r.reportRelease(s, held)
	s.setDuplicate(held.Message)

	return r.wait(ctx, s, held)
}

// wait looks again later. A host that is being deleted waits no longer than for the
// time of its release.
func (r *HostReconciler) wait(ctx context.Context, s *hostScope, decision wipe.Decision) (ctrl.Result, error) {
	if err := r.allowMove(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	overdue := r.Clock.Since(s.host.Spec.Release.RequestedAt.Time) >= taloshost.ReleaseTimeout(s.host.Spec.Release)
	if overdue && !s.host.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.removeFinalizer(ctx, s, true)
	}

	return r.nextLook(s, decision, overdue), nil
}

// nextLook is when a machine is looked at that is being released: often at first,
// less and less where it goes on for long.
func (r *HostReconciler) nextLook(s *hostScope, decision wipe.Decision, overdue bool) ctrl.Result {
	since := s.host.Spec.Release.RequestedAt.Time
	if at := s.host.Spec.Release.ResetAt.Time; at.After(since) {
		since = at
	}
	least := r.Pacing.Interval / releaseFactor
	if overdue || decision.Failed {
		least = r.Pacing.Interval
	}
	result := r.Pacing.Unreachable(since, least)
	if decision.Next > 0 && decision.Next < result.RequeueAfter {
		return r.Pacing.After(max(decision.Next, least))
	}

	return result
}

// reachReleased reaches the machine with the credentials that it ought to
// accept: ours, where we have configured it, else the user's.
func (r *HostReconciler) reachReleased(ctx context.Context, s *hostScope) (probe.Answer, error) {
	creds, err := r.releaseCredentials(ctx, s.host)
	switch {
	case err == nil:
		return r.reach(ctx, s, &creds), nil
	case !errors.Is(err, credentials.ErrMissing) && !errors.Is(err, credentials.ErrNoAdmin) && !errors.Is(err, credentials.ErrInUse):
		return probe.Answer{}, err
	}

	return r.reach(ctx, s, nil), nil
}

// releaseCredentials are those of the hand-over. A machine that we have not configured
// is wiped only as long as the user wants it.
func (r *HostReconciler) releaseCredentials(ctx context.Context, host *infrav1.TalosHost) (talosclient.Credentials, error) {
	switch {
	case host.Spec.Handover.ProviderID != "":
		return r.Credentials.Admin(ctx, host)
	case host.Spec.AdoptionPolicy != infrav1.AdoptionWipeForeign:
		return talosclient.Credentials{}, credentials.ErrMissing
	}

	return r.Credentials.Adoption(ctx, host)
}

func (r *HostReconciler) releaseFacts(ctx context.Context, s *hostScope, answer probe.Answer) (wipe.Facts, error) {
	spec := &s.host.Spec
	facts := wipe.Facts{
		Release: spec.Release, Handover: spec.Handover,
		Outcome: answer.Outcome, Now: r.Clock.Now(), RetryAfter: taloshost.RetryAfter(s.host),
		RetryNow: metav1.HasAnnotation(s.host.ObjectMeta, infrav1.HostRetryAnnotation),
	}
	if answer.Node == nil {
		return facts, nil
	}
	facts.Fingerprint = answer.Node.Fingerprint()
	facts.Container, facts.Disks = taloshost.IsContainer(answer.Hardware), answer.Hardware.Disks
	if found := conditions.Get(s.host, infrav1.ReleasedCondition); found != nil && found.Reason == infrav1.ReleaseFailedReason {
		facts.Refusal = found.Message
	}
	status, err := answer.Node.MachineStatus(ctx)
	if err != nil {
		facts.Outcome = probe.Silent
		return facts, nil
	}
	facts.Stage = status.Stage
	if facts.Volumes, err = answer.Node.Volumes(ctx); err == nil {
		facts.VolumesKnown = true
	}
	if facts.Outcome == probe.Configured && spec.Release.LeftEtcdOf != "" {
		facts.Vote, err = r.vote(ctx, s.host, answer.Node)
		return facts, err
	}

	return facts, nil
}

// reportRelease says how far the release is.
func (r *HostReconciler) reportRelease(s *hostScope, decision wipe.Decision) {
	s.released = condition.False(decision.Reason, decision.Message)
	s.available = condition.False(infrav1.HostReleasingReason, decision.Message)
	s.state = infrav1.HostReleasing
	overdue := r.Clock.Since(s.host.Spec.Release.RequestedAt.Time) >= taloshost.ReleaseTimeout(s.host.Spec.Release)
	if decision.Failed || overdue {
		s.setError(infrav1.HostUnprovenReason, decision.Message)
	}
	if decision.Failed && decision.Reason == infrav1.NotWipedReason && s.conditionReason(infrav1.ReleasedCondition) != decision.Reason {
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventNotWiped, "Release", "%s", decision.Message)
	}
	if taloshost.IsReprovisioned(s.host) {
		s.available.Message = "The machine is wiped, to be given the configuration of TalosMachine " + s.host.Spec.ConsumerRef.Name + " again: " + decision.Message
	}
	if !s.host.DeletionTimestamp.IsZero() {
		s.deletion = condition.True(infrav1.DeletingReason, "Waiting for the machine to be wiped")
	}
}

// reset tells the machine to wipe itself. That is written down first, so that a
// machine that comes back unwiped is known as such.
func (r *HostReconciler) reset(ctx context.Context, s *hostScope, answer probe.Answer, decision wipe.Decision) (ctrl.Result, error) {
	err := r.update(ctx, s, func(host *infrav1.TalosHost) error {
		return taloshost.RecordReset(host, answer.Node.Fingerprint(), decision.Volumes, r.Clock.Now())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	switch err := answer.Node.Reset(ctx, talosclient.ResetOptions{SystemLabels: decision.Labels, UserDisks: decision.Disks}); {
	case errors.Is(err, talosclient.ErrRefused):
		r.refused(ctx, s, err)
	case err != nil:
		// Perhaps it was told: a machine that wipes itself may go before it
		// answers. One that goes on in the same boot is told again.
		ctrl.LoggerFrom(ctx).Info("Telling the machine to wipe itself has failed", "reason", err.Error())
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventResetFailed, "Reset", "The machine has not confirmed that it wipes itself; it is told again if it does not")
	default:
		ctrl.LoggerFrom(ctx).Info("Told the machine to wipe itself", "labels", decision.Labels, "disks", decision.Disks)
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventReset, "Reset", "Told the machine to wipe itself")
	}

	return r.Pacing.After(r.Pacing.Interval / releaseFactor), r.allowMove(ctx, s)
}

// refused says that the machine does not wipe what it was told to, in Talos' words.
func (r *HostReconciler) refused(ctx context.Context, s *hostScope, refusal error) {
	ctrl.LoggerFrom(ctx).Info("The machine does not wipe itself", "reason", refusal.Error())
	message := "The machine does not wipe what it was told to: " + refusal.Error() + ". It is told again; if that does not help, mend what it names, or wipe it by hand"
	s.released = condition.False(infrav1.ReleaseFailedReason, message)
	s.available.Message = message
	r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventResetFailed, "Reset", "%s", message)
}

// wipeDevices wipes what a machine in maintenance mode still has.
func (r *HostReconciler) wipeDevices(ctx context.Context, s *hostScope, answer probe.Answer, decision wipe.Decision) (ctrl.Result, error) {
	err := r.update(ctx, s, func(host *infrav1.TalosHost) error {
		delete(host.Annotations, infrav1.HostRetryAnnotation)
		return nil
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	switch err := answer.Node.WipeDevices(ctx, decision.Devices); {
	case errors.Is(err, talosclient.ErrRefused):
		r.refused(ctx, s, err)
		return r.nextLook(s, decision, false), nil
	case err != nil:
		ctrl.LoggerFrom(ctx).Info("Wiping partitions has failed", "partitions", decision.Devices, "reason", err.Error())
	default:
		ctrl.LoggerFrom(ctx).Info("Wiped partitions", "partitions", decision.Devices)
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventReset, "Reset", "Wiped what the machine still had: %s", strings.Join(decision.Devices, ", "))
	}

	return r.Pacing.After(r.Pacing.Interval / releaseFactor), nil
}

// allowMove lets a host be moved for which no TalosMachine waits: its release may never
// end, and goes on wherever it is. Only the order to wipe itself is not parted from
// its record. A machine that somebody else has configured stays: which one it is, is
// known from the status alone, which a move loses.
func (r *HostReconciler) allowMove(ctx context.Context, s *hostScope) error {
	host := s.host
	if s.written != nil {
		host = s.written
	}
	if host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID == "" || !metav1.HasAnnotation(host.ObjectMeta, infrav1.BlockMoveAnnotation) {
		return nil
	}

	return r.update(ctx, s, func(host *infrav1.TalosHost) error {
		taloshost.AllowMove(host)
		return nil
	})
}

// endRelease makes a machine free that is proven wiped, or leaves it to its
// TalosMachine, which configures it again.
func (r *HostReconciler) endRelease(ctx context.Context, s *hostScope) error {
	again, end := taloshost.IsReprovisioned(s.host), taloshost.ReturnWiped
	if !again {
		end = taloshost.EndRelease
		if err := r.Credentials.DeleteAdmin(ctx, s.host); err != nil {
			return err
		}
	}
	err := r.update(ctx, s, func(host *infrav1.TalosHost) error { return end(host, r.Clock.Now()) })
	if err != nil {
		return fmt.Errorf("ending the release: %w", err)
	}
	s.released = condition.True(infrav1.NothingToReleaseReason, "")
	s.state = infrav1.HostUnknown
	s.available = condition.False(infrav1.HostUnreachableReason, "The machine is proven wiped, and is looked at next")
	if again {
		s.state = infrav1.HostClaimed
		s.available = condition.False(infrav1.HostClaimedByReason, s.claimedText(true))
	} else {
		r.Counts.Release(s.host.Namespace, metrics.ReleaseWiped)
	}
	r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventWiped, "Release", "The machine is proven wiped")

	return nil
}
