package controllers

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

func setInitializedCondition(s *scope) {
	if ptr.Deref(s.controlPlane.Status.Initialization.ControlPlaneInitialized, false) {
		condition.Set(s.controlPlane, controlplanev1.InitializedCondition, condition.True(controlplanev1.InitializedReason, ""))
		return
	}
	reason, message := controlplanev1.NotInitializedReason, "The control plane was not looked at yet"
	switch {
	case s.deleting():
		message = "The control plane is being deleted"
	case s.decision.Action != "":
		_, answer := apiServerStatus(s)
		reason, message = s.decision.Reason, cmp.Or(progress(s), answer)
	case objects.IsLostRace(s.gatherErr) && conditions.Has(s.controlPlane, controlplanev1.InitializedCondition):
		return
	case s.gatherErr != nil:
		message = cmp.Or(progress(s), message)
	}
	condition.Set(s.controlPlane, controlplanev1.InitializedCondition, condition.False(reason, message))
}

func setCertificatesCondition(s *scope) {
	const conditionType = controlplanev1.CertificatesAvailableCondition
	begun := s.initialized() || s.intent() != nil
	missing := strings.Join(s.missingSecrets, ", ")
	switch {
	case s.certificatesErr != nil:
		condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.CertificatesInternalErrorReason, "The Secrets of the cluster cannot be read, see the log of the manager"))
	case s.certificates == plan.CertificatesUnknown:
		if !conditions.Has(s.controlPlane, conditionType) {
			condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.CertificatesInternalErrorReason, "The Secrets of the cluster were not looked at yet"))
		}
	case s.invalidBundle:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.CertificatesNotAvailableReason,
			"Secret "+secrets.BundleName(s.cluster.Name)+" holds no valid secrets bundle; correct it"))
	case s.certificates == plan.CertificatesChanged:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.CertificatesChangedReason,
			"The secrets bundle is not the one with which the cluster was bootstrapped; restore the original"))
	case len(s.missingSecrets) > 0 && begun:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.CertificatesNotAvailableReason, "Secrets of the cluster were lost: "+missing+"; restore them"))
	case s.certificates == plan.CertificatesMissing || len(s.missingSecrets) > 0:
		message := "Waiting for the bootstrap provider to create the Secrets of the cluster"
		if missing != "" {
			message += ": " + missing
		}
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.CertificatesNotAvailableReason, message))
	default:
		condition.Set(s.controlPlane, conditionType, condition.True(controlplanev1.CertificatesAvailableReason, ""))
	}
}

func setEtcdCondition(s *scope) {
	const conditionType = controlplanev1.EtcdClusterHealthyCondition
	views := s.views()
	if len(views) == 0 {
		found := machineSummary(s, []string{controlplanev1.MachineEtcdMemberHealthyCondition})
		if found.Status == metav1.ConditionTrue {
			found = condition.Unknown(controlplanev1.EtcdClusterHealthUnknownReason, "No etcd member answers")
		}
		condition.Set(s.controlPlane, conditionType, found)
		return
	}
	if problems := slices.Concat(etcdProblems(s), learnersForEver(s), almostFull(s)); len(problems) > 0 {
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.EtcdClusterNotHealthyReason, bullets(problems)))
		return
	}
	condition.Set(s.controlPlane, conditionType, machineSummary(s, []string{controlplanev1.MachineEtcdMemberHealthyCondition}))
}

// etcdProblems is what is wrong with etcd as a whole, as far as nodes answer.
func etcdProblems(s *scope) []string {
	if len(s.facts.Machines) == 0 {
		return etcd.Judge(s.views()).Problems
	}

	return s.facts.EtcdProblems()
}

// almostFull names the Machines whose member's database is near its quota. Nothing
// waits for that: a Machine that is replaced begins with a database without gaps.
func almostFull(s *scope) []string {
	var found []string
	for _, machine := range s.machines {
		if view := s.nodes[machine.Name].Etcd; view != nil && view.IsAlmostFull() {
			found = append(found, "Machine "+machine.Name+": the database of etcd is near its quota of "+
				resource.NewQuantity(view.DBQuotaBytes, resource.BinarySI).String()+
				", beyond which Kubernetes takes no writes; delete what fills it, compact and defragment it, or raise quota-backend-bytes")
		}
	}

	return found
}

func setComponentsCondition(s *scope) {
	condition.Set(s.controlPlane, controlplanev1.ControlPlaneComponentsHealthyCondition, machineSummary(s, health.ComponentConditionTypes()))
}

// machineSummary sums up conditions of all Machines: False if any is false, else
// Unknown if any is unknown. The reasons are those that the conditions
// EtcdClusterHealthy and ControlPlaneComponentsHealthy have in common.
func machineSummary(s *scope, types []string) condition.Finding {
	if len(s.machines) == 0 {
		return condition.Unknown(controlplanev1.EtcdClusterHealthUnknownReason, "There are no control plane Machines")
	}
	var bad, unknown []string
	for _, machine := range s.machines {
		for _, conditionType := range types {
			found := conditions.Get(machine, conditionType)
			switch {
			case found == nil:
				unknown = append(unknown, "Machine "+machine.Name+": "+conditionType+" is not known yet")
			case found.Status == metav1.ConditionFalse:
				bad = append(bad, "Machine "+machine.Name+": "+found.Message)
			case found.Status == metav1.ConditionUnknown:
				unknown = append(unknown, "Machine "+machine.Name+": "+found.Message)
			}
		}
	}
	switch {
	case len(bad) > 0:
		return condition.False(controlplanev1.EtcdClusterNotHealthyReason, bullets(bad))
	case len(unknown) > 0:
		return condition.Unknown(controlplanev1.EtcdClusterHealthUnknownReason, bullets(unknown))
	default:
		return condition.True(controlplanev1.EtcdClusterHealthyReason, "")
	}
}

// bullets lists sentences, each once.
func bullets(sentences []string) string {
	var lines []string
	for _, sentence := range sentences {
		line := "* " + sentence
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}

	return strings.Join(lines, "\n")
}

func setMachinesReadyCondition(ctx context.Context, s *scope) {
	if len(s.machines) == 0 {
		condition.Set(s.controlPlane, controlplanev1.MachinesReadyCondition, condition.True(controlplanev1.MachinesReadyNoReplicasReason, ""))
		return
	}
	aggregate(ctx, s, clusterv1.MachineReadyCondition, controlplanev1.MachinesReadyCondition,
		controlplanev1.MachinesNotReadyReason, controlplanev1.MachinesReadyUnknownReason, controlplanev1.MachinesReadyReason)
}

func setMachinesUpToDateCondition(ctx context.Context, s *scope) {
	if len(s.machines) == 0 {
		condition.Set(s.controlPlane, controlplanev1.MachinesUpToDateCondition, condition.True(controlplanev1.MachinesUpToDateNoReplicasReason, ""))
		return
	}
	aggregate(ctx, s, clusterv1.MachineUpToDateCondition, controlplanev1.MachinesUpToDateCondition,
		controlplanev1.MachinesNotUpToDateReason, controlplanev1.MachinesUpToDateUnknownReason, controlplanev1.MachinesUpToDateReason)
}

// aggregate sums up one condition of all Machines as core Cluster API does.
func aggregate(ctx context.Context, s *scope, from, to, issueReason, unknownReason, goodReason string) {
	aggregated, err := conditions.NewAggregateCondition(s.machines, from,
		conditions.TargetConditionType(to),
		conditions.CustomMergeStrategy{MergeStrategy: conditions.DefaultMergeStrategy(
			conditions.ComputeReasonFunc(conditions.GetDefaultComputeMergeReasonFunc(issueReason, unknownReason, goodReason)),
		)},
	)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to sum up a condition of the Machines", "condition", from)
		condition.Set(s.controlPlane, to, condition.Unknown(clusterv1.InternalErrorReason, "The condition could not be summed up, see the log of the manager"))
		return
	}
	conditions.Set(s.controlPlane, *aggregated)
}

func (r *Reconciler) setRollingOutCondition(s *scope) {
	var outdated []string
	for _, machine := range s.machines {
		if conditions.IsFalse(machine, clusterv1.MachineUpToDateCondition) && r.otherRelease(s, machine) == "" {
			outdated = append(outdated, "Machine "+machine.Name+": "+strings.Join(s.outdated[machine.Name], ", "))
		}
	}
	if len(outdated) == 0 {
		condition.Set(s.controlPlane, controlplanev1.RollingOutCondition, condition.False(controlplanev1.NotRollingOutReason, ""))
		return
	}
	reason := controlplanev1.RollingOutReason
	if replacement := r.withoutHost(s); replacement != "" {
		reason = controlplanev1.NoSpareHostReason
		outdated = append(outdated, "Machine "+replacement+" finds no host; add one, or set maxSurge to 0 with three or more replicas")
	}
	condition.Set(s.controlPlane, controlplanev1.RollingOutCondition, condition.True(reason, bullets(outdated)+waiting(s)))
}

// withoutHost names a Machine that is up to date and for which there is no host;
// empty when there is none.
func (r *Reconciler) withoutHost(s *scope) string {
	for _, machine := range s.machines {
		if len(s.outdated[machine.Name]) == 0 && r.infrastructure.NoSpareCapacity(machine) {
			return machine.Name
		}
	}

	return ""
}

// waiting says what a change waits for, as more lines of a message.
func waiting(s *scope) string {
	if message := progress(s); message != "" {
		return "\n" + message
	}

	return ""
}

func setScalingConditions(s *scope) {
	if s.controlPlane.Spec.Replicas == nil {
		for _, conditionType := range []string{controlplanev1.ScalingUpCondition, controlplanev1.ScalingDownCondition} {
			condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.WaitingForReplicasSetReason, "Waiting for spec.replicas to be set"))
		}
		return
	}
	wanted, present, staying := int(*s.controlPlane.Spec.Replicas), len(s.machines), len(stayingNames(s))
	if s.deleting() {
		wanted = 0
	}
	if staying < wanted || (!s.deleting() && slices.ContainsFunc(stayingNames(s), func(name string) bool { return s.parts[name].held() })) {
		condition.Set(s.controlPlane, controlplanev1.ScalingUpCondition, condition.True(controlplanev1.ScalingUpReason, progress(s)))
	} else {
		condition.Set(s.controlPlane, controlplanev1.ScalingUpCondition, condition.False(controlplanev1.NotScalingUpReason, ""))
	}
	if present > wanted {
		condition.Set(s.controlPlane, controlplanev1.ScalingDownCondition, condition.True(controlplanev1.ScalingDownReason, progress(s)))
	} else {
		condition.Set(s.controlPlane, controlplanev1.ScalingDownCondition, condition.False(controlplanev1.NotScalingDownReason, ""))
	}
}

func setRemediatingCondition(s *scope) {
	var unhealthy []string
	for _, machine := range s.machines {
		if collections.IsUnhealthyAndOwnerRemediated(machine) {
			unhealthy = append(unhealthy, "Machine "+machine.Name+": "+conditions.GetMessage(machine, clusterv1.MachineOwnerRemediatedCondition))
		}
	}
	if len(unhealthy) == 0 {
		condition.Set(s.controlPlane, controlplanev1.RemediatingCondition, condition.False(controlplanev1.NotRemediatingReason, ""))
		return
	}
	condition.Set(s.controlPlane, controlplanev1.RemediatingCondition, condition.True(controlplanev1.RemediatingReason, bullets(unhealthy)))
}

func setDeletingCondition(s *scope, reconcileErr error) {
	const conditionType = controlplanev1.DeletingCondition
	switch {
	case s.controlPlane.DeletionTimestamp.IsZero():
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.NotDeletingReason, ""))
	case s.deletion.Action == "" || (reconcileErr != nil && s.effectErr == nil):
		condition.Set(s.controlPlane, conditionType, condition.True(controlplanev1.DeletingInternalErrorReason,
			"The deletion does not go on: "+cmp.Or(explain(reconcileErr), "see the log of the manager")))
	default:
		condition.Set(s.controlPlane, conditionType, condition.True(s.deletion.Reason, outcome(s.deletion, s.effectErr)))
	}
}

// setAvailableCondition sums everything up. It comes last, from the conditions
// that were set before.
func setAvailableCondition(s *scope) {
	const conditionType = controlplanev1.AvailableCondition
	switch {
	case !s.controlPlane.DeletionTimestamp.IsZero():
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.NotAvailableReason, "* The control plane is being deleted"))
		return
	case !ptr.Deref(s.controlPlane.Status.Initialization.ControlPlaneInitialized, false):
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.NotAvailableReason,
			"* The control plane is not initialized: "+conditions.GetMessage(s.controlPlane, controlplanev1.InitializedCondition)))
		return
	}

	var bad, unknown []string
	note := func(status metav1.ConditionStatus, sentence string) {
		switch status {
		case metav1.ConditionFalse:
			bad = append(bad, sentence)
		case metav1.ConditionUnknown:
			unknown = append(unknown, sentence)
		case metav1.ConditionTrue:
		}
	}
	if found := conditions.Get(s.controlPlane, controlplanev1.CertificatesAvailableCondition); found != nil {
		note(found.Status, found.Message)
	}
	note(apiServerStatus(s))
	note(quorumStatus(s))
	note(healthyMachineStatus(s))
	problems := slices.Concat(bad, unknown)
	if message := standstill(s); message != "" {
		problems = append(problems, message)
	}
	switch {
	case len(bad) > 0:
		condition.Set(s.controlPlane, conditionType, condition.False(controlplanev1.NotAvailableReason, bullets(problems)))
	case len(unknown) > 0:
		condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.AvailableUnknownReason, bullets(problems)))
	default:
		condition.Set(s.controlPlane, conditionType, condition.True(controlplanev1.AvailableReason, bullets(problems)))
	}
}

func apiServerStatus(s *scope) (metav1.ConditionStatus, string) {
	switch s.apiServer {
	case health.APIServerReady:
		return metav1.ConditionTrue, ""
	case health.APIServerNotReady:
		return metav1.ConditionFalse, "The API server answers at the control plane endpoint, and is not ready"
	case health.APIServerUntrusted:
		return metav1.ConditionFalse, "What answers at the control plane endpoint is no API server of this cluster"
	case health.APIServerSilent:
		return metav1.ConditionFalse, "Nothing answers at the control plane endpoint"
	default:
		return metav1.ConditionUnknown, "The API server was not asked"
	}
}

func quorumStatus(s *scope) (metav1.ConditionStatus, string) {
	views := s.views()
	switch {
	case len(views) == 0:
		return conditionStatus(s, controlplanev1.EtcdClusterHealthyCondition), "etcd: no member answers, so there is no majority"
	case etcd.Judge(views).HasQuorum():
		return metav1.ConditionTrue, ""
	default:
		return metav1.ConditionFalse, "etcd: the voting members that answer are no majority"
	}
}

// healthyMachineStatus is true when at least one Machine has only healthy
// components.
func healthyMachineStatus(s *scope) (metav1.ConditionStatus, string) {
	status := metav1.ConditionFalse
	for _, machine := range s.machines {
		switch worstStatus(machine) {
		case metav1.ConditionTrue:
			return metav1.ConditionTrue, ""
		case metav1.ConditionUnknown:
			status = metav1.ConditionUnknown
		case metav1.ConditionFalse:
		}
	}

	return status, "No Machine is known to have only healthy control plane components"
}

func worstStatus(machine *clusterv1.Machine) metav1.ConditionStatus {
	worst := metav1.ConditionTrue
	for _, conditionType := range health.MachineConditionTypes() {
		switch {
		case conditions.IsFalse(machine, conditionType):
			return metav1.ConditionFalse
		case !conditions.IsTrue(machine, conditionType):
			worst = metav1.ConditionUnknown
		}
	}

	return worst
}

func conditionStatus(s *scope, conditionType string) metav1.ConditionStatus {
	if found := conditions.Get(s.controlPlane, conditionType); found != nil {
		return found.Status
	}

	return metav1.ConditionUnknown
}
