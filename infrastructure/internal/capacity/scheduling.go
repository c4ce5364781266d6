package capacity

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// passingTaints begin the keys of taints that come and go with the state of a node.
const passingTaints = "node.kubernetes.io/"

// maySchedule reports whether the scheduler may put the Pod onto a node at some time:
// whatever passes, such as a node that is not ready or full, does not count.
func maySchedule(spec *infrav1.TalosMachineContainerSpec, node *corev1.Node) bool {
	if !node.DeletionTimestamp.IsZero() || node.Status.NodeInfo.OperatingSystem != infrav1.OperatingSystemLinux {
		return false
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !matches {
		return false
	}
	_, isRepelled := schedulingcorev1.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, spec.Tolerations, isLasting, false)

	return !isRepelled
}

// isLasting reports whether a taint keeps Pods away for good.
func isLasting(taint *corev1.Taint) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(taint.Key, passingTaints)
}
