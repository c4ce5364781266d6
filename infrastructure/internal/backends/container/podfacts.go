package container

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// step is what the Pod of a machine needs next.
type step string

const (
	// stepCreate creates the Pod: there is none, and none was ever seen, or it is made
	// again on its volume.
	stepCreate step = "Create"
	// stepRefuse does nothing: a Pod of that name is somebody else's.
	stepRefuse step = "Refuse"
	// stepBind records the Pod that is there.
	stepBind step = "Bind"
	// stepFollow follows the Pod.
	stepFollow step = "Follow"
	// stepLose records that the machine is lost, before the Pod may go.
	stepLose step = "Lose"
	// stepLost does nothing but to let the Pod of a lost machine go.
	stepLost step = "Lost"
	// stepReplace deletes a Pod that has failed, to make it again on its volume.
	stepReplace step = "Replace"
	// stepAwait waits for a Pod on a volume to end, before another one may use that.
	stepAwait step = "Await"
	// stepRemoveFinalizer lets a Pod go that has ended.
	stepRemoveFinalizer step = "RemoveFinalizer"
	// stepWipe deletes the Pod and its data, to make both again.
	stepWipe step = "Wipe"
)

// podFacts is what decides about the Pod of a machine (design D11).
type podFacts struct {
	machine *infrav1.TalosMachine
	// pod is the Pod of that name, as it is now; nil when there is none.
	pod *corev1.Pod
	// nodeGone reports whether the node of the Pod does not exist any more: nobody will
	// tell that the Pod has ended.
	nodeGone bool
	// nodeNotReady reports whether the node of the Pod is not ready: nobody tells it before
	// that comes back.
	nodeNotReady bool
	// dataGone reports whether the volume claim of a machine that has had a Pod is gone, or
	// is being deleted while there is no Pod.
	dataGone bool
}

// next says what the Pod needs. A Pod with a volume is the machine's as long as
// the volume is; one without is the machine. Since the Pod carries our finalizer,
// one that was created is seen before it goes, so that a Pod that is missing while
// it was about to be created was not created.
func (l podFacts) next() step {
	record := l.machine.Spec.Pod
	switch {
	case record.Progress == infrav1.PodReprovisioning:
		return stepWipe
	case record.Progress == infrav1.PodLost:
		return stepLost
	case l.pod != nil && !metav1.IsControlledBy(l.pod, l.machine):
		return l.nextBesideAnother()
	case l.pod == nil:
		return l.nextWithoutPod()
	case record.UID == "":
		return stepBind
	case isEphemeral(l.machine):
		return l.nextOfEphemeral()
	case record.UID != string(l.pod.UID):
		return stepBind
	case !l.pod.DeletionTimestamp.IsZero() && l.hasEnded():
		return stepRemoveFinalizer
	case !l.pod.DeletionTimestamp.IsZero():
		return stepAwait
	case hasFailed(l.pod):
		return stepReplace
	}

	return stepFollow
}

// nextOfEphemeral is what is next for a Pod without a volume that is recorded: it is
// the machine until it goes.
func (l podFacts) nextOfEphemeral() step {
	if l.machine.Spec.Pod.UID != string(l.pod.UID) || hasFailed(l.pod) || !l.pod.DeletionTimestamp.IsZero() {
		return stepLose
	}

	return stepFollow
}

// nextBesideAnother is what is next when the Pod of that name is somebody else's. A
// machine that had one without a volume has none any more.
func (l podFacts) nextBesideAnother() step {
	if l.machine.Spec.Pod.UID != "" && isEphemeral(l.machine) {
		return stepLose
	}

	return stepRefuse
}

func (l podFacts) nextWithoutPod() step {
	switch l.machine.Spec.Pod.Progress {
	case infrav1.PodCreated, infrav1.PodRan:
		if isEphemeral(l.machine) || l.dataGone {
			return stepLose
		}
	case "", infrav1.PodCreating, infrav1.PodLost, infrav1.PodReprovisioning:
	}

	return stepCreate
}

// hasEnded reports whether nothing of the Pod runs any more.
func (l podFacts) hasEnded() bool {
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

// awaited says who has to tell that a Pod that is being deleted has ended, and the
// way out where nobody does.
func (l podFacts) awaited() string {
	text := fmt.Sprintf("its node %s has to confirm", l.pod.Spec.NodeName)
	if l.nodeNotReady {
		text += fmt.Sprintf(", but that is not ready: bring it back, or, once it is surely off, delete the Node or taint it with %s", corev1.TaintNodeOutOfService)
	}

	return text
}

// isNotReady reports whether a node is known not to be ready; it may be nil.
func isNotReady(node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue
	})
}

// hasFailed reports whether the Pod has ended for good: the kubelet starts no container
// of it again.
func hasFailed(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// isHeld reports whether the Pod carries our finalizer.
func isHeld(pod *corev1.Pod) bool {
	return controllerutil.ContainsFinalizer(pod, infrav1.TalosPodFinalizer)
}
