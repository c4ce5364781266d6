package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	inmemoryclient "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/runtime/client"
)

// mirrorStaticPods makes the Pods that stand for the static Pods of a control
// plane node. They have no owner, for the runtime knows no owner without a
// namespace; they go when the node is deleted.
func mirrorStaticPods(ctx context.Context, storage inmemoryclient.Client, node Node) error {
	for _, component := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		if err := storage.Create(ctx, mirrorPod(node, component)); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("making the mirror Pod of %s on %s: %w", component, node.Name, err)
		}
	}
	return nil
}

func mirrorPod(node Node, component string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: component + "-" + node.Name, UID: uuid.NewUUID(),
			Labels:      map[string]string{"component": component, "tier": "control-plane"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: component, "kubernetes.io/config.source": "file"},
		},
		Spec: corev1.PodSpec{
			NodeName: node.Name, HostNetwork: true, PriorityClassName: "system-cluster-critical",
			Containers: []corev1.Container{{Name: component, Image: "registry.k8s.io/" + component + ":" + node.KubeletVersion}},
		},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: component, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	if len(node.Addresses) > 0 {
		pod.Status.HostIP, pod.Status.PodIP = node.Addresses[0], node.Addresses[0]
	}
	return pod
}
