package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// reconcileFree looks at a machine that nobody has claimed.
func (r *HostReconciler) reconcileFree(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	if metav1.HasAnnotation(s.host.ObjectMeta, infrav1.HostRetryAnnotation) {
		return ctrl.Result{}, r.retry(ctx, s)
	}
	// A machine that another host stands for is not even asked.
	if isLeft, err := r.isLeftToDuplicate(ctx, s, taloshost.KnownIdentity(s.host)); err != nil || isLeft {
		return r.Pacing.Wrong(s.unavailableSince(), r.Pacing.Interval), err
	}
	if _, calm := r.Tracker.Unchanged(client.ObjectKeyFromObject(s.host), r.targetText(s)); calm && s.isKnown() {
		return r.judge(s), nil
	}
	answer := r.reach(ctx, s, nil)
	defer answer.Close()
	s.setReachable(answer.Outcome)
	s.setVerdict(answer.Verdict)
	if answer.Outcome != probe.InMaintenance {
		r.Tracker.Forget(client.ObjectKeyFromObject(s.host))
	}

	switch answer.Outcome {
	case probe.InMaintenance:
		if isLeft, err := r.isLeftToDuplicate(ctx, s, taloshost.IdentityOf(answer.Hardware)); err != nil || isLeft {
			return r.Pacing.Wrong(s.unavailableSince(), r.Pacing.Interval), err
		}
		return r.observeMaintenance(ctx, s, answer)
	case probe.Foreign:
		return r.reconcileForeign(ctx, s)
	case probe.WrongMachine:
		s.setError(infrav1.HostIdentityReason, wrongMachine(answer))
		return r.Pacing.Wrong(s.unavailableSince(), r.Pacing.Interval), nil
	default:
		s.setUnreachable()
	}

	return r.Pacing.Unreachable(s.unreachableSince(), r.Pacing.Interval), nil
}

// reach reaches the machine of a host with credentials, which may be nil.
func (r *HostReconciler) reach(ctx context.Context, s *hostScope, creds *talosclient.Credentials) probe.Answer {
	return r.Probes.Reach(ctx, r.Dialer, client.ObjectKeyFromObject(s.host), probe.Target{
		Addresses: taloshost.AddressesOf(s.host), Identity: taloshost.ExpectedIdentity(s.host),
		Ambiguous: r.hosts().AmbiguousUUIDs(s.host.Namespace), Credentials: creds,
	})
}

// hosts finds other hosts.
func (r *HostReconciler) hosts() taloshost.Lookup {
	return taloshost.Lookup{Cached: r.Client, Live: r.APIReader}
}

func wrongMachine(answer probe.Answer) string {
	return answer.WrongMachineText() + "; nothing is sent to it. Correct spec.addresses or spec.identity; the annotation " + infrav1.HostRetryAnnotation +
		" lets a host that names no identity stand for the machine that answers now"
}

// targetText is where a free machine is looked for, and as what.
func (r *HostReconciler) targetText(s *hostScope) string {
	return fmt.Sprint(taloshost.AddressesOf(s.host), s.host.Spec.Identity)
}

// observeMaintenance records what a machine in maintenance mode tells, and
// watches it. The watch is enough once the machine tells the same again and
// again.
func (r *HostReconciler) observeMaintenance(ctx context.Context, s *hostScope, answer probe.Answer) (ctrl.Result, error) {
	version, err := answer.Node.Version(ctx)
	var status talosclient.MachineStatus
	if err == nil {
		status, err = answer.Node.MachineStatus(ctx)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).V(3).Info("The machine was lost while it was looked at", "reason", err.Error())
		s.setUnreachable()
		return r.Pacing.Unreachable(s.unreachableSince(), r.Pacing.Interval), nil
	}
	fingerprint := answer.Node.Fingerprint()
	s.host.Status.Address = answer.Address
	s.host.Status.MaintenanceCertFingerprint = fingerprint
	s.host.Status.Hardware = taloshost.HardwareOf(answer.Hardware, version, s.host.Spec.Install)
	result := r.judge(s)

	key := client.ObjectKeyFromObject(s.host)
	found := fmt.Sprint(answer.Address, fingerprint, version, answer.Hardware)
	calm := r.Tracker.Seen(key, r.targetText(s), status, found, func(f *machinewatch.Watcher) {
		f.WatchMaintenance(key, answer.Address, fingerprint, status)
	})
	if calm {
		return result, nil
	}

	return r.Pacing.Next(), nil
}

// judge says whether a machine that waits in maintenance mode may be claimed, and
// when that changes by time alone.
func (r *HostReconciler) judge(s *hostScope) ctrl.Result {
	s.state = infrav1.HostAvailable
	ends := taloshost.QuarantineEnds(s.host)
	switch {
	case taloshost.IsOtherBoot(s.host):
		s.setError(infrav1.HostFingerprintReason, "The maintenance certificate of the machine is not the one that maintenanceCertFingerprint demands; nothing is sent to it. "+
			"Talos makes a new one at each boot: compare with the machine's console")
	case ptr.Deref(s.host.Spec.Unschedulable, false):
		s.available = condition.False(infrav1.HostUnschedulableReason, "spec.unschedulable is set")
	case r.Clock.Now().Before(ends):
		s.available = condition.Falsef(infrav1.HostQuarantinedReason, "An unhealthy Machine has given the host back; it is not claimed before %s. The annotation %s ends that",
			ends.UTC().Format(time.RFC3339), infrav1.HostRetryAnnotation)
		return ctrl.Result{RequeueAfter: ends.Sub(r.Clock.Now())}
	default:
		s.available = condition.True(infrav1.HostAvailableReason, taloshost.OmittedHardware(s.host.Status.Hardware))
	}

	return ctrl.Result{}
}

// retry does what the annotation of a person asks for: a quarantine ends,
// and the machine that answers now is taken. The annotation goes last.
func (r *HostReconciler) retry(ctx context.Context, s *hostScope) error {
	r.Tracker.Forget(client.ObjectKeyFromObject(s.host))
	if !s.host.Spec.Quarantine.Since.IsZero() {
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventQuarantineEnded, "Retry", "The annotation has ended the quarantine")
	}
	forgetful := s.host.DeepCopy()
	forgetful.Status.Hardware = infrav1.HostHardware{}
	if err := r.Client.Status().Patch(ctx, forgetful, client.MergeFrom(s.host)); err != nil {
		return fmt.Errorf("forgetting the machine of TalosHost %s: %w", s.host.Name, err)
	}
	forgetful.DeepCopyInto(s.host)
	s.gone = true // The next reconciliation finds what there is.

	return r.update(ctx, s, taloshost.EndQuarantine)
}

// reconcileForeign handles a machine that somebody else has configured. It is
// wiped only when the user says so, and gives the credentials for it.
func (r *HostReconciler) reconcileForeign(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	wait := r.Pacing.Unreachable(s.unavailableSince(), r.Pacing.Interval)
	if s.host.Spec.AdoptionPolicy != infrav1.AdoptionWipeForeign {
		s.setError(infrav1.HostForeignReason, "The machine was configured by somebody else, and is left alone. Reset it to maintenance mode, or set adoptionPolicy WipeForeign with its talosconfig")
		return wait, nil
	}
	secret := s.host.Spec.AdoptionSecretRef.Name
	creds, err := r.Credentials.Adoption(ctx, s.host)
	switch {
	case errors.Is(err, credentials.ErrMissing):
		s.setError(infrav1.HostForeignReason, "The machine was configured by somebody else; Secret "+secret+" holds no talosconfig to wipe it with")
		return wait, nil
	case errors.Is(err, credentials.ErrNoAdmin):
		s.setError(infrav1.HostForeignReason, "The machine was configured by somebody else; the talosconfig in Secret "+secret+" lacks the role os:admin, without which it cannot be wiped")
		return wait, nil
	case errors.Is(err, credentials.ErrInUse):
		s.setError(infrav1.HostForeignReason, fmt.Sprintf("The machine was configured by somebody else, and is not wiped: %v. Give a talosconfig of its own, in another Secret", err))
		return wait, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	answer := r.reach(ctx, s, &creds)
	defer answer.Close()
	s.setVerdict(answer.Verdict)
	switch {
	case answer.Outcome == probe.WrongMachine:
		s.setError(infrav1.HostIdentityReason, wrongMachine(answer))
		return wait, nil
	case answer.Outcome == probe.WrongClock:
		s.setReachable(answer.Outcome)
		s.setError(infrav1.HostForeignReason, "The machine was configured by somebody else, and cannot be wiped yet. "+probe.WrongClockText)
		return wait, nil
	case answer.Outcome != probe.Configured:
		s.setError(infrav1.HostForeignReason, "The machine was configured by somebody else, and does not accept the talosconfig of adoptionSecretRef")
		return wait, nil
	}
	if isLeft, err := r.isLeftToDuplicate(ctx, s, taloshost.IdentityOf(answer.Hardware)); err != nil || isLeft {
		return wait, err
	}

	return ctrl.Result{}, r.adopt(ctx, s, answer)
}

// adopt begins to wipe a machine that somebody else has configured. It must have
// the same identity until it is wiped.
func (r *HostReconciler) adopt(ctx context.Context, s *hostScope, answer probe.Answer) error {
	var identity infrav1.HostIdentity
	if !taloshost.IsContainer(answer.Hardware) {
		// In a container links come and go with Pods: they prove nothing later.
		s.host.Status.Hardware = taloshost.HardwareOf(answer.Hardware, "", s.host.Spec.Install)
		identity = taloshost.IdentityOf(answer.Hardware)
	}
	s.state = infrav1.HostReleasing
	s.available = condition.False(infrav1.HostReleasingReason, "The machine was configured by somebody else, and is wiped as adoptionPolicy says")
	err := r.update(ctx, s, func(host *infrav1.TalosHost) error { return taloshost.Adopt(host, identity, r.Clock.Now()) })
	if err != nil {
		return err
	}
	r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventAdopting, "Adopt", "Wiping a machine that somebody else has configured, as adoptionPolicy says")

	return nil
}

// update changes the host as this reconciliation has read it: if it was changed since,
// the reconciliation was made on old facts, and is made again. The host of the scope stays
// as it was read, for the status.
func (r *HostReconciler) update(ctx context.Context, s *hostScope, change func(*infrav1.TalosHost) error) error {
	changed := s.host.DeepCopy()
	if s.written != nil {
		changed = s.written.DeepCopy()
	}
	if err := change(changed); err != nil {
		return err
	}
	if err := r.Client.Update(ctx, changed); err != nil {
		return fmt.Errorf("updating TalosHost %s: %w", changed.Name, err)
	}
	s.written = changed

	return nil
}

// unavailableSince is since when the host is not available, and unreachableSince since when
// its machine does not answer; zero when that is new.
func (s *hostScope) unavailableSince() time.Time {
	return s.falseSince(infrav1.AvailableCondition)
}

func (s *hostScope) unreachableSince() time.Time {
	return s.falseSince(infrav1.ReachableCondition)
}

func (s *hostScope) falseSince(conditionType string) time.Time {
	found := conditions.Get(s.host, conditionType)
	if found == nil || found.Status != metav1.ConditionFalse {
		return time.Time{}
	}

	return found.LastTransitionTime.Time
}

// isKnown reports whether the status holds what a look at the machine has found.
func (s *hostScope) isKnown() bool {
	status := &s.host.Status

	return status.State != "" && status.Address != "" && status.MaintenanceCertFingerprint != "" && status.Hardware.TalosVersion != "" &&
		conditions.IsTrue(s.host, infrav1.ReachableCondition) && conditions.IsTrue(s.host, infrav1.IdentityVerifiedCondition)
}
