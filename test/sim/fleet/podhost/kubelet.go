package podhost

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// worker is what a kubelet knows about one Pod.
type worker struct {
	uid types.UID

	// mu is held during each look at the Pod, and guards what follows.
	mu sync.Mutex
	// ip is the address of the sandbox, and last its last byte; empty when there is
	// no sandbox.
	ip   string
	last int
	// machine is what runs in the container, or will; nil before the first start,
	// and where the image is no Talos. ended is closed once it no longer runs.
	machine *talossim.Machine
	ended   <-chan struct{}
	// data is the name of the volume, empty for one that goes with the Pod.
	data string

	// state is that of the container, before the one that it had before, and
	// restarts counts its ends.
	state    corev1.ContainerState
	before   corev1.ContainerState
	restarts int32
	ready    bool
	started  metav1.Time
	// fate is what the next end of the container is told to be; nil means that it
	// ended by itself.
	fate *corev1.ContainerStateTerminated
	// backOff is until when a container that has failed is not started again.
	backOff time.Time
	// evicted is why the kubelet has evicted the Pod.
	evicted string
	// pulled is when the image was last asked for.
	pulled time.Time
}

// runs reports whether the container runs.
func (w *worker) runs() bool { return w.state.Running != nil }

// runKubelets sets up what stands for the kubelets of all nodes.
func (h *Host) runKubelets(manager ctrl.Manager) error {
	const atATime = 8
	return ctrl.NewControllerManagedBy(manager).Named("kubelet").For(&corev1.Pod{}).
		WatchesRawSource(source.Channel(h.events, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: atATime}).
		Complete(reconcile.Func(h.syncPod))
}

// look has a kubelet look at a Pod.
func (h *Host) look(ctx context.Context, key client.ObjectKey) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	select {
	case h.events <- event.GenericEvent{Object: pod}:
	case <-ctx.Done():
	}
}

// syncPod is one look of the kubelet at a Pod.
func (h *Host) syncPod(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pod := &corev1.Pod{}
	if err := h.client.Get(ctx, request.NamespacedName, pod); err != nil {
		if apierrors.IsNotFound(err) {
			h.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if pod.Spec.NodeName == "" || h.numberOf(pod.Spec.NodeName) < 0 {
		return ctrl.Result{}, nil
	}
	w := h.workerOf(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case pod.DeletionTimestamp != nil:
		return ctrl.Result{}, h.terminate(ctx, pod, w)
	case w.evicted != "":
		return ctrl.Result{}, h.tellEvicted(ctx, pod, w)
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return ctrl.Result{}, nil
	}
	again := h.syncContainer(ctx, pod, w)
	if err := h.tellStatus(ctx, pod, w); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// workerOf is what is known about a Pod. Another one of its name is gone.
func (h *Host) workerOf(pod *corev1.Pod) *worker {
	key := client.ObjectKeyFromObject(pod)
	h.mu.Lock()
	found := h.workers[key]
	h.mu.Unlock()
	if found != nil && found.uid == pod.UID {
		return found
	}
	h.forget(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	made := &worker{uid: pod.UID, started: metav1.Now(), state: waiting("ContainerCreating", "")}
	h.workers[key] = made
	h.created[key] = append(h.created[key], string(pod.UID))
	return made
}

// forget ends what is left of a Pod that is no more.
func (h *Host) forget(key client.ObjectKey) {
	h.mu.Lock()
	w := h.workers[key]
	delete(h.workers, key)
	h.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		h.clean(w)
	}
}

// clean ends the container, and takes the sandbox and the volumes that go with the
// Pod away. The lock of the worker is held, as below.
func (h *Host) clean(w *worker) {
	h.endSandbox(w)
	if w.machine != nil && w.data == "" {
		h.Sim.Remove(w.machine)
	}
	w.machine = nil
}

func (h *Host) endSandbox(w *worker) {
	if w.machine != nil {
		w.machine.End()
	}
	if w.ip != "" {
		h.giveAddress(w.last)
		w.ip = ""
	}
	w.ready = false
}

// terminate ends a Pod that is being deleted, and lets go of it. Finalizers of
// others are theirs.
func (h *Host) terminate(ctx context.Context, pod *corev1.Pod, w *worker) error {
	h.clean(w)
	if w.runs() {
		const killed = 137
		w.state = terminated(w, "Error", killed)
	}
	status := h.statusOf(pod, w)
	if status.Phase == corev1.PodPending || status.Phase == corev1.PodRunning {
		status.Phase = corev1.PodFailed
	}
	if err := h.patchStatus(ctx, pod, status); err != nil {
		return err
	}
	if ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 {
		return nil
	}
	err := h.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting Pod %s: %w", pod.Name, err)
	}
	return nil
}

// tellEvicted ends a Pod that the node has no room for.
func (h *Host) tellEvicted(ctx context.Context, pod *corev1.Pod, w *worker) error {
	h.endSandbox(w)
	if w.runs() {
		const killed = 137
		w.state = terminated(w, "Error", killed)
	}
	status := h.statusOf(pod, w)
	status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", w.evicted
	return h.patchStatus(ctx, pod, status)
}

// syncContainer brings the container of a Pod one step further, and tells when to
// look again.
func (h *Host) syncContainer(ctx context.Context, pod *corev1.Pod, w *worker) time.Duration {
	if w.runs() && hasEnded(w) {
		h.restarted(w)
	}
	if w.runs() {
		return h.probe(ctx, pod, w)
	}
	if time.Now().Before(w.backOff) {
		return soon
	}
	if err := h.startContainer(ctx, pod, w); err != nil {
		w.state = waiting(reasonOf(err), err.Error())
		return soon
	}
	return h.probe(ctx, pod, w)
}

func hasEnded(w *worker) bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// restarted notes that the container has ended; it is started again.
func (h *Host) restarted(w *worker) {
	w.before, w.state = terminated(w, "Error", 1), waiting("ContainerCreating", "")
	if w.machine != nil && w.machine.Failure() != nil {
		w.before.Terminated.Message = "machined ended: " + w.machine.Failure().Error()
		w.state, w.backOff = waiting("CrashLoopBackOff", "back-off 1s restarting failed container"), time.Now().Add(backOff)
	}
	if w.fate != nil {
		w.before.Terminated.Reason, w.before.Terminated.ExitCode = w.fate.Reason, w.fate.ExitCode
	}
	w.fate, w.ready = nil, false
	w.restarts++
}

// backOff is how long a container that has failed is not started again.
const backOff = time.Second

// probe is the readiness probe.
func (h *Host) probe(ctx context.Context, pod *corev1.Pod, w *worker) time.Duration {
	probe := pod.Spec.Containers[0].ReadinessProbe
	if probe == nil || probe.TCPSocket == nil {
		w.ready = true
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(w.ip, strconv.Itoa(probe.TCPSocket.Port.IntValue())))
	if w.ready = err == nil; w.ready {
		_ = conn.Close()
	}
	return soon
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func terminated(w *worker, reason string, code int32) corev1.ContainerState {
	ended := &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, FinishedAt: metav1.Now()}
	if w.state.Running != nil {
		ended.StartedAt = w.state.Running.StartedAt
	}
	return corev1.ContainerState{Terminated: ended}
}

// statusOf is what the kubelet says about a Pod.
func (h *Host) statusOf(pod *corev1.Pod, w *worker) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	container := pod.Spec.Containers[0]
	status.Phase = corev1.PodPending
	if w.runs() || w.restarts > 0 {
		status.Phase = corev1.PodRunning
	}
	status.StartTime, status.PodIP, status.PodIPs = &w.started, w.ip, nil
	if w.ip != "" {
		status.PodIPs = []corev1.PodIP{{IP: w.ip}}
	}
	if number := h.numberOf(pod.Spec.NodeName); number >= 0 {
		status.HostIP = h.nodeAddress(number)
		status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}
	}
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: container.Name, Image: container.Image, State: w.state, LastTerminationState: w.before,
		RestartCount: w.restarts, Ready: w.ready && w.runs(), Started: ptr.To(w.runs()),
	}}
	setPodCondition(&status, corev1.PodInitialized, true)
	setPodCondition(&status, corev1.ContainersReady, w.ready && w.runs())
	setPodCondition(&status, corev1.PodReady, w.ready && w.runs())
	return status
}

func setPodCondition(status *corev1.PodStatus, kind corev1.PodConditionType, is bool) {
	wanted := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if is {
		wanted.Status = corev1.ConditionTrue
	} else {
		wanted.Reason, wanted.Message = "ContainersNotReady", "containers with unready status: [talos]"
	}
	i := slices.IndexFunc(status.Conditions, func(found corev1.PodCondition) bool { return found.Type == kind })
	switch {
	case i < 0:
		status.Conditions = append(status.Conditions, wanted)
	case status.Conditions[i].Status != wanted.Status:
		status.Conditions[i] = wanted
	}
}

func (h *Host) tellStatus(ctx context.Context, pod *corev1.Pod, w *worker) error {
	return h.patchStatus(ctx, pod, h.statusOf(pod, w))
}

// patchStatus writes what has changed, and leaves the scheduler's condition alone.
func (h *Host) patchStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	changed := pod.DeepCopy()
	changed.Status = status
	patch := client.StrategicMergeFrom(pod)
	content, err := patch.Data(changed)
	if err != nil || string(content) == "{}" {
		return err
	}
	// The UID keeps it from another Pod of the same name.
	content = append([]byte(`{"metadata":{"uid":"`+string(pod.UID)+`"},`), content[1:]...)
	if err := h.client.Status().Patch(ctx, changed, client.RawPatch(types.StrategicMergePatchType, content)); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("telling the status of Pod %s: %w", pod.Name, err)
	}
	return nil
}
