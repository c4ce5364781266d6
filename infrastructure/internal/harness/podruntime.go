package harness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// kubeletFinalizer keeps a Pod that has a node until its kubelet has ended it, as the
// grace period does on a real API server.
const kubeletFinalizer = "test/kubelet"

// PodRuntime is what a management cluster does with Pods, their volumes and Services, as
// far as it matters: a scheduler, kubelets and allocators, with faults on demand.
// Real ones are in suites of their own.
type PodRuntime struct {
	Environment *Environment

	// Refuse, when set, decides what the API server does not take.
	Refuse func(client.Object) error
	// Full keeps the scheduler from finding a node.
	Full bool
	// Stuck keeps kubelets from doing anything.
	Stuck bool
	// Pull, when set, is why no image can be pulled.
	Pull string
	// Release is what an image is instead of what its tag says; "none" is no Talos.
	Release string

	// Created are the UIDs of the Pods that the API server took, by name.
	Created map[string][]types.UID
	// Machines are what runs in Pods, by UID.
	Machines map[types.UID]*BareMetal
	// State tells which volumes hold a configuration, by UID of the claim, or of the
	// Pod where there is none.
	State map[types.UID]bool
	// userData are the configurations with which containers were started.
	userData map[types.UID]string
	// Deleted is what was deleted, in that order.
	Deleted  []string
	numbered int
}

func newPodRuntime(w *Environment) *PodRuntime {
	return &PodRuntime{
		Environment: w, Created: map[string][]types.UID{}, Machines: map[types.UID]*BareMetal{}, State: map[types.UID]bool{}, userData: map[types.UID]string{},
	}
}

func (y *PodRuntime) number() int {
	y.numbered++

	return y.numbered
}

// admit is what the API server does with an object before it stores it.
func (y *PodRuntime) admit(object client.Object) error {
	if y.Refuse != nil {
		if err := y.Refuse(object); err != nil {
			return err
		}
	}
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("%s-uid-%d", object.GetName(), y.number())))
	}
	switch object := object.(type) {
	case *corev1.Service:
		return y.allocate(object)
	case *corev1.Pod:
		if y.Exists(&corev1.Pod{}, object) {
			return nil
		}
		controllerutil.AddFinalizer(object, kubeletFinalizer)
		y.Created[object.Name] = append(y.Created[object.Name], object.UID)
	case *corev1.PersistentVolumeClaim:
		object.Status.Phase = corev1.ClaimPending
	}

	return nil
}

// Change is what the API server does before it takes a patch.
func (y *PodRuntime) Change(object client.Object) error {
	if y.Refuse == nil {
		return nil
	}
	if _, isService := object.(*corev1.Service); !isService {
		return nil
	}

	return y.Refuse(object)
}

// Exists reports whether there is an object of the name of another one.
func (y *PodRuntime) Exists(kind client.Object, like client.Object) bool {
	found := false
	found = y.Environment.Exists(kind, like.GetName())

	return found
}

// allocate gives a Service its address, before its name is looked at: as the API
// server does, which is why asking for an address that is in use is invalid.
func (y *PodRuntime) allocate(service *corev1.Service) error {
	if service.Spec.ClusterIP == "" {
		service.Spec.ClusterIP = fmt.Sprintf("172.20.0.%d", y.number())
	}
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	services := &corev1.ServiceList{}
	y.must(y.Environment.Client.List(y.Environment.T.Context(), services))
	for i := range services.Items {
		if services.Items[i].Spec.ClusterIP == service.Spec.ClusterIP {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, service.Name, nil)
		}
	}

	return nil
}

func (y *PodRuntime) must(err error) {
	y.Environment.T.Helper()
	NewWithT(y.Environment.T).Expect(err).NotTo(HaveOccurred())
}

// Work is one look of scheduler and kubelets at all Pods.
func (y *PodRuntime) Work() {
	y.Environment.T.Helper()
	pods := &corev1.PodList{}
	y.must(y.Environment.Client.List(y.Environment.T.Context(), pods))
	for i := range pods.Items {
		y.workOn(&pods.Items[i])
	}
}

func (y *PodRuntime) workOn(pod *corev1.Pod) {
	switch node := y.Node(pod.Spec.NodeName); {
	case !controllerutil.ContainsFinalizer(pod, kubeletFinalizer):
	case !pod.DeletionTimestamp.IsZero() && (pod.Spec.NodeName == "" || node == nil):
		y.end(pod)
		y.forget(pod)
	case y.Stuck:
	case !pod.DeletionTimestamp.IsZero() && y.Machines[pod.UID] != nil:
		y.end(pod)
		y.terminated(pod)
	case !pod.DeletionTimestamp.IsZero():
		y.forget(pod)
	case pod.Status.Phase == corev1.PodFailed:
		y.end(pod)
	case pod.Spec.NodeName == "":
		y.schedule(pod)
	case y.Machines[pod.UID] == nil:
		y.start(pod)
	}
}

// Node is a node of the management cluster.
func (y *PodRuntime) Node(name string) *corev1.Node {
	node := &corev1.Node{}
	if name == "" || y.Environment.Client.Get(y.Environment.T.Context(), client.ObjectKey{Name: name}, node) != nil {
		return nil
	}

	return node
}

// end is the end of what ran in a Pod.
func (y *PodRuntime) end(pod *corev1.Pod) {
	if machine := y.Machines[pod.UID]; machine != nil {
		machine.SetSilent(true)
		delete(y.Machines, pod.UID)
	}
}

func (y *PodRuntime) terminated(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "talos", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}}}}
	y.Status(pod)
}

// Status writes the status of a Pod.
func (y *PodRuntime) Status(pod *corev1.Pod) {
	y.must(y.Environment.Client.Status().Update(y.Environment.T.Context(), pod))
}

// forget is the kubelet's word that nothing of a Pod runs any more.
func (y *PodRuntime) forget(pod *corev1.Pod) {
	before := pod.DeepCopy()
	controllerutil.RemoveFinalizer(pod, kubeletFinalizer)
	y.must(y.Environment.Client.Patch(y.Environment.T.Context(), pod, client.MergeFrom(before)))
}

func (y *PodRuntime) schedule(pod *corev1.Pod) {
	nodes := &corev1.NodeList{}
	y.must(y.Environment.Client.List(y.Environment.T.Context(), nodes))
	why := y.unfit(pod)
	if why == "" && len(nodes.Items) == 0 {
		why = "no nodes available to schedule pods"
	}
	if why != "" {
		if len(pod.Status.Conditions) == 0 || pod.Status.Conditions[0].Message != why {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why}}
			y.Status(pod)
		}
		return
	}
	before := pod.DeepCopy()
	pod.Spec.NodeName = nodes.Items[0].Name
	y.must(y.Environment.Client.Patch(y.Environment.T.Context(), pod, client.MergeFrom(before)))
}

// unfit says why a Pod gets no node; a claim is bound by that.
func (y *PodRuntime) unfit(pod *corev1.Pod) string {
	if y.Full {
		return "0/1 nodes are available: 1 Insufficient cpu"
	}
	claim := y.Claim(pod)
	switch {
	case claim == nil:
		return ""
	case claim.Name == "":
		return "persistentvolumeclaim not found"
	case claim.Status.Phase == corev1.ClaimBound:
		return ""
	case claim.Spec.StorageClassName != nil && y.Environment.Client.Get(y.Environment.T.Context(), client.ObjectKey{Name: *claim.Spec.StorageClassName}, &storagev1.StorageClass{}) != nil:
		return "pod has unbound immediate PersistentVolumeClaims"
	}
	claim.Status.Phase = corev1.ClaimBound
	y.must(y.Environment.Client.Status().Update(y.Environment.T.Context(), claim))

	return ""
}

// Claim is the claim of a Pod; nil where it wants none, without a name when it is not
// there.
func (y *PodRuntime) Claim(pod *corev1.Pod) *corev1.PersistentVolumeClaim {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		if !y.Environment.Exists(claim, volume.PersistentVolumeClaim.ClaimName) {
			return &corev1.PersistentVolumeClaim{}
		}
		return claim
	}

	return nil
}

func (y *PodRuntime) start(pod *corev1.Pod) {
	if y.Node(pod.Spec.NodeName) == nil {
		return
	}
	userData, missing := y.userDataOf(pod)
	switch {
	case y.Pull != "":
		y.waits(pod, "ImagePullBackOff", y.Pull)
		return
	case missing != "":
		y.waits(pod, "CreateContainerConfigError", missing)
		return
	}
	volume := pod.UID
	if claim := y.Claim(pod); claim != nil {
		volume = claim.UID
	}
	y.State[volume] = y.State[volume] || userData != ""
	y.userData[pod.UID] = userData
	pod.Status.PodIP = fmt.Sprintf("172.21.0.%d", y.number())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "talos", Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(y.Environment.Clock.Now())}},
	}}
	y.Status(pod)
	y.Machines[pod.UID] = y.Boot(pod, volume)
}

// userDataOf is the configuration in the environment of a container.
func (y *PodRuntime) userDataOf(pod *corev1.Pod) (userData, missing string) {
	for _, env := range pod.Spec.Containers[0].Env {
		if env.ValueFrom == nil {
			continue
		}
		ref, secret := env.ValueFrom.SecretKeyRef, &corev1.Secret{}
		if !y.Environment.Exists(secret, ref.Name) {
			return "", fmt.Sprintf("secret %q not found", ref.Name)
		}
		return string(secret.Data[ref.Key]), ""
	}

	return "", ""
}

func (y *PodRuntime) waits(pod *corev1.Pod, reason, message string) {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil && *pod.Status.ContainerStatuses[0].State.Waiting == *state.Waiting {
		return
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "talos", Image: pod.Spec.Containers[0].Image, State: state}}
	y.Status(pod)
}

// Boot is Talos in a container: without a configuration in maintenance mode.
func (y *PodRuntime) Boot(pod *corev1.Pod, volume types.UID) *BareMetal {
	_, version, _ := strings.Cut(pod.Spec.Containers[0].Image, ":")
	if y.Release != "" {
		version = y.Release
	}
	address := pod.Status.PodIP
	machine := &BareMetal{Environment: y.Environment, Address: address, Machine: talosfake.NewMachine(talosfake.State{
		Version: version, Addresses: []string{address}, Hostname: pod.Spec.Hostname,
	})}
	machine.OnApply = func(*talosfake.Machine, []byte) error {
		y.State[volume] = true
		machine.Boot(false, Bundle(y.Environment.T).TalosCA())
		return nil
	}
	machine.OnReset = func(*talosfake.Machine, talosclient.ResetOptions) error {
		return errors.New("a machine in a Pod is never reset")
	}
	machine.Boot(!y.State[volume], Bundle(y.Environment.T).TalosCA())
	if version != "none" {
		y.Environment.Dialer.Add(address, machine.Machine)
	}

	return machine
}

// Crash ends the container of a Pod; the kubelet starts it again at its next look.
func (y *PodRuntime) Crash(name string) {
	y.Environment.T.Helper()
	pod := Get(y.Environment, &corev1.Pod{}, name)
	y.end(pod)
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}}
	y.Status(pod)
}

// Evict is what a kubelet does whose node has too little of something.
func (y *PodRuntime) Evict(name string) {
	y.Environment.T.Helper()
	pod := Get(y.Environment, &corev1.Pod{}, name)
	y.end(pod)
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory"
	pod.Status.ContainerStatuses = nil
	y.Status(pod)
}

// Running are the names of the Pods in which something runs.
func (y *PodRuntime) Running() []string {
	pods := &corev1.PodList{}
	y.must(y.Environment.Client.List(y.Environment.T.Context(), pods))
	names := map[string]bool{}
	for i := range pods.Items {
		if y.Machines[pods.Items[i].UID] != nil {
			names[pods.Items[i].Name] = true
		}
	}

	return slices.Sorted(maps.Keys(names))
}

// Machine is what runs in a Pod.
func (y *PodRuntime) Machine(name string) *BareMetal {
	y.Environment.T.Helper()

	return y.Machines[Get(y.Environment, &corev1.Pod{}, name).UID]
}

// Unanswered is what the API server says when a webhook ends its connections, each of which
// comes from another port.
func (y *PodRuntime) Unanswered() error {
	const firstPort = 40000

	return apierrors.NewInternalError(fmt.Errorf(`failed calling webhook "policy.example.com": failed to call webhook: Post "https://policy.example.svc:443/": `+
		"read tcp 10.0.0.9:%d->10.96.1.2:443: read: connection reset by peer", firstPort+y.number()))
}

// Forbidden is how the API server refuses what a rule of the namespace forbids.
func Forbidden(object client.Object, words string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", object)}, object.GetName(), errors.New(words))
}
