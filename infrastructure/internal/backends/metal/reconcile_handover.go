package metal

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// reconcileHandover gives a claimed machine its configuration. Before that the
// administrator's certificate exists, and the host records the hand-over.
func (m *Backend) reconcileHandover(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, data *bootstrapData) (ctrl.Result, error) {
	setIdentity(scope, host)
	scope.Observed.Running = condition.False(infrav1.NotConfiguredReason, "The machine has no configuration yet")
	// Once another host's machine has its configuration, it would answer here as a stranger.
	if left, err := m.isLeftToDuplicate(ctx, scope, host, taloshost.KnownIdentity(host)); err != nil || left {
		return m.Pacing.Later(), err
	}
	target := m.target(host)
	target.Fingerprint = host.Spec.MaintenanceCertFingerprint
	answer := m.Probes.Reach(ctx, m.Dialer, client.ObjectKeyFromObject(host), target)
	defer answer.Close()
	if answer.Outcome != probe.InMaintenance {
		scope.Observed.Configuration = notHandedOver(answer)
		return m.paced(scope, infrav1.AllocatedCondition, metav1.ConditionTrue, m.Pacing.Interval/2), nil
	}

	return m.handOver(ctx, scope, host, data, answer)
}

// handOver configures a machine that answers in maintenance mode, and is the
// right one.
func (m *Backend) handOver(
	ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, data *bootstrapData, answer probe.Answer,
) (ctrl.Result, error) {
	told := taloshost.IdentityOf(answer.Hardware)
	// The TalosHost controller keeps duplicates from being claimed; two that were claimed
	// in one moment meet here.
	if left, err := m.isLeftToDuplicate(ctx, scope, host, told); err != nil || left {
		return m.Pacing.Later(), err
	}
	configuration, err := m.overlaid(ctx, scope, host, data, answer)
	if err != nil {
		return ctrl.Result{}, err
	}
	if configuration == nil {
		return m.Pacing.Later(), nil
	}
	if err := m.Credentials.EnsureAdmin(ctx, clusterKey(scope), host); err != nil {
		return m.observeNoAdmin(scope, host, err)
	}
	before := host.DeepCopy()
	if err := m.recordHandover(ctx, scope, host, answer, configuration); err != nil {
		return ctrl.Result{}, err
	}
	// Whoever looks for others only after its own record is there is seen by them, or sees them.
	other, err := m.hosts().DuplicateAheadNow(ctx, host, told)
	if err != nil {
		return ctrl.Result{}, err
	}
	if other != nil {
		observeDuplicate(scope, host, other)
		return m.Pacing.Later(), m.takeBack(ctx, host, before)
	}

	return m.apply(ctx, scope, host, answer, configuration)
}

// isLeftToDuplicate reports whether the machine of a host is left to another one, and says so.
func (m *Backend) isLeftToDuplicate(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, told infrav1.HostIdentity) (bool, error) {
	other, err := m.hosts().DuplicateAhead(ctx, host, told)
	if other != nil {
		observeDuplicate(scope, host, other)
	}

	return other != nil, err
}

// observeDuplicate says to which host the machine is left.
func observeDuplicate(scope *backends.Scope, host, other *infrav1.TalosHost) {
	scope.Observed.Configuration = condition.False(infrav1.HostDuplicateReason, taloshost.DuplicateText(host, other)+
		" is in use, and stands for the same machine or names the same address; nothing is sent to it. Delete the Machine, and one of the hosts")
}

// takeBack takes a hand-over back that was recorded just now, and of which nothing was sent. One
// that was recorded before stays: something may have been sent then.
func (m *Backend) takeBack(ctx context.Context, host, before *infrav1.TalosHost) error {
	if before.Spec.Handover.ProviderID != "" {
		return nil
	}
	recorded := host.DeepCopy()
	if err := taloshost.TakeBackHandover(host, before); err != nil {
		return err
	}
	// Nobody else writes these records now. That somebody has changed another field must not
	// keep us from it: the next reconciliation does not know any more that nothing was sent.
	if err := m.Client.Patch(ctx, host, client.MergeFrom(recorded)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking the hand-over on TalosHost %s back: %w", host.Name, err)
	}

	return nil
}

// observeNoAdmin says why there is no administrator's certificate of a host, without which
// its machine is not configured.
func (m *Backend) observeNoAdmin(scope *backends.Scope, host *infrav1.TalosHost, err error) (ctrl.Result, error) {
	const reason = infrav1.WaitingForCredentialsReason
	switch {
	case errors.Is(err, secrets.ErrBundleMissing):
		scope.Observed.Configuration = condition.False(reason, "Waiting for the secrets of the cluster, from which the client certificate of the host is made")
		return m.Pacing.Soon(), nil
	case errors.Is(err, secrets.ErrBundleInvalid):
		scope.Observed.Configuration = condition.Falsef(reason, "Secret %s, from which the client certificate of the host is made, holds no secrets bundle: restore its content", secrets.BundleName(scope.Cluster.Name))
		return m.Pacing.Later(), nil
	case objects.IsLostRace(err):
		return ctrl.Result{}, err
	}
	scope.Observed.Configuration = condition.False(reason,
		objects.Explain("Secret "+credentials.AdminName(host.Name)+" cannot be written, in which the client certificate of the host is kept; it is tried again", err))

	return ctrl.Result{}, err
}

// overlaid is the configuration with what only the host knows; nil, with the
// reason in a condition, when there is none.
func (m *Backend) overlaid(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, data *bootstrapData, answer probe.Answer) ([]byte, error) {
	configuration, err := m.configurationOf(ctx, scope, data)
	if err != nil {
		return nil, err
	}
	if configuration == nil {
		scope.Observed.Configuration = condition.False(infrav1.WaitingForBootstrapDataReason, "The Secret with the machine configuration is missing")
		return nil, nil
	}
	release, err := answer.Node.Version(ctx)
	if err != nil {
		scope.Observed.Configuration = condition.False(infrav1.ApplyingConfigurationReason, "The machine does not tell its Talos release; its configuration is handed over once it does")
		return nil, nil //nolint:nilerr // The next reconciliation asks again.
	}
	told := toldBy(answer.Hardware, release, m.ImageFactory)
	if wrong := keepsOtherRelease(scope, host, answer.Hardware, release); wrong != "" {
		scope.Observed.Configuration = condition.False(infrav1.WrongReleaseReason, wrong)
		return nil, nil
	}
	configuration, err = configure(configuration, host, scope.TalosMachine, told)
	if err != nil {
		scope.Observed.Configuration = condition.Falsef(infrav1.OverlayFailedReason, "TalosHost %s: %v", host.Name, err)
		return nil, nil
	}
	if unfit, err := unfitDisk(configuration, told); err != nil || unfit != "" {
		scope.Observed.Configuration = condition.Falsef(infrav1.InstallDiskUnfitReason, "The machine configuration with the install of TalosHost %s %s", host.Name, unfit)
		return nil, err
	}

	return configuration, nil
}

func notHandedOver(answer probe.Answer) condition.Finding {
	switch answer.Outcome {
	case probe.Foreign:
		return condition.False(infrav1.ForeignConfigurationReason, "The machine was configured by somebody else since it was claimed; nothing is sent to it")
	case probe.WrongFingerprint:
		return condition.False(infrav1.FingerprintMismatchReason,
			"The maintenance certificate of the machine is not the one that the TalosHost demands; nothing is sent to it. Compare maintenanceCertFingerprint with the machine's console")
	case probe.WrongMachine:
		return condition.False(infrav1.HostIdentityMismatchReason, answer.WrongMachineText()+"; nothing is sent to it")
	default:
		return condition.False(infrav1.ApplyingConfigurationReason, "The machine does not answer; its configuration is handed over once it does")
	}
}

// recordHandover writes down that the machine is about to be configured, and in
// which boot.
func (m *Backend) recordHandover(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, answer probe.Answer, configuration []byte) error {
	image, err := installedBy(configuration, answer.Hardware)
	if err != nil {
		return err
	}
	record := infrav1.HostHandover{
		ProviderID:                 scope.TalosMachine.Spec.ProviderID,
		Progress:                   infrav1.HandoverStarted,
		MaintenanceCertFingerprint: answer.Node.Fingerprint(),
		Identity:                   taloshost.IdentityOf(answer.Hardware),
		InstallerImage:             image,
	}
	if host.Spec.Handover.ProviderID == record.ProviderID && host.Spec.Handover.MaintenanceCertFingerprint == record.MaintenanceCertFingerprint {
		return nil
	}
	if err := taloshost.RecordHandover(host, record); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("recording the hand-over on TalosHost %s: %w", host.Name, err)
	}

	return nil
}

// apply sends the configuration. The record of the hand-over stays whatever the
// machine answers: only a proof takes it back, and without a change of the host
// a refusal does not wake this controller again.
func (m *Backend) apply(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost, answer probe.Answer, configuration []byte) (ctrl.Result, error) {
	log := ctrl.LoggerFrom(ctx).WithValues("TalosHost", klog.KObj(host))
	err := answer.Node.ApplyConfiguration(ctx, configuration)
	switch {
	case errors.Is(err, talosclient.ErrInvalidConfiguration):
		refused := condition.Falsef(infrav1.ConfigurationRefusedReason, "Talos has refused the configuration: %v", err)
		scope.Observed.Configuration = refused
		if found := conditions.Get(scope.TalosMachine, infrav1.ConfigurationAppliedCondition); found == nil || found.Message != refused.Message {
			m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeWarning, infrav1.EventConfigurationRefused, "Apply", "%s", refused.Message)
		}
		return m.Pacing.After(refusedRetryInterval), nil
	case err != nil:
		// Perhaps it was taken; the next reconciliation sees.
		scope.Observed.Configuration = condition.False(infrav1.ApplyingConfigurationReason, "The machine has not confirmed that it took its configuration")
		log.Info("Handing over the configuration has failed", "reason", err.Error())
		return m.Pacing.Soon(), nil
	}
	m.applied.Store(keyOf(scope.TalosMachine), appliedBoot{fingerprint: answer.Node.Fingerprint(), at: m.Clock.Now()})
	scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")
	log.Info("Handed over the configuration")
	m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeNormal, infrav1.EventConfigurationApplied, "Apply", "Handed over the configuration to TalosHost %s", host.Name)

	return m.Pacing.Soon(), nil
}

// appliedBoot is a boot of a machine that has taken its configuration.
type appliedBoot struct {
	fingerprint string
	at          time.Time
}

// isApplying reports whether the machine has only just taken its configuration, and
// has not left maintenance mode yet.
func (m *Backend) isApplying(scope *backends.Scope, answer probe.Answer) bool {
	found, _ := m.applied.Load(keyOf(scope.TalosMachine))
	last, ok := found.(appliedBoot)

	return ok && last.fingerprint == answer.Node.Fingerprint() && m.Clock.Since(last.at) < taloshost.HandoverSettle
}

// setIdentity reports whether the machine could prove that it is the right one.
func setIdentity(scope *backends.Scope, host *infrav1.TalosHost) {
	demanded, given := host.Spec.MaintenanceCertFingerprint, host.Spec.Handover.MaintenanceCertFingerprint
	if demanded != "" && given != "" && demanded != given {
		scope.Observed.Identity = condition.False(infrav1.FingerprintChangedReason,
			"The machine that was given keys of the cluster had another certificate than maintenanceCertFingerprint of the TalosHost names. "+
				"If the named one is that of the machine's console then, the keys went to another machine: delete the Machine, and replace the keys of the cluster. "+
				"A fingerprint is of one boot: one that was read later says nothing, and is to be taken away")
		return
	}
	if demanded == "" {
		scope.Observed.Identity = condition.Unknown(infrav1.NoFingerprintReason,
			"The machine gets keys of the cluster without having proven which it is: maintenance mode is anonymous. Set maintenanceCertFingerprint on the TalosHost to demand a certificate")
		return
	}
	scope.Observed.Identity = condition.True(infrav1.FingerprintVerifiedReason, "")
}

func clusterKey(scope *backends.Scope) client.ObjectKey {
	return client.ObjectKeyFromObject(scope.Cluster)
}
