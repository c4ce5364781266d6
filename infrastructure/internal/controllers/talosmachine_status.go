package controllers

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
)

// reconcileStatus derives the status from what the reconciliation has found, and writes
// it. The backend may have written the spec in the reconciliation, so only now the patch
// begins.
func (r *MachineReconciler) reconcileStatus(ctx context.Context, scope *backends.Scope) error {
	machine, observed := scope.TalosMachine, scope.Observed
	helper, err := patch.NewHelper(machine, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return fmt.Errorf("preparing the patch: %w", err)
	}
	if observed.Released {
		controllerutil.RemoveFinalizer(machine, infrav1.TalosMachineFinalizer)
	}
	status := &machine.Status
	if machine.Spec.Container != nil {
		// A Pod that runs cannot be moved to another management cluster.
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, infrav1.BlockMoveAnnotation, "")
	}
	if observed.Provisioned {
		status.Initialization.Provisioned = ptr.To(true)
	}
	if observed.Addresses != nil {
		status.Addresses = observed.Addresses
	}
	if observed.FailureDomain != "" {
		status.FailureDomain = observed.FailureDomain
	}
	if observed.TalosVersion != "" {
		status.TalosVersion = observed.TalosVersion
	}
	if observed.InstallerImage != "" {
		status.InstallerImage = observed.InstallerImage
	}
	setMachineConditions(machine, observed)

	err = helper.Patch(ctx, machine, patch.WithOwnedConditions{Conditions: append(machineConditions(), clusterv1.PausedCondition)})
	if err != nil {
		// What has no finalizer any more may be gone.
		if !machine.DeletionTimestamp.IsZero() {
			err = kerrors.FilterOut(err, apierrors.IsNotFound)
		}
		if err != nil {
			return fmt.Errorf("writing the TalosMachine: %w", err)
		}
	}

	return nil
}

// machineConditions are the conditions of a TalosMachine that nobody else sets.
func machineConditions() []string {
	return []string{
		infrav1.ReadyCondition, infrav1.AllocatedCondition, infrav1.ConfigurationAppliedCondition, infrav1.RunningCondition,
		infrav1.IdentityVerifiedCondition, infrav1.ReprovisioningCondition, infrav1.DeletingCondition,
	}
}

// setMachineConditions sets what was observed. What was never observed waits
// for what comes before it; what was observed before stays.
func setMachineConditions(machine *infrav1.TalosMachine, observed backends.Observed) {
	if observed.Deleting.Status == "" {
		observed.Deleting = condition.False(infrav1.NotDeletingReason, "")
		if !machine.DeletionTimestamp.IsZero() {
			observed.Deleting = condition.True(infrav1.DeletingReason, "")
		}
	}
	if observed.Configuration.Status == "" {
		observed.Configuration = unobservedConfiguration(machine, observed.Claim)
	}
	for _, one := range []struct {
		kind    string
		found   condition.Finding
		initial condition.Finding
	}{
		{infrav1.AllocatedCondition, observed.Claim, condition.False(infrav1.WaitingForClusterInfrastructureReason, "Waiting for the Machine and its Cluster")},
		{infrav1.ConfigurationAppliedCondition, observed.Configuration, condition.Finding{}},
		{infrav1.RunningCondition, observed.Running, condition.False(infrav1.NotConfiguredReason, "The machine has no configuration yet")},
		{infrav1.IdentityVerifiedCondition, observed.Identity, condition.Unknown(infrav1.NotConfiguredReason, "The machine has no configuration yet")},
		{infrav1.ReprovisioningCondition, observed.Reprovisioning, condition.False(infrav1.NotReprovisioningReason, "")},
		{infrav1.DeletingCondition, observed.Deleting, condition.Finding{}},
	} {
		found := one.found
		if found.Status == "" && conditions.Get(machine, one.kind) == nil {
			found = one.initial
		}
		condition.Set(machine, one.kind, found)
	}
	condition.Set(machine, infrav1.ReadyCondition, readyOf(machine))
}

// unobservedConfiguration is what ConfigurationApplied says where nothing was observed of the
// configuration: none, so that it stays, when something was before.
func unobservedConfiguration(machine *infrav1.TalosMachine, claim condition.Finding) condition.Finding {
	before := conditions.Get(machine, infrav1.ConfigurationAppliedCondition)
	isAllocated := claim.Status == metav1.ConditionTrue || claim.Status == "" && conditions.IsTrue(machine, infrav1.AllocatedCondition)
	switch {
	case before != nil && before.Reason != infrav1.WaitingForHostReason:
		return condition.Finding{}
	case isAllocated:
		return condition.False(infrav1.ApplyingConfigurationReason, "The configuration is not handed over yet; if that lasts, the log of the manager says why")
	case machine.Spec.Container != nil:
		return condition.False(infrav1.WaitingForHostReason, "Waiting for the Pod")
	default:
		return condition.False(infrav1.WaitingForHostReason, "Waiting for a host")
	}
}

// readyOf is the first thing that is not right; the state of the machine when
// all is.
func readyOf(machine *infrav1.TalosMachine) condition.Finding {
	if !machine.DeletionTimestamp.IsZero() {
		waits := conditions.GetMessage(machine, infrav1.DeletingCondition)

		return condition.False(infrav1.DeletingReason, cmp.Or(waits, "The TalosMachine is being deleted"))
	}
	var ready condition.Finding
	for _, kind := range []string{infrav1.AllocatedCondition, infrav1.ConfigurationAppliedCondition, infrav1.RunningCondition} {
		found := conditions.Get(machine, kind)
		ready = condition.Finding{Status: found.Status, Reason: found.Reason, Message: found.Message}
		if found.Status != metav1.ConditionTrue {
			break
		}
	}

	return ready
}
