package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/wipe"
)

// isLeftToDuplicate reports whether another host stands for the machine, and was there
// first. Then it is left alone through this one.
func (r *HostReconciler) isLeftToDuplicate(ctx context.Context, s *hostScope, told infrav1.HostIdentity) (bool, error) {
	other, err := r.hosts().Duplicate(ctx, s.host, told)
	if err != nil || other == nil {
		return false, err
	}
	r.Tracker.Forget(client.ObjectKeyFromObject(s.host))
	s.setDuplicate(taloshost.DuplicateText(s.host, other) + " stands for the same machine or names the same address; delete one of them")

	return true, nil
}

// setDuplicate says that the machine is left to another host.
func (s *hostScope) setDuplicate(message string) {
	s.identity = condition.False(infrav1.IdentityDuplicateReason, message)
	s.reachable = condition.Unknown(infrav1.IdentityNotObservedReason, "The machine is left to the other TalosHost")
	s.setError(infrav1.HostIdentityReason, message)
}

// leftToDuplicate says why a machine that is to be wiped is left to another host in use; the
// decision is zero when it is not.
func (r *HostReconciler) leftToDuplicate(ctx context.Context, s *hostScope, told infrav1.HostIdentity) (wipe.Decision, error) {
	other, err := r.hosts().DuplicateInUse(ctx, s.host, told)
	if err != nil || other == nil {
		return wipe.Decision{}, err
	}

	return wipe.Decision{
		Action: wipe.Wait, Reason: infrav1.ReleaseDuplicateReason, Failed: true,
		Message: taloshost.DuplicateText(s.host, other) + " stands for the same machine or names the same address, and is in use: the machine is not wiped. Delete one of them",
	}, nil
}

// leftToItsClaim says why a machine that was about to be wiped is not: it runs with
// another provider ID than the one that it was given for this claim. One that does not
// tell is asked again, and one without a kubelet has nothing to tell.
func (r *HostReconciler) leftToItsClaim(ctx context.Context, s *hostScope, answer probe.Answer) (wipe.Decision, error) {
	wanted := s.host.Spec.Handover.ProviderID
	if wanted == "" {
		return wipe.Decision{}, nil
	}
	told, err := answer.Node.ProviderID(ctx)
	switch {
	case err != nil:
		return wipe.Decision{
			Action: wipe.Wait, Reason: infrav1.WaitingForResetReason,
			Message: "The machine does not tell the provider ID of its kubelet, by which it is known to be the one to wipe; it is asked again",
		}, nil
	case told == "" || told == wanted:
		return wipe.Decision{}, nil
	}

	return wipe.Decision{
		Action: wipe.Wait, Reason: infrav1.ReleaseOtherClaimReason, Failed: true,
		Message: "The machine runs with another provider ID than the one that it is to be wiped for: it was given another configuration since, and is left alone. " +
			"If nobody needs it, wipe it by hand",
	}, nil
}

// seen is the identity that the machine of an answer has told, else what is known of it.
func (s *hostScope) seen(answer probe.Answer) infrav1.HostIdentity {
	if answer.Node == nil {
		return taloshost.KnownIdentity(s.host)
	}

	return taloshost.IdentityOf(answer.Hardware)
}
