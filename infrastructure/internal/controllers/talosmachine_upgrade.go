package controllers

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// formerConditions are the names that conditions of a TalosMachine had in former
// revisions, and their names now.
var formerConditions = map[string]string{
	"HostClaimed":        infrav1.AllocatedCondition,
	"HostRunning":        infrav1.RunningCondition,
	"IdentityUnverified": infrav1.IdentityVerifiedCondition,
}

// formerReasons are the same for reasons.
var formerReasons = map[string]string{
	"AnotherMachineReprovisions": infrav1.ReprovisioningBlockedReason,
	"ClocksDiffer":               infrav1.ClockSkewReason,
	"ConfiguredBySomebodyElse":   infrav1.ForeignConfigurationReason,
	"EtcdNeedsMachine":           infrav1.EtcdQuorumAtRiskReason,
	"InOtherStage":               infrav1.UnexpectedStageReason,
	"NameTaken":                  infrav1.NameConflictReason,
	"NotAnswering":               infrav1.UnreachableReason,
	"OtherFingerprint":           infrav1.FingerprintChangedReason,
	"ReprovisioningHandsOver":    infrav1.ApplyingConfigurationReason,
	"ReprovisioningWipes":        infrav1.WipingReason,
}

// upgradeConditions renames the conditions that a former revision has written, where
// there are any. A condition that a reconcile does not observe keeps its last value: of a
// machine that is known under the former name only, it would begin anew, as that of a
// machine that has nothing yet.
func (r *MachineReconciler) upgradeConditions(ctx context.Context, machine *infrav1.TalosMachine) error {
	if !slices.ContainsFunc(machine.Status.Conditions, isFormer) {
		return nil
	}
	before := machine.DeepCopy()
	machine.Status.Conditions = upgraded(machine.Status.Conditions)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, machine, patch); err != nil {
		return fmt.Errorf("renaming the conditions that a former revision has written: %w", err)
	}

	return nil
}

// isFormer reports whether a condition is ours, and has a name or a reason of a former
// revision. What others set on a TalosMachine may be called alike, and is theirs.
func isFormer(condition metav1.Condition) bool {
	isOurs := slices.Contains(machineConditions(), condition.Type)

	return formerConditions[condition.Type] != "" || isOurs && formerReasons[condition.Reason] != ""
}

// upgraded are conditions under the names of this revision. Their times stay.
func upgraded(conditions []metav1.Condition) []metav1.Condition {
	var renamed []metav1.Condition
	for _, condition := range conditions {
		if !isFormer(condition) {
			renamed = append(renamed, condition)
			continue
		}
		if reason := formerReasons[condition.Reason]; reason != "" {
			condition.Reason = reason
		}
		if condition.Type == "IdentityUnverified" {
			condition = identityVerified(condition)
		}
		if name := formerConditions[condition.Type]; name != "" {
			if hasType(conditions, name) {
				continue
			}
			condition.Type = name
		}
		renamed = append(renamed, condition)
	}

	return renamed
}

// identityVerified is what IdentityVerified says where IdentityUnverified said unverified,
// which was true when something was wrong.
func identityVerified(unverified metav1.Condition) metav1.Condition {
	switch unverified.Reason {
	case infrav1.FingerprintVerifiedReason:
		unverified.Status = metav1.ConditionTrue
	case infrav1.FingerprintChangedReason:
		unverified.Status = metav1.ConditionFalse
	case infrav1.NoFingerprintReason:
		unverified.Status = metav1.ConditionUnknown
	default: // NotHandedOver; also of a machine in a Pod, where the next reconcile observes it anew.
		unverified.Status, unverified.Reason = metav1.ConditionUnknown, infrav1.NotConfiguredReason
	}

	return unverified
}

// hasType reports whether there is a condition of a type.
func hasType(conditions []metav1.Condition, name string) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == name })
}
