package health

import (
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// podPrefixes are the names of the static Pods of the components, without the
// name of the node that follows.
var podPrefixes = map[string]string{
	controlplanev1.MachineAPIServerPodHealthyCondition:         "kube-apiserver-",
	controlplanev1.MachineControllerManagerPodHealthyCondition: "kube-controller-manager-",
	controlplanev1.MachineSchedulerPodHealthyCondition:         "kube-scheduler-",
}

// ComponentConditionTypes are the conditions of a Machine about the components
// of the control plane that run on it, without its etcd member.
func ComponentConditionTypes() []string {
	return []string{
		controlplanev1.MachineAPIServerPodHealthyCondition,
		controlplanev1.MachineControllerManagerPodHealthyCondition,
		controlplanev1.MachineSchedulerPodHealthyCondition,
		controlplanev1.MachineEtcdPodHealthyCondition,
	}
}

// MachineConditionTypes are all conditions of a Machine that Conditions makes.
func MachineConditionTypes() []string {
	return append(ComponentConditionTypes(), controlplanev1.MachineEtcdMemberHealthyCondition)
}

// WrongClockText says why a node with a wrong clock cannot be asked, and what to do.
const WrongClockText = "The node answers, but its clock and that of the management cluster differ by more than ten minutes, " +
	"so that they refuse each other's certificates; set the time servers of both"

// Conditions are the conditions of a Machine, from the facts about its node.
// The messages have no address, time or counter, so that they stay the same
// while nothing changes.
func Conditions(facts Facts) []metav1.Condition {
	switch {
	case errors.Is(facts.Err, talosclient.ErrClock):
		return Unknown(WrongClockText)
	case facts.Err != nil:
		return Unknown("The Talos API of the node does not answer")
	}

	return []metav1.Condition{
		podCondition(facts, controlplanev1.MachineAPIServerPodHealthyCondition),
		podCondition(facts, controlplanev1.MachineControllerManagerPodHealthyCondition),
		podCondition(facts, controlplanev1.MachineSchedulerPodHealthyCondition),
		etcdServiceCondition(facts),
		memberCondition(facts),
	}
}

// Unknown are the conditions of a Machine that cannot be observed, with the
// reason in words.
func Unknown(message string) []metav1.Condition {
	var conditions []metav1.Condition
	for _, conditionType := range MachineConditionTypes() {
		conditions = append(conditions, metav1.Condition{
			Type: conditionType, Status: metav1.ConditionUnknown,
			Reason: controlplanev1.MachinePodInspectionFailedReason, Message: message,
		})
	}

	return conditions
}

func podCondition(facts Facts, conditionType string) metav1.Condition {
	condition := metav1.Condition{Type: conditionType, Status: metav1.ConditionFalse}
	if facts.StaticPodsErr != nil {
		condition.Status = metav1.ConditionUnknown
		condition.Reason = controlplanev1.MachinePodInspectionFailedReason
		condition.Message = "The node does not list its static Pods"

		return condition
	}
	prefix := podPrefixes[conditionType]
	component := strings.TrimSuffix(prefix, "-")
	i := slices.IndexFunc(facts.StaticPods, func(pod talosclient.StaticPod) bool { return strings.HasPrefix(pod.Name, prefix) })
	if i < 0 {
		condition.Reason = controlplanev1.MachinePodDoesNotExistReason
		condition.Message = "The static Pod of " + component + " does not exist"

		return condition
	}

	pod := facts.StaticPods[i]
	switch {
	case pod.Ready:
		condition.Status = metav1.ConditionTrue
		condition.Reason = controlplanev1.MachinePodRunningReason
	case pod.Phase == "" || pod.Phase == "Pending":
		condition.Reason = controlplanev1.MachinePodProvisioningReason
		condition.Message = "The static Pod of " + component + " is being started"
	default:
		condition.Reason = controlplanev1.MachinePodFailedReason
		condition.Message = "The static Pod of " + component + " is not ready (phase " + pod.Phase + ")"
	}

	return condition
}

func etcdServiceCondition(facts Facts) metav1.Condition {
	condition := metav1.Condition{Type: controlplanev1.MachineEtcdPodHealthyCondition, Status: metav1.ConditionFalse}
	if facts.ServicesErr != nil {
		condition.Status = metav1.ConditionUnknown
		condition.Reason = controlplanev1.MachinePodInspectionFailedReason
		condition.Message = "The node does not list its Talos services"

		return condition
	}
	service, loaded := facts.Services[talosclient.EtcdService]
	switch {
	case !loaded:
		condition.Reason = controlplanev1.MachinePodDoesNotExistReason
		condition.Message = "The Talos service etcd does not exist"
	case service.IsRunning() && service.HealthKnown && service.Healthy:
		condition.Status = metav1.ConditionTrue
		condition.Reason = controlplanev1.MachinePodRunningReason
	case service.IsRunning() && service.HealthKnown:
		condition.Reason = controlplanev1.MachinePodFailedReason
		condition.Message = "The Talos service etcd runs and is not healthy"
	case slices.Contains([]string{"Failed", "Finished", "Stopping"}, service.State):
		condition.Reason = controlplanev1.MachinePodFailedReason
		condition.Message = "The Talos service etcd does not run (state " + service.State + ")"
	default:
		condition.Reason = controlplanev1.MachinePodProvisioningReason
		condition.Message = "The Talos service etcd is being started"
	}

	return condition
}

func memberCondition(facts Facts) metav1.Condition {
	condition := metav1.Condition{
		Type: controlplanev1.MachineEtcdMemberHealthyCondition, Status: metav1.ConditionFalse,
		Reason: controlplanev1.MachineEtcdMemberNotHealthyReason,
	}
	if facts.Etcd == nil {
		if facts.EtcdData == EtcdDataAbsent {
			condition.Message = "The node has no etcd data; etcd has not been bootstrapped or joined"

			return condition
		}
		condition.Status = metav1.ConditionUnknown
		condition.Reason = controlplanev1.MachineEtcdMemberInspectionFailedReason
		condition.Message = "The etcd member does not answer"

		return condition
	}
	if problem := MemberProblem(*facts.Etcd); problem != "" {
		condition.Message = problem

		return condition
	}
	condition.Status = metav1.ConditionTrue
	condition.Reason = controlplanev1.MachineEtcdMemberHealthyReason

	return condition
}

// maxLag is how far a member may be behind in its raft log: beyond that etcd
// refuses writes (etcd v3.6, server/etcdserver/v3_server.go,
// maxGapBetweenApplyAndCommitIndex).
const maxLag = 5000

// MemberProblem says what is wrong with the own member of a node, in a
// sentence; empty when it votes, follows a leader, and neither complains nor
// has an alarm.
func MemberProblem(view etcd.View) string {
	own, listed := view.Own()
	switch {
	case !listed:
		return "The member list lacks the member of this node"
	case own.Learner || view.Learner:
		return "The etcd member is a learner and does not vote"
	case view.Leader == 0:
		return "The etcd member knows no leader"
	case view.Lag > maxLag:
		return "The etcd member is too far behind in its log to take writes"
	}
	for _, alarm := range view.Alarms {
		if alarm.MemberID == view.Self {
			return "The etcd member has raised the alarm " + alarm.Alarm
		}
	}
	if len(view.Errors) > 0 {
		return "The etcd member reports: " + strings.Join(view.Errors, "; ")
	}

	return ""
}

// IsHealthy reports whether all components of a node are healthy.
func IsHealthy(facts Facts) bool {
	return !slices.ContainsFunc(Conditions(facts), func(condition metav1.Condition) bool { return condition.Status != metav1.ConditionTrue })
}
