package container

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// step is what the Pod of a machine needs next.
type step string

const (
	// create creates the Pod: there is none, and none was ever seen, or it is made
	// again on its volume.
	create step = "Create"
	// refuse does nothing: a Pod of that name is somebody else's.
	refuse step = "Refuse"
	// bind records the Pod that is there.
	bind step = "Bind"
	// follow follows the Pod.
	follow step = "Follow"
	// lose records that the machine is lost, before the Pod may go.
	lose step = "Lose"
	// lost does nothing but to let the Pod of a lost machine go.
	lost step = "Lost"
	// replace deletes a Pod that has failed, to make it again on its volume.
	replace step = "Replace"
	// await waits for a Pod on a volume to end, before another one may use that.
	await step = "Await"
	// letGo lets a Pod go that has ended.
	letGo step = "LetGo"
	// wipe deletes the Pod and its data, to make both again.
	wipe step = "Wipe"
)

// life is what decides about the Pod of a machine (design D11).
type life struct {
	machine *infrav1.TalosMachine
	// pod is the Pod of that name, as it is now; nil when there is none.
	pod *corev1.Pod
	// nodeGone tells that the node of the Pod does not exist any more: nobody will
	// tell that the Pod has ended.
	nodeGone bool
}

// next says what the Pod needs. A Pod with a volume is the machine's as long as
// the machine is; one without is the machine. Since the Pod carries our finalizer,
// one that was created is seen before it goes, so that a Pod that is missing while
// it was about to be created was not created.
func (l life) next() step {
	record := l.machine.Spec.Pod
	switch {
	case record.Progress == infrav1.PodReprovisioning:
		return wipe
	case record.Progress == infrav1.PodLost:
		return lost
	case l.pod != nil && !metav1.IsControlledBy(l.pod, l.machine):
		return refuse
	case l.pod == nil:
		return l.nextWithoutPod()
	case record.UID == "":
		return bind
	case record.UID != string(l.pod.UID) && isEphemeral(l.machine):
		return lose
	case record.UID != string(l.pod.UID):
		return bind
	case isEphemeral(l.machine) && (hasFailed(l.pod) || !l.pod.DeletionTimestamp.IsZero()):
		return lose
	case !l.pod.DeletionTimestamp.IsZero() && l.hasEnded():
		return letGo
	case !l.pod.DeletionTimestamp.IsZero():
		return await
	case hasFailed(l.pod):
		return replace
	}

	return follow
}

func (l life) nextWithoutPod() step {
	switch l.machine.Spec.Pod.Progress {
	case infrav1.PodCreated, infrav1.PodRan:
		if isEphemeral(l.machine) {
			return lose
		}
	case "", infrav1.PodCreating, infrav1.PodLost, infrav1.PodReprovisioning:
	}

	return create
}

// hasEnded tells that nothing of the Pod runs any more.
func (l life) hasEnded() bool {
	pod := l.pod
	if pod.Spec.NodeName == "" || l.nodeGone || hasFailed(pod) {
		return true
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Terminated == nil {
			return false
		}
	}

	return true
}

// hasFailed tells that the Pod has ended for good: the kubelet starts no container
// of it again.
func hasFailed(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// isHeld tells that the Pod carries our finalizer.
func isHeld(pod *corev1.Pod) bool {
	return controllerutil.ContainsFinalizer(pod, infrav1.TalosPodFinalizer)
}
