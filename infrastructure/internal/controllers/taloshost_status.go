package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// hostScope is what one reconciliation knows about one host.
type hostScope struct {
	host *infrav1.TalosHost
	// consumer is the TalosMachine that has claimed the host; nil when it does
	// not exist. cluster is its Cluster.
	consumer *infrav1.TalosMachine
	cluster  *clusterv1.Cluster
	// otherConsumer reports whether a TalosMachine of that name exists, but with
	// another provider ID.
	otherConsumer bool
	// written is the host after the last write to its spec in this reconciliation.
	written *infrav1.TalosHost
	// gone reports whether the object is not ours any more: nothing is written.
	gone bool

	state                                              infrav1.HostState
	available, reachable, identity, released, deletion condition.Finding
}

// setError says that the host needs attention.
func (s *hostScope) setError(reason, message string) {
	s.state = infrav1.HostError
	s.available = condition.False(reason, message)
}

// setClaimed says that a TalosMachine has the host, and follows the machine.
func (s *hostScope) setClaimed() {
	spec := &s.host.Spec
	s.state = infrav1.HostClaimed
	switch spec.Handover.Progress {
	case infrav1.HandoverStarted:
		s.state = infrav1.HostProvisioning
	case infrav1.HandoverRan:
		s.state = infrav1.HostProvisioned
	}
	s.available = condition.False(infrav1.HostClaimedByReason, s.claimedText(taloshost.IsConfiguredAgain(s.host)))
	s.reachable = condition.Unknownf(infrav1.FollowedByConsumerReason, "The conditions of TalosMachine %s tell", spec.ConsumerRef.Name)
	s.setFoundByConsumer()
}

func (s *hostScope) claimedText(configuredAgain bool) string {
	text := "TalosMachine " + s.host.Spec.ConsumerRef.Name + " has claimed the host"
	if configuredAgain {
		text += "; the machine is proven wiped, and gets its configuration again"
	}

	return text
}

// consumerMovedOrMissing reports whether a machine that is being re-provisioned is not
// to be wiped now: its TalosMachine is not there, or lives on in another
// management cluster.
func (s *hostScope) consumerMovedOrMissing() bool {
	return taloshost.IsReprovisioned(s.host) && (s.consumer == nil || taloshost.IsMoved(s.consumer))
}

// setFoundByConsumer takes over what the TalosMachine, which follows the
// machine, has found about who answers.
func (s *hostScope) setFoundByConsumer() {
	if s.consumer == nil {
		return
	}
	for _, conditionType := range []string{infrav1.ConfigurationAppliedCondition, infrav1.RunningCondition} {
		found := conditions.Get(s.consumer, conditionType)
		if found == nil || found.Status == metav1.ConditionTrue {
			continue
		}
		switch found.Reason {
		case infrav1.HostIdentityMismatchReason:
			s.identity = condition.False(infrav1.IdentityMismatchReason, found.Message)
			s.setError(infrav1.HostIdentityReason, found.Message)
			return
		case infrav1.HostDuplicateReason:
			s.identity = condition.False(infrav1.IdentityDuplicateReason, found.Message)
			s.setError(infrav1.HostIdentityReason, found.Message)
			return
		case infrav1.ForeignConfigurationReason:
			s.setError(infrav1.HostForeignReason, found.Message)
			return
		case infrav1.FingerprintMismatchReason:
			s.setError(infrav1.HostFingerprintReason, found.Message)
			return
		}
	}
	if s.identityReason() == infrav1.IdentityMismatchReason || s.identityReason() == infrav1.IdentityDuplicateReason {
		s.setVerdict("")
	}
}

func (s *hostScope) identityReason() string {
	return s.conditionReason(infrav1.IdentityVerifiedCondition)
}

// setUnreachable says that no address answers.
func (s *hostScope) setUnreachable() {
	s.state = infrav1.HostUnknown
	s.available = condition.False(infrav1.HostUnreachableReason, "No address of the host answers")
	s.setReachable(probe.Silent)
	s.setVerdict("")
}

// setReachable says how the machine has answered.
func (s *hostScope) setReachable(outcome probe.Outcome) {
	switch outcome {
	case probe.InMaintenance, probe.WrongFingerprint:
		s.reachable = condition.True(infrav1.AnswersInMaintenanceReason, "")
	case probe.Configured, probe.Foreign:
		s.reachable = condition.True(infrav1.AnswersConfiguredReason, "")
	case probe.WrongClock:
		s.reachable = condition.False(infrav1.ReachableClockSkewReason, probe.WrongClockText)
	case probe.WrongMachine:
		s.reachable = condition.False(infrav1.IdentityMismatchReason, "Another machine answers at the addresses of the host")
	case probe.Silent:
		s.reachable = condition.False(infrav1.NoAddressAnswersReason, "No address of the host answers")
	}
}

// setVerdict says what was found about the identity of the machine.
func (s *hostScope) setVerdict(verdict taloshost.Verdict) {
	switch verdict {
	case taloshost.IdentityMatches:
		s.identity = condition.True(infrav1.IdentityMatchesReason, "")
		if wanted := taloshost.WantedIdentity(s.host); wanted.UUID == "" && len(wanted.MACAddresses) == 0 {
			// It is the machine that has answered before; nobody has named it.
			s.identity = condition.True(infrav1.IdentityDiscoveredReason, "")
		}
	case taloshost.IdentityDiscovered:
		s.identity = condition.True(infrav1.IdentityDiscoveredReason, "")
	case taloshost.IdentityMismatch:
		s.identity = condition.False(infrav1.IdentityMismatchReason, "The machine that answers does not have the identity of the host")
	case taloshost.IdentityUnusable:
		s.identity = condition.False(infrav1.IdentityUnusableReason, "The machine cannot be told from others: it has neither a usable SMBIOS UUID nor hardware addresses, or several machines tell the UUID that spec.identity names")
	default:
		s.identity = condition.Unknown(infrav1.IdentityNotObservedReason, "The machine has not told its identity")
	}
}

func (s *hostScope) conditionReason(conditionType string) string {
	if found := conditions.Get(s.host, conditionType); found != nil {
		return found.Reason
	}

	return ""
}

// reconcileStatus writes what the reconciliation has found.
func (r *HostReconciler) reconcileStatus(ctx context.Context, s *hostScope, helper *patch.Helper) error {
	if s.gone {
		return nil
	}
	r.recordTransition(s)
	if s.state != "" {
		s.host.Status.State = s.state
	}
	if s.identity.Status == "" && conditions.Get(s.host, infrav1.IdentityVerifiedCondition) == nil {
		s.setVerdict("")
	}
	if s.reachable.Status == "" && conditions.Get(s.host, infrav1.ReachableCondition) == nil {
		s.reachable = condition.Unknown(infrav1.IdentityNotObservedReason, "The machine was not seen")
	}
	if s.host.Spec.Release.Policy == "" {
		s.released = condition.True(infrav1.NothingToReleaseReason, "")
	}
	if s.deletion.Status == "" && s.host.DeletionTimestamp.IsZero() {
		s.deletion = condition.False(infrav1.NotDeletingReason, "")
	}
	for conditionType, found := range map[string]condition.Finding{
		infrav1.AvailableCondition:        s.available,
		infrav1.ReachableCondition:        s.reachable,
		infrav1.IdentityVerifiedCondition: s.identity,
		infrav1.ConsumerPresentCondition:  consumerFinding(s),
		infrav1.ReleasedCondition:         s.released,
		infrav1.DeletingCondition:         s.deletion,
	} {
		if found.Status != "" {
			conditions.Set(s.host, metav1.Condition{
				Type: conditionType, Status: found.Status, Reason: found.Reason, Message: found.Message, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
			})
		}
	}
	err := helper.Patch(ctx, s.host, patch.WithOwnedConditions{Conditions: []string{
		clusterv1.PausedCondition, infrav1.AvailableCondition, infrav1.ReachableCondition, infrav1.IdentityVerifiedCondition,
		infrav1.ConsumerPresentCondition, infrav1.ReleasedCondition, infrav1.DeletingCondition,
	}})
	if !s.host.DeletionTimestamp.IsZero() {
		// Somebody may have taken the last finalizer meanwhile.
		err = kerrors.FilterOut(err, apierrors.IsNotFound)
	}
	if err != nil {
		return fmt.Errorf("writing the TalosHost: %w", err)
	}

	return nil
}

// recordTransition records an event when a host goes into state Error or into
// quarantine, or when the error becomes another one.
func (r *HostReconciler) recordTransition(s *hostScope) {
	isSame := s.host.Status.State == s.state && s.conditionReason(infrav1.AvailableCondition) == s.available.Reason
	switch {
	case isSame:
	case s.state == infrav1.HostError:
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventHostError, "Observe", "%s", s.available.Message)
	case s.available.Reason == infrav1.HostQuarantinedReason:
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventQuarantined, "Observe", "%s", s.available.Message)
	}
}

func consumerFinding(s *hostScope) condition.Finding {
	name := s.host.Spec.ConsumerRef.Name
	switch {
	case name == "":
		return condition.False(infrav1.NoConsumerReason, "")
	case s.consumer != nil:
		return condition.True(infrav1.ConsumerPresentReason, "")
	case s.otherConsumer:
		return condition.Falsef(infrav1.ConsumerOtherReason, "TalosMachine %s has another provider ID than the one that has claimed the host", name)
	}

	return condition.Falsef(infrav1.ConsumerMissingReason, "TalosMachine %s does not exist. That alone never starts a release: create it again, or delete the host", name)
}
