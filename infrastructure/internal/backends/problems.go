package backends

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// isProblem reports whether somebody is needed for a reason.
func isProblem(reason string) bool {
	switch reason {
	case infrav1.NoHostFitsReason, infrav1.HostLostReason, infrav1.InvalidSelectorReason, infrav1.OverlayFailedReason, infrav1.InstallDiskUnfitReason,
		infrav1.FingerprintMismatchReason, infrav1.HostIdentityMismatchReason, infrav1.ForeignConfigurationReason, infrav1.HostDuplicateReason,
		infrav1.ReturnedToMaintenanceReason, infrav1.UnreachableReason,
		infrav1.ReprovisioningBlockedReason, infrav1.ReprovisionDataMissingReason, infrav1.ReprovisionFromTemplateReason,
		infrav1.ReprovisionGoingReason,
		infrav1.HostRecordLostReason, infrav1.PodsNotAllowedReason, infrav1.PodRefusedReason, infrav1.NameConflictReason, infrav1.VolumeNotBoundReason, infrav1.ImageUnavailableReason,
		infrav1.NotTalosReason, infrav1.WrongReleaseReason, infrav1.EtcdAddressLostReason, infrav1.NodeNotReadyReason:
		return true
	}

	return false
}

// WarnOnNewProblem records an event when a condition says so for the first time.
func WarnOnNewProblem(recorder events.EventRecorder, scope *Scope) {
	for _, found := range []struct {
		kind string
		now  condition.Finding
	}{
		{infrav1.AllocatedCondition, scope.Observed.Claim},
		{infrav1.ConfigurationAppliedCondition, scope.Observed.Configuration},
		{infrav1.RunningCondition, scope.Observed.Running},
		{infrav1.ReprovisioningCondition, scope.Observed.Reprovisioning},
		{infrav1.DeletingCondition, scope.Observed.Deleting},
	} {
		before := conditions.Get(scope.TalosMachine, found.kind)
		if isProblem(found.now.Reason) && (before == nil || before.Reason != found.now.Reason) {
			recorder.Eventf(scope.TalosMachine, nil, corev1.EventTypeWarning, infrav1.EventAttention, "Observe", "%s: %s", found.now.Reason, found.now.Message)
		}
	}
}
