package capacity

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// passingTaints begin the keys of taints that come and go with the state of a node.
const passingTaints = "node.kubernetes.io/"

// operators are those of terms for nodes, as labels know them.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// mayLand tells whether the scheduler may put the Pod onto a node at some time:
// whatever passes, such as a node that is not ready or full, does not count.
func mayLand(spec *infrav1.TalosMachineContainerSpec, node *corev1.Node) bool {
	if !node.DeletionTimestamp.IsZero() || node.Status.NodeInfo.OperatingSystem != infrav1.OperatingSystemLinux {
		return false
	}
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		return false
	}

	return isWanted(spec.Affinity, node) && !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return repels(&taint) && !isTolerated(spec.Tolerations, &taint)
	})
}

func repels(taint *corev1.Taint) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, passingTaints)
}

func isTolerated(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(toleration corev1.Toleration) bool {
		return toleration.ToleratesTaint(klog.Logger{}, taint, false)
	})
}

// isWanted tells whether a node fits the terms that affinity requires. Of several it
// needs to fit one.
func isWanted(affinity *corev1.Affinity, node *corev1.Node) bool {
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}

	return slices.ContainsFunc(affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return fits(term, node)
	})
}

// fits tells whether a node fits a term. An empty one fits none.
func fits(term corev1.NodeSelectorTerm, node *corev1.Node) bool {
	if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		return false
	}

	return fitAll(term.MatchExpressions, labels.Set(node.Labels)) && fitAll(term.MatchFields, labels.Set{metav1.ObjectNameField: node.Name})
}

func fitAll(requirements []corev1.NodeSelectorRequirement, of labels.Set) bool {
	return !slices.ContainsFunc(requirements, func(wanted corev1.NodeSelectorRequirement) bool {
		requirement, err := labels.NewRequirement(wanted.Key, operators[wanted.Operator], wanted.Values)
		return err != nil || !requirement.Matches(of)
	})
}
