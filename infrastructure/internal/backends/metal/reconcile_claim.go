package metal

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/claim"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// reconcileClaim finds the host of a TalosMachine, or claims one: the intent is
// recorded on the TalosMachine first, then the host is claimed by an update of
// what was read live. No host means that there is none in this reconciliation.
func (m *Backend) reconcileClaim(ctx context.Context, scope *backends.Scope, data *bootstrapData) (*infrav1.TalosHost, ctrl.Result, error) {
	ref := scope.TalosMachine.Spec.HostRef
	if ref.Name == "" {
		return m.chooseHost(ctx, scope, data)
	}
	if host := m.runningHost(ctx, scope.TalosMachine); host != nil {
		return m.bind(ctx, scope, host)
	}
	host, err := m.getHost(ctx, scope.TalosMachine.Namespace, ref.Name)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	switch {
	case host != nil && taloshost.IsClaimedBy(host, scope.TalosMachine):
		return m.bind(ctx, scope, host)
	case ref.Claim == infrav1.HostClaimBound:
		scope.Observed.Claim = condition.False(infrav1.HostLostReason,
			fmt.Sprintf("TalosHost %s is gone, or belongs to another TalosMachine; delete the Machine to get another host", ref.Name))
		return nil, ctrl.Result{}, nil
	case host == nil || claim.Judge(host, data.request) != "":
		// Taken by somebody else, or changed, since it was chosen.
		return m.chooseHost(ctx, scope, data)
	}

	return m.claimHost(ctx, scope, host)
}

// chooseHost picks a host and records the intent to claim it.
func (m *Backend) chooseHost(ctx context.Context, scope *backends.Scope, data *bootstrapData) (*infrav1.TalosHost, ctrl.Result, error) {
	list := &infrav1.TalosHostList{}
	// They are only read: what is claimed is read live.
	if err := m.Client.List(ctx, list, client.InNamespace(scope.TalosMachine.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, ctrl.Result{}, fmt.Errorf("listing TalosHosts: %w", err)
	}
	hosts := make([]*infrav1.TalosHost, 0, len(list.Items))
	for i := range list.Items {
		hosts = append(hosts, &list.Items[i])
	}
	choice := claim.Choose(hosts, data.request, m.Random)
	if choice.Host == nil {
		scope.Observed.Claim = condition.False(infrav1.NoHostFitsReason, choice.Message())
		return nil, ctrl.Result{RequeueAfter: choice.RetryAfter}, m.dropIntent(ctx, scope)
	}
	first, err := m.goesFirst(ctx, scope)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	if first != "" {
		scope.Observed.Claim = condition.False(infrav1.WaitingForControlPlaneReason, first)
		return nil, ctrl.Result{}, m.dropIntent(ctx, scope)
	}
	scope.Observed.Claim = condition.False(infrav1.ClaimingHostReason, "Claiming TalosHost "+choice.Host.Name)
	if err := m.recordIntent(ctx, scope, choice.Host); err != nil {
		return nil, ctrl.Result{}, err
	}
	host, err := m.getHost(ctx, choice.Host.Namespace, choice.Host.Name)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	if host == nil || claim.Judge(host, data.request) != "" {
		return nil, m.Pacing.After(reconciliation.Soonest), nil
	}

	return m.claimHost(ctx, scope, host)
}

// goesFirst says for what a worker leaves a host that fits it; empty when it takes the
// host. Until the control plane of its Cluster is initialized, that goes first, also before
// it has made a machine: with the last host, a worker would keep it from ever starting, and
// wait for it for ever.
func (m *Backend) goesFirst(ctx context.Context, scope *backends.Scope) (string, error) {
	cluster := scope.Cluster
	if ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) || util.IsControlPlaneMachine(scope.Machine) {
		return "", nil
	}
	machines := &infrav1.TalosMachineList{}
	err := m.Client.List(ctx, machines, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name},
		client.HasLabels{clusterv1.MachineControlPlaneLabel}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("listing the TalosMachines of the control plane: %w", err)
	}
	made := false
	for i := range machines.Items {
		machine := &machines.Items[i]
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		made = true
		if machine.Spec.Metal != nil && machine.Spec.HostRef.Claim != infrav1.HostClaimBound {
			return "Waiting for TalosMachine " + machine.Name + " of the control plane, which gets its TalosHost first", nil
		}
	}
	if !made && cluster.Spec.ControlPlaneRef.IsDefined() {
		return "Waiting for the control plane, which is not initialized and has no TalosMachine yet that gets its TalosHost first", nil
	}

	return "", nil
}

// dropIntent drops an intent that came to nothing.
func (m *Backend) dropIntent(ctx context.Context, scope *backends.Scope) error {
	if scope.TalosMachine.Spec.HostRef.Name == "" {
		return nil
	}

	return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.HostRef = infrav1.TalosMachineHostReference{} })
}

// recordIntent records the host and the provider ID on the TalosMachine. One that a host
// names goes with the host; so does one of ours, because it may be one that the host
// before has named.
func (m *Backend) recordIntent(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) error {
	providerID := host.Spec.ProviderID
	if providerID == "" && scope.TalosMachine.Spec.HostRef.Name == host.Name {
		providerID = scope.TalosMachine.Spec.ProviderID
	}
	if host.Spec.ProviderID == "" && !strings.HasPrefix(providerID, infrav1.ProviderIDPrefix) {
		var err error
		if providerID, err = backends.MintProviderID(m.Random); err != nil {
			return err
		}
	}

	return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) {
		spec.ProviderID = providerID
		spec.HostRef = infrav1.TalosMachineHostReference{Name: host.Name, Claim: infrav1.HostClaimIntended}
	})
}

// claimHost claims a host that was read live. Whoever comes second meets a
// conflict.
func (m *Backend) claimHost(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) (*infrav1.TalosHost, ctrl.Result, error) {
	machine := scope.TalosMachine
	if err := taloshost.Claim(host, machine); err != nil {
		return nil, ctrl.Result{}, err
	}
	if err := m.Client.Update(ctx, host); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			m.Counts.Claim(host.Namespace, metrics.ClaimConflict)
			scope.Observed.Claim = condition.False(infrav1.ClaimingHostReason, "Claiming a TalosHost")
			return nil, m.Pacing.After(reconciliation.Soonest), nil
		}
		return nil, ctrl.Result{}, fmt.Errorf("claiming TalosHost %s: %w", host.Name, err)
	}
	m.Counts.Claim(host.Namespace, metrics.ClaimClaimed)
	ctrl.LoggerFrom(ctx).Info("Claimed a TalosHost", "TalosHost", host.Name, "providerID", machine.Spec.ProviderID)
	m.Recorder.Eventf(machine, host, corev1.EventTypeNormal, infrav1.EventHostClaimed, "Claim", "Claimed TalosHost %s", host.Name)

	return m.bind(ctx, scope, host)
}

// bind records that the host is claimed, and that its machine has run where the host
// knows it. A UID is renewed after a move, which gives every object a new one.
func (m *Backend) bind(ctx context.Context, scope *backends.Scope, host *infrav1.TalosHost) (*infrav1.TalosHost, ctrl.Result, error) {
	machine := scope.TalosMachine
	wanted := infrav1.TalosMachineHostReference{Name: machine.Spec.HostRef.Name, Claim: infrav1.HostClaimBound, Progress: machine.Spec.HostRef.Progress}
	if host.Spec.Handover.Progress == infrav1.HandoverRan && !taloshost.IsReprovisioned(host) {
		wanted.Progress = infrav1.HostRan
	}
	if machine.Spec.HostRef != wanted {
		if err := backends.Record(ctx, m.Client, machine, func(spec *infrav1.TalosMachineSpec) { spec.HostRef = wanted }); err != nil {
			return nil, ctrl.Result{}, err
		}
	}
	if host.Spec.ConsumerRef.UID != string(machine.UID) {
		if err := taloshost.RenewClaim(host, machine); err != nil {
			return nil, ctrl.Result{}, err
		}
		if err := m.Client.Update(ctx, host); err != nil {
			return nil, ctrl.Result{}, fmt.Errorf("binding TalosHost %s again: %w", host.Name, err)
		}
	}
	scope.Observed.Claim = condition.True(infrav1.HostClaimedReason, "")

	return host, ctrl.Result{}, nil
}
