package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// reconcileMachineConditions writes the conditions of the Machines about their
// components, their etcd member and their being up to date.
func (r *Reconciler) reconcileMachineConditions(ctx context.Context, s *scope) error {
	kept := r.grace.Observe(client.ObjectKeyFromObject(s.controlPlane), controlplanev1.NotObservedGracePeriod, silentMachines(s))
	owned := append(health.MachineConditionTypes(), clusterv1.MachineUpToDateCondition, clusterv1.MachineOwnerRemediatedCondition)

	verdicts := plan.Verdicts(s.facts)
	var errs []error
	for _, machine := range s.machines {
		helper, err := patch.NewHelper(machine, objects.ReadLive(r.Client, r.APIReader))
		if err != nil {
			errs = append(errs, fmt.Errorf("preparing the patch of Machine %s: %w", machine.Name, err))
			continue
		}
		setHealthConditions(s, machine, kept[machine.Name] < remoteGracePeriod)
		if s.outdated != nil {
			r.setUpToDateCondition(s, machine)
		}
		setOwnerRemediatedCondition(machine, verdicts, standstill(s))
		if err := helper.Patch(ctx, machine, patch.WithOwnedConditions{Conditions: owned}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("writing the conditions of Machine %s: %w", machine.Name, err))
		}
	}

	return errors.Join(errs...)
}

// silentMachines are the Machines of which not everything was observed.
func silentMachines(s *scope) []string {
	var silent []string
	for _, machine := range s.machines {
		unknown := func(condition metav1.Condition) bool { return condition.Status == metav1.ConditionUnknown }
		if slices.ContainsFunc(health.Conditions(s.nodes[machine.Name]), unknown) {
			silent = append(silent, machine.Name)
		}
	}

	return silent
}

// setHealthConditions sets the conditions about components. What is not
// observed now keeps, for a while, what is known.
func setHealthConditions(s *scope, machine *clusterv1.Machine, keep bool) {
	for _, condition := range machineHealth(s, machine) {
		known := conditions.Get(machine, condition.Type)
		if condition.Status == metav1.ConditionUnknown && keep && known != nil && known.Status != metav1.ConditionUnknown {
			continue
		}
		conditions.Set(machine, condition)
	}
}

func machineHealth(s *scope, machine *clusterv1.Machine) []metav1.Condition {
	if !machine.DeletionTimestamp.IsZero() {
		return deletingConditions(s, machine)
	}
	if s.parts[machine.Name].held() {
		return health.Unknown("The Machine waits for its turn to join")
	}
	if !capimachine.IsProvisioned(machine) {
		return health.Unknown("Waiting for the infrastructure of the Machine to be provisioned")
	}
	if s.bundle == nil {
		return health.Unknown("The node cannot be asked without the secrets of the cluster")
	}

	found := health.Conditions(s.nodes[machine.Name])
	if s.facts.LostItsMember(machine.Name) {
		found[slices.IndexFunc(found, isAboutMember)] = metav1.Condition{
			Type: controlplanev1.MachineEtcdMemberHealthyCondition, Status: metav1.ConditionFalse,
			Reason:  controlplanev1.MachineEtcdMemberRemovedReason,
			Message: "The etcd member was removed, and etcd does not take the node back with its data; delete the Machine, and another one joins",
		}
	}
	if s.facts.IsNeverPromoted(machine.Name) {
		found[slices.IndexFunc(found, isAboutMember)] = metav1.Condition{
			Type: controlplanev1.MachineEtcdMemberHealthyCondition, Status: metav1.ConditionFalse,
			Reason: controlplanev1.MachineEtcdMemberNeverPromotedReason, Message: neverPromoted,
		}
	}

	return found
}

func isAboutMember(condition metav1.Condition) bool {
	return condition.Type == controlplanev1.MachineEtcdMemberHealthyCondition
}

// deletingConditions say that a Machine goes, and what holds it.
func deletingConditions(s *scope, machine *clusterv1.Machine) []metav1.Condition {
	message := "The Machine is being deleted"
	if _, held := machine.Annotations[controlplanev1.EtcdPreTerminateHookAnnotation]; held && !s.deleting() {
		message = s.facts.DepartureMessage(machine.Name) + "\nTo let it go without care for etcd, set the annotation " +
			controlplanev1.EtcdPreTerminateHookOverrideAnnotation + " on the Machine"
	}
	found := health.Unknown(message)
	for i := range found {
		found[i].Status = metav1.ConditionFalse
		found[i].Reason = controlplanev1.MachinePodDeletingReason
	}

	return found
}

func (r *Reconciler) setUpToDateCondition(s *scope, machine *clusterv1.Machine) {
	condition := metav1.Condition{Type: clusterv1.MachineUpToDateCondition, Status: metav1.ConditionTrue, Reason: clusterv1.MachineUpToDateReason}
	differences := s.outdated[machine.Name]
	if other := r.otherRelease(s, machine); other != "" {
		differences = []string{other}
	}
	if len(differences) > 0 {
		condition.Status = metav1.ConditionFalse
		condition.Reason = clusterv1.MachineNotUpToDateReason
		condition.Message = "* " + strings.Join(differences, "\n* ")
	}
	conditions.Set(machine, condition)
}

// setOwnerRemediatedCondition answers a MachineHealthCheck: what becomes of the
// Machine, and what holds that up. The answer to one that is healthy again goes.
func setOwnerRemediatedCondition(machine *clusterv1.Machine, verdicts map[string]plan.Verdict, holdup string) {
	const conditionType = clusterv1.MachineOwnerRemediatedCondition
	switch verdict, judged := verdicts[machine.Name]; {
	case collections.IsUnhealthyAndOwnerRemediated(machine) && !machine.DeletionTimestamp.IsZero():
		condition.Set(machine, conditionType, condition.False(controlplanev1.MachineRemediationMachineDeletingReason, "The Machine is being deleted"))
	case judged && verdict.Remediate:
		condition.Set(machine, conditionType, condition.False(controlplanev1.MachineRemediationDeferredReason, strings.TrimSpace("The Machine is to be deleted\n"+holdup)))
	case judged:
		condition.Set(machine, conditionType, condition.False(verdict.Reason, verdict.Message))
	case !collections.IsUnhealthy(machine) && conditions.Has(machine, conditionType):
		conditions.Delete(machine, conditionType)
	}
}

// setVersions lists the Kubernetes versions of the Machines, oldest first.
func setVersions(s *scope) {
	counts := map[string]int32{}
	for _, machine := range s.machines {
		if present := machineVersion(machine); present != "" {
			counts[present]++
		}
	}
	var versions []clusterv1.StatusVersion
	for name, count := range counts {
		versions = append(versions, clusterv1.StatusVersion{Version: name, Replicas: count})
	}
	slices.SortFunc(versions, func(a, b clusterv1.StatusVersion) int { return compareVersions(a.Version, b.Version) })

	s.controlPlane.Status.Versions = versions
	s.controlPlane.Status.Version = ""
	if len(versions) > 0 {
		s.controlPlane.Status.Version = versions[0].Version
	}
}

// machineVersion is what a Machine's kubelet says, else what it should be.
func machineVersion(machine *clusterv1.Machine) string {
	if machine.Status.NodeInfo != nil && machine.Status.NodeInfo.KubeletVersion != "" {
		return machine.Status.NodeInfo.KubeletVersion
	}

	return machine.Spec.Version
}

// compareVersions orders versions, also those with build metadata; what is no
// version comes first, in the order of its text.
func compareVersions(a, b string) int {
	left, leftErr := semver.ParseTolerant(a)
	right, rightErr := semver.ParseTolerant(b)
	switch {
	case leftErr != nil || rightErr != nil:
		if (leftErr == nil) != (rightErr == nil) {
			if leftErr != nil {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	default:
		if order := version.Compare(left, right, version.WithBuildTags()); order != 0 {
			return order
		}
		return strings.Compare(a, b)
	}
}
