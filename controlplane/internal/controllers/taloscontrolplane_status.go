package controllers

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// ownedConditions are the conditions of a TalosControlPlane that nobody else
// sets.
func ownedConditions() []string {
	return []string{
		clusterv1.PausedCondition,
		controlplanev1.AvailableCondition,
		controlplanev1.InitializedCondition,
		controlplanev1.CertificatesAvailableCondition,
		controlplanev1.CertificatesExpiringCondition,
		controlplanev1.EtcdClusterHealthyCondition,
		controlplanev1.ControlPlaneComponentsHealthyCondition,
		controlplanev1.MachinesReadyCondition,
		controlplanev1.MachinesUpToDateCondition,
		controlplanev1.RollingOutCondition,
		controlplanev1.ManifestsUpToDateCondition,
		controlplanev1.ScalingUpCondition,
		controlplanev1.ScalingDownCondition,
		controlplanev1.RemediatingCondition,
		controlplanev1.DeletingCondition,
	}
}

// reconcileStatus derives the status from what was found, and writes
// it. reconcileErr is how the reconcile ended.
func (r *Reconciler) reconcileStatus(ctx context.Context, s *scope, helper *patch.Helper, reconcileErr error) error {
	var errs []error
	if s.machinesListed {
		if s.nodes != nil {
			errs = append(errs, r.reconcileMachineConditions(ctx, s))
		}
		setCounters(s)
		setVersions(s)
	}
	r.setGracePeriods(s)
	r.setInitialized(ctx, s)
	errs = append(errs, r.forgetNextMachine(ctx, s), r.forgetRemediation(ctx, s), r.forgetRefusal(ctx, s), r.rememberManifests(ctx, s))
	r.setConditions(ctx, s, reconcileErr)
	r.setExpiringCondition(s)

	options := []patch.Option{patch.WithOwnedConditions{Conditions: ownedConditions()}}
	if reconcileErr == nil && errors.Join(errs...) == nil {
		options = append(options, patch.WithStatusObservedGeneration{})
	}
	if err := helper.Patch(ctx, s.controlPlane, options...); err != nil {
		errs = append(errs, fmt.Errorf("writing the TalosControlPlane: %w", err))
	}

	return errors.Join(errs...)
}

// setGracePeriods records the grace periods that run, when all their reasons were observed
// in this reconcile.
func (r *Reconciler) setGracePeriods(s *scope) {
	if !s.decided() {
		return
	}
	status := &s.controlPlane.Status
	status.GracePeriods = r.grace.Record(client.ObjectKeyFromObject(s.controlPlane), status.GracePeriods)
}

func setCounters(s *scope) {
	status := &s.controlPlane.Status
	status.Selector = collections.ControlPlaneSelectorForCluster(s.cluster.Name).String()

	var ready, available, upToDate int32
	for _, machine := range s.machines {
		if conditions.IsTrue(machine, clusterv1.MachineReadyCondition) {
			ready++
		}
		if conditions.IsTrue(machine, clusterv1.MachineAvailableCondition) {
			available++
		}
		if conditions.IsTrue(machine, clusterv1.MachineUpToDateCondition) {
			upToDate++
		}
	}
	status.Replicas = ptr.To(int32(len(s.machines))) //nolint:gosec // There are never that many Machines.
	status.ReadyReplicas = ptr.To(ready)
	status.AvailableReplicas = ptr.To(available)
	status.UpToDateReplicas = ptr.To(upToDate)
}

// setInitialized notes that the API server has answered. It is not noted while
// the only Machine goes: its cluster goes with it.
func (r *Reconciler) setInitialized(ctx context.Context, s *scope) {
	initialization := &s.controlPlane.Status.Initialization
	intent := s.intent()
	if ptr.Deref(initialization.ControlPlaneInitialized, false) || s.deleting() || s.apiServer != health.APIServerReady ||
		intent == nil || !intent.Initialized {
		return
	}
	for _, machine := range s.machines {
		if machine.DeletionTimestamp.IsZero() {
			initialization.ControlPlaneInitialized = ptr.To(true)
			ctrl.LoggerFrom(ctx).Info("The API server answers for the first time")
			return
		}
	}
}

// forgetNextMachine removes the name of the next Machine once that Machine is
// there and was counted, so that the counters say that there is one, or once it
// goes, so that its successor gets another name.
func (r *Reconciler) forgetNextMachine(ctx context.Context, s *scope) error {
	machine := s.machine(s.controlPlane.Annotations[controlplanev1.NextMachineAnnotation])
	if machine == nil || s.deleting() || (!s.counted && machine.DeletionTimestamp.IsZero()) {
		return nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.NextMachineAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting the name of the next Machine: %w", err)
	}

	return nil
}

// forgetRemediation removes the record of a remediation once the replacement is
// there, or none is wanted.
func (r *Reconciler) forgetRemediation(ctx context.Context, s *scope) error {
	if s.facts.Remediation.InProgress == nil || !s.facts.RemediationEnded() {
		return nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.RemediationInProgressAnnotation: ""}); err != nil {
		return fmt.Errorf("forgetting the remediation: %w", err)
	}

	return nil
}

// setConditions derives all conditions of the control plane. Each is set in
// each reconcile; what was not observed is unknown.
func (r *Reconciler) setConditions(ctx context.Context, s *scope, reconcileErr error) {
	setInitializedCondition(s)
	setCertificatesCondition(s)
	setEtcdCondition(s)
	setComponentsCondition(s)
	setMachinesReadyCondition(ctx, s)
	setMachinesUpToDateCondition(ctx, s)
	r.setRollingOutCondition(s)
	setManifestsCondition(s)
	setScalingConditions(s)
	setRemediatingCondition(s)
	setDeletingCondition(s, reconcileErr)
	setAvailableCondition(s)
}
