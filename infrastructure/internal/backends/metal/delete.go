package metal

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// Delete implements backends.Backend. It asks for the release of the host;
// the TalosHost controller carries it out.
func (m *Backend) Delete(ctx context.Context, scope *backends.Scope) (backends.Deletion, ctrl.Result, error) {
	machine := scope.TalosMachine
	m.forget(keyOf(machine))
	scope.Observed.Reprovisioning = condition.False(infrav1.NotReprovisioningReason, "")
	if machine.Spec.HostRef.Name == "" {
		return backends.Released, ctrl.Result{}, nil
	}
	host, err := m.getHost(ctx, machine.Namespace, machine.Spec.HostRef.Name)
	if err != nil {
		return "", ctrl.Result{}, err
	}
	if host == nil || !taloshost.IsClaimedBy(host, machine) {
		return backends.Released, ctrl.Result{}, nil
	}
	switch phase := taloshost.PhaseOf(host); {
	case taloshost.IsMoved(host):
		scope.Observed.Deleting = condition.True(infrav1.DeletedForMoveReason, "The host was moved to another management cluster; it is not released here")
		return backends.Releasing, ctrl.Result{}, nil
	case phase == taloshost.Claimed && recordLost(machine, host):
		return backends.Released, ctrl.Result{}, m.disown(ctx, host)
	case phase == taloshost.Claimed:
		return backends.Released, ctrl.Result{}, m.giveBack(ctx, host)
	case phase != taloshost.Releasing || taloshost.IsReprovisioned(host):
		if err := m.requestRelease(ctx, scope, host); err != nil {
			return "", ctrl.Result{}, err
		}
	}

	return m.awaitRelease(ctx, scope, host)
}

// Gone implements backends.Backend. The host has its own controller.
func (m *Backend) Gone(_ context.Context, key client.ObjectKey) error {
	m.forget(key)

	return nil
}

// forget ends the watch of a machine.
func (m *Backend) forget(key client.ObjectKey) {
	m.Tracker.Forget(key)
	m.applied.Delete(key)
}

// giveBack makes a host free that was never configured, or is proven wiped.
func (m *Backend) giveBack(ctx context.Context, host *infrav1.TalosHost) error {
	if err := m.Credentials.DeleteAdmin(ctx, host); err != nil {
		return err
	}
	if err := taloshost.GiveBack(host, m.Clock.Now()); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("giving TalosHost %s back: %w", host.Name, err)
	}
	m.Counts.Release(host.Namespace, metrics.ReleaseUnconfigured)

	return nil
}

// disown lets a host go that does not know of the machine that has run: nothing is
// proven of that one. The certificate stays, because the machine may accept it.
func (m *Backend) disown(ctx context.Context, host *infrav1.TalosHost) error {
	if err := taloshost.Disown(host); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("letting TalosHost %s go: %w", host.Name, err)
	}
	m.Counts.Release(host.Namespace, metrics.ReleaseUnproven)

	return nil
}

// requestRelease asks for the release of a host. One that is being wiped to be
// used again is not given to the same machine any more.
func (m *Backend) requestRelease(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) error {
	spec := metalSpec(scope.TalosMachine)
	release := infrav1.HostRelease{
		Policy:         spec.ReleasePolicy,
		RequestedAt:    metav1.NewTime(m.Clock.Now()),
		TimeoutSeconds: spec.ReleaseTimeoutSeconds,
		ConsumerHealth: healthOf(scope),
		LeftEtcdOf:     leftEtcdOf(scope),
	}
	if err := taloshost.RequestRelease(host, release); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("asking for the release of TalosHost %s: %w", host.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Asked for the release of the host", "TalosHost", host.Name, "policy", spec.ReleasePolicy)
	m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeNormal, infrav1.EventReleaseRequested, "Release", "Asked for the release of TalosHost %s: %s", host.Name, spec.ReleasePolicy)

	return nil
}

// healthOf reports whether something was known against the machine.
func healthOf(scope *backends.Scope) infrav1.ConsumerHealth {
	running := conditions.Get(scope.TalosMachine, infrav1.RunningCondition)
	returned := running != nil && running.Reason == infrav1.ReturnedToMaintenanceReason
	if returned || (scope.Machine != nil && conditions.IsFalse(scope.Machine, clusterv1.MachineHealthCheckSucceededCondition)) {
		return infrav1.ConsumerUnhealthy
	}

	return infrav1.ConsumerHealthy
}

// leftEtcdOf is the Cluster whose etcd was rid of the machine when the control plane
// provider let it go; empty when it was not asked, or did not care.
func leftEtcdOf(scope *backends.Scope) string {
	if scope.Machine == nil || !metav1.HasAnnotation(scope.Machine.ObjectMeta, controlplanev1.EtcdLeftAnnotation) {
		return ""
	}

	return scope.Machine.Spec.ClusterName
}

// awaitRelease waits until the host is free, needs a person, or was silent for
// too long. Then the host is nobody's, and its release goes on without us.
func (m *Backend) awaitRelease(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) (backends.Deletion, ctrl.Result, error) {
	released := conditions.Get(host, infrav1.ReleasedCondition)
	failed := released != nil && slices.Contains([]string{infrav1.NotWipedReason, infrav1.RetainedReason}, released.Reason)
	left := taloshost.ReleaseTimeout(host.Spec.Release) - m.Clock.Since(host.Spec.Release.RequestedAt.Time)
	if failed || left <= 0 {
		if err := taloshost.StopWaiting(host); err != nil {
			return "", ctrl.Result{}, err
		}
		if err := m.Client.Update(ctx, host); err != nil {
			return "", ctrl.Result{}, fmt.Errorf("letting TalosHost %s go: %w", host.Name, err)
		}
		m.Counts.Release(host.Namespace, metrics.ReleaseUnproven)
		m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeWarning, infrav1.EventReleaseTimedOut, "Release",
			"TalosMachine goes although TalosHost %s is not proven wiped; see condition Released of the host", host.Name)
		return backends.Released, ctrl.Result{}, nil
	}
	message := "Waiting for TalosHost " + host.Name + " to be wiped"
	if released != nil && released.Status == metav1.ConditionFalse {
		message += ": " + released.Message
	}
	scope.Observed.Deleting = condition.True(infrav1.WaitingForReleaseReason, message)

	return backends.Releasing, ctrl.Result{RequeueAfter: left}, nil
}
