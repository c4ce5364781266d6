package container

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
)

// observeRefusal turns what speaks against an object of ours into a condition where a
// person can mend it.
func (m *Backend) observeRefusal(scope *backends.Scope, err error) (ctrl.Result, error) {
	var other errNameConflict
	var address errAddressLost
	var going errBeingDeleted
	switch {
	case errors.As(err, &other):
		scope.Observed.Claim = nameConflict(other.kind, other.name)
		return m.Pacing.Later(), nil
	case errors.As(err, &address):
		scope.Observed.Claim = condition.False(infrav1.EtcdAddressLostReason, address.Error())
		return m.Pacing.Later(), nil
	case errors.As(err, &going):
		scope.Observed.Claim = condition.False(infrav1.PodPreparingReason, going.Error()+", which is waited for")
		return m.Pacing.Later(), nil
	case objects.IsNotTaken(err):
		scope.Observed.Claim = condition.False(infrav1.PodRefusedReason, objects.Explain("The API server does not take what the machine needs; it is tried again. "+cure(err), err))
		return m.Pacing.Refused(), nil
	}

	return ctrl.Result{}, err
}

// cure is what a person can do so that the API server takes what a machine needs.
func cure(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "The namespace must allow privileged Pods (label pod-security.kubernetes.io/enforce: privileged) and have quota left"
	case apierrors.IsInternalError(err):
		return "If that lasts, a webhook may not answer: bring it back, or take its configuration away"
	default:
		return "Free what is in use, or mend what it names in a new template"
	}
}

// scheduling is what is known of the node of a Pod.
func scheduling(pod *corev1.Pod) condition.Finding {
	if pod.Spec.NodeName != "" {
		return condition.True(infrav1.PodScheduledReason, "")
	}
	for _, found := range pod.Status.Conditions {
		if found.Type == corev1.PodScheduled && found.Status == corev1.ConditionFalse && found.Message != "" {
			return condition.False(infrav1.PodNotScheduledReason, "The Pod has no node; it gets one as soon as one fits: "+found.Message)
		}
	}

	return condition.False(infrav1.PodNotScheduledReason, "Waiting for the Pod to get a node")
}

// hasUserData reports whether the configuration of a Pod is in its environment.
func hasUserData(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool {
		return slices.ContainsFunc(container.Env, func(env corev1.EnvVar) bool { return env.Name == userDataVariable })
	})
}

// imageReasons are the kubelet's reasons for an image that it has not got.
var imageReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"}

// starting says why the container of a Pod does not run; the zero Finding when it
// does.
func starting(pod *corev1.Pod) condition.Finding {
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		switch {
		case status.Name != containerName:
		case status.State.Running != nil:
			return condition.Finding{}
		case status.State.Terminated != nil:
			return condition.False(infrav1.ContainerRestartingReason, "The container has ended, and is started again: "+terminatedText(status.State.Terminated))
		case status.State.Waiting != nil && slices.Contains(imageReasons, status.State.Waiting.Reason):
			return condition.Falsef(infrav1.ImageUnavailableReason,
				"The image %s is not to be had; it is tried again. Make it available, or name another one in a new template. The kubelet says: %s: %s",
				status.Image, status.State.Waiting.Reason, status.State.Waiting.Message)
		case status.State.Waiting != nil && status.LastTerminationState.Terminated != nil:
			return condition.Falsef(infrav1.ContainerRestartingReason, "The container has ended, and is started again (%s): %s",
				status.State.Waiting.Reason, terminatedText(status.LastTerminationState.Terminated))
		case status.State.Waiting != nil && status.State.Waiting.Message != "":
			return condition.Falsef(infrav1.ContainerNotStartedReason, "The container does not start. The kubelet says: %s: %s",
				status.State.Waiting.Reason, status.State.Waiting.Message)
		}
	}

	if isRunning(pod) {
		return condition.Finding{}
	}

	return condition.False(infrav1.ContainerNotStartedReason, "Waiting for the kubelet to start the container; if that lasts, the events of the Pod say why")
}

func terminatedText(ended *corev1.ContainerStateTerminated) string {
	return fmt.Sprintf("%s, exit code %d", ended.Reason, ended.ExitCode)
}

// isRunning reports whether the Talos container of a Pod runs.
func isRunning(pod *corev1.Pod) bool {
	return runningSince(pod) != nil
}

// runningSince is the state of the Talos container; nil when it does not run.
func runningSince(pod *corev1.Pod) *corev1.ContainerStateRunning {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == containerName {
			return pod.Status.ContainerStatuses[i].State.Running
		}
	}

	return nil
}
