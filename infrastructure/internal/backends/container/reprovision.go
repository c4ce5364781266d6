package container

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
)

// reconcileReprovision begins to delete the Pod and its data when somebody asks for
// it (design D15), and says how far that is. The wish is the annotation; once it is
// begun, the record on the TalosMachine goes on without it. It is taken away before
// the machine is recorded to run.
func (m *Backend) reconcileReprovision(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	machine := scope.TalosMachine
	progress := machine.Spec.Pod.Progress
	scope.Observed.Reprovisioning = condition.False(infrav1.NotReprovisioningReason, "")
	switch {
	case progress == infrav1.PodCreating || progress == infrav1.PodCreated:
		// It gets its configuration anyway; one that has run before gets it again.
		if ptr.Deref(machine.Status.Initialization.Provisioned, false) {
			scope.Observed.Reprovisioning = condition.True(infrav1.ApplyingConfigurationReason, "The Pod and its data are gone, and are made again")
		}
		return ctrl.Result{}, nil
	case progress == infrav1.PodReprovisioning, progress == "", !reprovision.IsWanted(machine):
		return ctrl.Result{}, nil
	}

	return m.beginReprovision(ctx, scope)
}

// beginReprovision records that the Pod and its data are to be made again, unless
// something speaks against it. That is judged on what is read live.
func (m *Backend) beginReprovision(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	begun, err := m.reprovisioner.Begin(ctx, scope, backends.Etcd{Live: m.APIReader, Dialer: m.Dialer, Credentials: m.Credentials},
		func() (reprovision.Refusal, error) { return m.refuseReprovision(ctx, scope) },
		func() error {
			return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.Progress = infrav1.PodReprovisioning })
		},
	)
	switch {
	case err != nil:
		return ctrl.Result{}, err
	case !begun:
		return m.Pacing.Later(), nil
	}
	ctrl.LoggerFrom(ctx).Info("Re-provisioning the machine")
	m.Recorder.Eventf(scope.TalosMachine, nil, corev1.EventTypeNormal, infrav1.EventReprovisioning, "Reprovision",
		"The Pod and its data are deleted, and made again with the same configuration")

	return ctrl.Result{}, nil
}

// refuseReprovision says what speaks against a beginning, beside etcd.
func (m *Backend) refuseReprovision(ctx context.Context, scope *backends.Scope) (reprovision.Refusal, error) {
	machines := &infrav1.TalosMachineList{}
	err := m.APIReader.List(ctx, machines, client.InNamespace(scope.TalosMachine.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: scope.Cluster.Name})
	if err != nil {
		return reprovision.Refusal{}, fmt.Errorf("listing TalosMachines: %w", err)
	}
	_, missing, err := m.configuration(ctx, scope)
	if err != nil {
		return reprovision.Refusal{}, err
	}

	return reprovision.RefusePod(reprovision.PodFacts{
		Machine:      scope.TalosMachine,
		Others:       machines.Items,
		FromTemplate: backends.IsReprovisionFromTemplate(scope),
		HasData:      missing == "",
	}), nil
}

// wipePod deletes the Pod and its data; once both are gone the Pod is made again as
// if for the first time. The address of its etcd stays.
func (m *Backend) wipePod(ctx context.Context, scope *backends.Scope, facts podFacts) (ctrl.Result, error) {
	m.forget(client.ObjectKeyFromObject(scope.TalosMachine))
	left, err := m.deleteAll(ctx, m.podBuilder(scope, false), facts, false)
	if err != nil {
		return ctrl.Result{}, err
	}
	message := "The Pod and its data are being deleted, to be made again with the same configuration"
	if len(left) > 0 {
		message += "; waiting to be gone: " + strings.Join(left, ", ")
		scope.Observed.Reprovisioning = condition.True(infrav1.WipingReason, message)
		scope.Observed.Configuration = condition.False(infrav1.WipingReason, message)
		scope.Observed.Running = condition.False(infrav1.WipingReason, message)
		return m.Pacing.Later(), nil
	}
	err = backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) {
		spec.Pod.Progress, spec.Pod.UID = infrav1.PodCreating, ""
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	scope.Observed.Reprovisioning = condition.True(infrav1.ApplyingConfigurationReason, "The Pod and its data are gone, and are made again")
	scope.Observed.Provisioned = false

	return m.requeueStarting(), nil
}
