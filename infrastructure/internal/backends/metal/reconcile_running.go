package metal

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// reconcileRunning follows a machine that was given its configuration.
func (m *Backend) reconcileRunning(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, data *bootstrapData) (ctrl.Result, error) {
	setIdentity(scope, host)
	scope.Observed.Provisioned = host.Spec.Handover.Progress == infrav1.HandoverRan
	scope.Observed.Configuration = appliedFinding(scope)
	scope.Observed.InstallerImage = host.Spec.Handover.InstallerImage

	if err := m.Credentials.RenewAdmin(ctx, clusterKey(scope), host); err != nil {
		return ctrl.Result{}, err
	}
	if m.isCalm(scope, host) {
		return ctrl.Result{}, nil
	}
	creds, err := m.Credentials.Reader(ctx, clusterKey(scope), host)
	if errors.Is(err, secrets.ErrBundleInvalid) || errors.Is(err, credentials.ErrMissing) {
		scope.Observed.Running = condition.Unknown(infrav1.WaitingForCredentialsReason, "There is no client certificate to ask the machine with; restore the secrets of the cluster")
		return m.Pacing.Later(), nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	target := m.target(host)
	target.Credentials = &creds
	answer := m.Probes.Reach(ctx, m.Dialer, client.ObjectKeyFromObject(host), target)
	defer answer.Close()

	switch answer.Outcome {
	case probe.Configured:
		scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")
		return m.observe(ctx, scope, host, answer, creds)
	case probe.InMaintenance:
		m.Tracker.Forget(keyOf(scope.TalosMachine))
		return m.backInMaintenance(ctx, scope, host, data, answer)
	case probe.Silent, probe.Foreign, probe.WrongFingerprint, probe.WrongClock, probe.WrongMachine:
	}
	m.Tracker.Forget(keyOf(scope.TalosMachine))
	scope.Observed.Running = notRunning(answer, scope.Observed.Provisioned)
	if scope.Observed.Provisioned {
		return m.paced(scope, infrav1.RunningCondition, metav1.ConditionFalse, m.Pacing.Interval), nil
	}

	return m.paced(scope, infrav1.ConfigurationAppliedCondition, metav1.ConditionTrue, m.Pacing.Interval/2), nil
}

// isCalm reports whether a machine that runs need not be asked: it is watched, was
// seen often enough since it last changed, and everything is written down.
func (m *Backend) isCalm(scope *backends.Scope, host *infrav1.TalosHost) bool {
	machine := scope.TalosMachine
	status, calm := m.Tracker.Unchanged(keyOf(machine), targetText(host))
	if !calm || !scope.Observed.Provisioned || len(machine.Status.Addresses) == 0 || machine.Status.TalosVersion == "" || runsOther(machine, host, machine.Status.TalosVersion) != "" {
		return false
	}
	scope.Observed.Running = backends.RunningFinding(status)

	return true
}

// targetText is where a machine is looked for, and as what.
func targetText(host *infrav1.TalosHost) string {
	return fmt.Sprint(taloshost.AddressesOf(host), taloshost.WantedIdentity(host))
}

// appliedFinding is what is known of the configuration of a machine that was not
// asked yet in this reconciliation: it has run, or it has taken it, or neither is sure.
func appliedFinding(scope *backends.Scope) condition.Finding {
	if scope.Observed.Provisioned || conditions.IsTrue(scope.TalosMachine, infrav1.ConfigurationAppliedCondition) {
		return condition.True(infrav1.ConfigurationAppliedReason, "")
	}

	return condition.False(infrav1.ApplyingConfigurationReason, "The machine has not confirmed that it took its configuration")
}

// notRunning says why a machine is not seen running. One that has run, and now
// answers as a stranger, is another one, or another's. Before it has run that
// may be a moment of its installation.
func notRunning(answer probe.Answer, ran bool) condition.Finding {
	switch {
	case answer.Outcome == probe.WrongMachine:
		return condition.False(infrav1.HostIdentityMismatchReason, answer.WrongMachineText()+"; nothing is sent to it")
	case answer.Outcome == probe.WrongClock:
		return condition.False(infrav1.ClockSkewReason, probe.WrongClockText)
	case answer.Outcome == probe.Foreign && ran:
		return condition.False(infrav1.ForeignConfigurationReason, "The machine that answers belongs to another cluster; nothing is sent to it")
	case answer.Outcome == probe.Foreign:
		return condition.False(infrav1.UnreachableReason, "The machine answers, but not yet as a node of this cluster")
	}

	return condition.False(infrav1.UnreachableReason, "The machine does not answer")
}

// backInMaintenance handles a machine that ought to be configured, and is not.
// As long as it was never seen running, it gets its configuration again: the
// first call may have been lost. Afterwards it never does by itself, because a
// blank member would join etcd (design D10).
func (m *Backend) backInMaintenance(
	ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, data *bootstrapData, answer probe.Answer,
) (ctrl.Result, error) {
	if scope.Observed.Provisioned || scope.TalosMachine.Spec.HostRef.Progress == infrav1.HostRan {
		scope.Observed.Running = condition.False(infrav1.ReturnedToMaintenanceReason,
			"The machine is back in maintenance mode after it has run, and is not configured again by itself. Where it has booted from elsewhere than its disk, or that is missing, mend that; else delete its Machine")
		return m.Pacing.Later(), nil
	}
	scope.Observed.Running = condition.False(infrav1.NotConfiguredReason, "The machine is still in maintenance mode")
	if demanded := host.Spec.MaintenanceCertFingerprint; demanded != "" && demanded != answer.Node.Fingerprint() {
		scope.Observed.Configuration = notHandedOver(probe.Answer{Outcome: probe.WrongFingerprint})
		return m.Pacing.Later(), nil
	}
	if m.isApplying(scope, answer) {
		return m.Pacing.Soon(), nil
	}

	return m.handOver(ctx, scope, host, data, answer)
}

// observe reads what a configured machine tells.
func (m *Backend) observe(
	ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, answer probe.Answer, creds talosclient.Credentials,
) (ctrl.Result, error) {
	status, err := answer.Node.MachineStatus(ctx)
	if err != nil {
		scope.Observed.Running = condition.Unknown(infrav1.UnreachableReason, "The machine does not tell its stage")
		return m.Pacing.Soon(), nil
	}
	scope.Observed.Running = backends.RunningFinding(status)
	if status.Stage == talosclient.StageRunning || status.Stage == talosclient.StageBooting {
		addresses, err := backends.AddressesOf(ctx, answer.Node, answer.Address, scope.Cluster.Spec.ControlPlaneEndpoint.Host)
		if err != nil || len(addresses) == 0 {
			// Talos tells them once the network is up.
			return m.Pacing.Soon(), nil
		}
		scope.Observed.Addresses = addresses
		if err := m.recordRan(ctx, scope, host); err != nil {
			return ctrl.Result{}, err
		}
	}
	version, err := answer.Node.Version(ctx)
	if err == nil {
		scope.Observed.TalosVersion = version
	}
	wrong := runsOther(scope.TalosMachine, host, version)
	if wrong != "" {
		scope.Observed.Running = condition.False(infrav1.WrongReleaseReason, wrong)
	}
	found := fmt.Sprint(answer.Address, version, scope.Observed.Addresses)
	calm := m.Tracker.Seen(keyOf(scope.TalosMachine), targetText(host), status, found, func(f *machinewatch.Watcher) {
		f.Watch(keyOf(scope.TalosMachine), answer.Address, creds, status)
	})
	if calm && scope.Observed.Provisioned && version != "" && wrong == "" {
		return ctrl.Result{}, nil
	}

	return m.Pacing.Later(), nil
}

// recordRan writes down that the machine runs: from then on it is never
// configured again. The TalosMachine knows it first, and for itself: a host can be
// made anew by whoever may write hosts.
func (m *Backend) recordRan(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) error {
	// One that is being wiped runs for the last time.
	if host.Spec.Handover.Progress == infrav1.HandoverRan || host.Spec.Release.Policy != "" {
		return nil
	}
	if scope.TalosMachine.Spec.HostRef.Progress != infrav1.HostRan {
		if err := backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.HostRef.Progress = infrav1.HostRan }); err != nil {
			return err
		}
	}
	if err := taloshost.MarkRan(host); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("recording on TalosHost %s that its machine runs: %w", host.Name, err)
	}
	scope.Observed.Provisioned = true
	ctrl.LoggerFrom(ctx).Info("The machine runs with its configuration", "TalosHost", host.Name)
	m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeNormal, infrav1.EventProvisioned, "Observe", "TalosHost %s runs with its configuration", host.Name)

	return nil
}
