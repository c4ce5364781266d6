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
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// reconcileReprovision wipes a machine when somebody asks for it, and has it
// configured again. No host means that there is nothing else to do in this reconciliation;
// otherwise the result says when this is to be looked at again.
func (m *Backend) reconcileReprovision(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) (*infrav1.TalosHost, ctrl.Result, error) {
	scope.Observed.Reprovisioning = condition.False(infrav1.NotReprovisioningReason, "")
	switch reprovision.Next(scope.TalosMachine, host) {
	case reprovision.Needless:
		if backends.IsReprovisionFromTemplate(scope) {
			return host, ctrl.Result{}, nil // It would come back at once.
		}
		m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeNormal, infrav1.EventReprovisionNeedless, "Reprovision",
			"The machine has no configuration, and gets it anyway; there is nothing to wipe")
		return host, ctrl.Result{}, backends.RemoveReprovisionAnnotation(ctx, m.Client, scope.TalosMachine)
	case reprovision.Begin:
		return m.beginReprovision(ctx, scope)
	case reprovision.AwaitWipe:
		observeWipe(scope, host)
		return nil, ctrl.Result{}, nil
	case reprovision.HandOver:
		return m.configureAgain(scope, host), ctrl.Result{}, nil
	case reprovision.Finish:
		return host, ctrl.Result{}, m.finishReprovision(ctx, scope, host)
	case reprovision.None:
	}

	return host, ctrl.Result{}, nil
}

// configureAgain lets a machine that is proven wiped be configured, unless its
// host goes.
func (m *Backend) configureAgain(scope *backends.Scope, host *infrav1.TalosHost) *infrav1.TalosHost {
	if !host.DeletionTimestamp.IsZero() || taloshost.IsMoved(host) || taloshost.IsMoved(scope.TalosMachine) {
		message := "The machine is not configured again: its TalosHost is being deleted, or was moved to another management cluster"
		scope.Observed.Reprovisioning = condition.False(infrav1.ReprovisionGoingReason, message)
		scope.Observed.Configuration = condition.False(infrav1.ReprovisionGoingReason, message)
		return nil
	}
	scope.Observed.Reprovisioning = condition.True(infrav1.ApplyingConfigurationReason, "The machine is proven wiped, and gets its configuration again")

	return host
}

// errBehind says that the cache is behind: what was to be begun is begun, or not to be.
var errBehind = errors.New("the cache is behind")

// beginReprovision asks for the release of a machine that is to come back, if
// nothing speaks against it. That is judged on what is read live, so that nothing is
// carried out twice.
func (m *Backend) beginReprovision(ctx context.Context, scope *backends.Scope) (*infrav1.TalosHost, ctrl.Result, error) {
	var facts reprovision.Facts
	begun, err := m.reprovisioner.Begin(ctx, scope, backends.Etcd{Live: m.APIReader, Dialer: m.Dialer, Credentials: m.Credentials},
		func() (_ reprovision.Refusal, err error) {
			if facts, err = m.reprovisionFacts(ctx, scope); err != nil {
				return reprovision.Refusal{}, err
			}
			if facts.Host == nil || !taloshost.IsClaimedBy(facts.Host, facts.Machine) || reprovision.Next(facts.Machine, facts.Host) != reprovision.Begin {
				return reprovision.Refusal{}, errBehind
			}
			return reprovision.Refuse(facts), nil
		},
		func() error { return m.recordReprovision(ctx, scope, facts.Host) },
	)
	switch {
	case errors.Is(err, errBehind):
		return nil, m.Pacing.After(reconciliation.Soonest), nil
	case err != nil:
		return nil, ctrl.Result{}, err
	case !begun:
		return facts.Host, m.Pacing.Later(), nil
	}
	m.forget(keyOf(scope.TalosMachine))
	ctrl.LoggerFrom(ctx).Info("Re-provisioning the machine", "TalosHost", facts.Host.Name)
	m.Recorder.Eventf(scope.TalosMachine, facts.Host, corev1.EventTypeNormal, infrav1.EventReprovisioning, "Reprovision",
		"TalosHost %s is wiped, and then gets its configuration again", facts.Host.Name)
	observeWipe(scope, facts.Host)

	return nil, ctrl.Result{}, nil
}

// recordReprovision records that the machine is wiped to come back. Only then may it be
// given its configuration once more: a manager that dies in between finds it running, and
// records that again.
func (m *Backend) recordReprovision(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) error {
	if err := backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.HostRef.Progress = "" }); err != nil {
		return err
	}
	if err := taloshost.BeginReprovision(host, scope.Cluster.Name, metalSpec(scope.TalosMachine).ReleaseTimeoutSeconds, m.Clock.Now()); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("asking for the release of TalosHost %s: %w", host.Name, err)
	}

	return nil
}

func (m *Backend) reprovisionFacts(ctx context.Context, scope *backends.Scope) (reprovision.Facts, error) {
	facts := reprovision.Facts{Machine: &infrav1.TalosMachine{}, FromTemplate: backends.IsReprovisionFromTemplate(scope), Cluster: scope.Cluster.Name}
	if err := m.APIReader.Get(ctx, keyOf(scope.TalosMachine), facts.Machine); err != nil {
		return facts, fmt.Errorf("reading TalosMachine %s: %w", scope.TalosMachine.Name, err)
	}
	hosts := &infrav1.TalosHostList{}
	if err := m.APIReader.List(ctx, hosts, client.InNamespace(scope.TalosMachine.Namespace)); err != nil {
		return facts, fmt.Errorf("listing TalosHosts: %w", err)
	}
	facts.Hosts = hosts.Items
	for i := range hosts.Items {
		if hosts.Items[i].Name == facts.Machine.Spec.HostRef.Name {
			facts.Host = hosts.Items[i].DeepCopy()
		}
	}
	configuration, err := m.configurationOf(ctx, scope, &bootstrapData{})
	facts.HasData = configuration != nil

	return facts, err
}

// observeWipe says how far the wipe is, which the TalosHost controller carries
// out.
func observeWipe(scope *backends.Scope, host *infrav1.TalosHost) {
	message := "The machine is being wiped, to be given its configuration again"
	if released := conditions.Get(host, infrav1.ReleasedCondition); released != nil && released.Status == metav1.ConditionFalse {
		message += ": " + released.Message
	}
	scope.Observed.Reprovisioning = condition.True(infrav1.WipingReason, message)
	scope.Observed.Configuration = condition.False(infrav1.WipingReason, message)
	scope.Observed.Running = condition.False(infrav1.WipingReason, message)
}

// finishReprovision takes the wish away, and then the record of it: a manager
// that dies in between does not begin again.
func (m *Backend) finishReprovision(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) error {
	if err := backends.RemoveReprovisionAnnotation(ctx, m.Client, scope.TalosMachine); err != nil {
		return err
	}
	if err := taloshost.FinishReprovision(host); err != nil {
		return err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		return fmt.Errorf("recording on TalosHost %s that its machine is re-provisioned: %w", host.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Re-provisioned the machine", "TalosHost", host.Name)
	m.Recorder.Eventf(scope.TalosMachine, host, corev1.EventTypeNormal, infrav1.EventReprovisioned, "Reprovision",
		"TalosHost %s was wiped, and runs with its configuration again", host.Name)

	return nil
}
