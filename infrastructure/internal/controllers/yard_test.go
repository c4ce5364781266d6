package controllers

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
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// kubeletFinalizer keeps a Pod that has a node until its kubelet has ended it, as the
// grace period does on a real API server.
const kubeletFinalizer = "test/kubelet"

// yard is what a management cluster does with Pods, their volumes and Services, as
// far as it matters: a scheduler, kubelets and allocators, with faults on demand.
// Real ones are in suites of their own.
type yard struct {
	world *world

	// refuse, when set, decides what the API server does not take.
	refuse func(client.Object) error
	// full keeps the scheduler from finding a node.
	full bool
	// stuck keeps kubelets from doing anything.
	stuck bool
	// pull, when set, is why no image can be pulled.
	pull string
	// release is what an image is instead of what its tag says; "none" is no Talos.
	release string

	// created are the UIDs of the Pods that the API server took, by name.
	created map[string][]types.UID
	// machines are what runs in Pods, by UID.
	machines map[types.UID]*bareMetal
	// state tells which volumes hold a configuration, by UID of the claim, or of the
	// Pod where there is none.
	state map[types.UID]bool
	// userData are the configurations with which containers were started.
	userData map[types.UID]string
	// deleted is what was deleted, in that order.
	deleted  []string
	numbered int
}

func newYard(w *world) *yard {
	return &yard{
		world: w, created: map[string][]types.UID{}, machines: map[types.UID]*bareMetal{}, state: map[types.UID]bool{}, userData: map[types.UID]string{},
	}
}

func (y *yard) number() int {
	y.numbered++

	return y.numbered
}

// admit is what the API server does with an object before it stores it.
func (y *yard) admit(object client.Object) error {
	if y.refuse != nil {
		if err := y.refuse(object); err != nil {
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
		if y.exists(&corev1.Pod{}, object) {
			return nil
		}
		controllerutil.AddFinalizer(object, kubeletFinalizer)
		y.created[object.Name] = append(y.created[object.Name], object.UID)
	case *corev1.PersistentVolumeClaim:
		object.Status.Phase = corev1.ClaimPending
	}

	return nil
}

func (y *yard) change(object client.Object) error {
	if y.refuse == nil {
		return nil
	}
	if _, isService := object.(*corev1.Service); !isService {
		return nil
	}

	return y.refuse(object)
}

func (y *yard) exists(kind client.Object, like client.Object) bool {
	found := false
	found = y.world.exists(kind, like.GetName())

	return found
}

// allocate gives a Service its address, before its name is looked at: as the API
// server does, which is why asking for an address that is in use is invalid.
func (y *yard) allocate(service *corev1.Service) error {
	if service.Spec.ClusterIP == "" {
		service.Spec.ClusterIP = fmt.Sprintf("172.20.0.%d", y.number())
	}
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	services := &corev1.ServiceList{}
	y.must(y.world.client.List(y.world.t.Context(), services))
	for i := range services.Items {
		if services.Items[i].Spec.ClusterIP == service.Spec.ClusterIP {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, service.Name, nil)
		}
	}

	return nil
}

func (y *yard) must(err error) {
	y.world.t.Helper()
	NewWithT(y.world.t).Expect(err).NotTo(HaveOccurred())
}

// work is one look of scheduler and kubelets at all Pods.
func (y *yard) work() {
	y.world.t.Helper()
	pods := &corev1.PodList{}
	y.must(y.world.client.List(y.world.t.Context(), pods))
	for i := range pods.Items {
		y.workOn(&pods.Items[i])
	}
}

func (y *yard) workOn(pod *corev1.Pod) {
	switch node := y.node(pod.Spec.NodeName); {
	case !controllerutil.ContainsFinalizer(pod, kubeletFinalizer):
	case !pod.DeletionTimestamp.IsZero() && (pod.Spec.NodeName == "" || node == nil):
		y.end(pod)
		y.forget(pod)
	case y.stuck:
	case !pod.DeletionTimestamp.IsZero() && y.machines[pod.UID] != nil:
		y.end(pod)
		y.terminated(pod)
	case !pod.DeletionTimestamp.IsZero():
		y.forget(pod)
	case pod.Status.Phase == corev1.PodFailed:
		y.end(pod)
	case pod.Spec.NodeName == "":
		y.schedule(pod)
	case y.machines[pod.UID] == nil:
		y.start(pod)
	}
}

func (y *yard) node(name string) *corev1.Node {
	node := &corev1.Node{}
	if name == "" || y.world.client.Get(y.world.t.Context(), client.ObjectKey{Name: name}, node) != nil {
		return nil
	}

	return node
}

// end is the end of what ran in a Pod.
func (y *yard) end(pod *corev1.Pod) {
	if machine := y.machines[pod.UID]; machine != nil {
		machine.SetSilent(true)
		delete(y.machines, pod.UID)
	}
}

func (y *yard) terminated(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "talos", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}}}}
	y.status(pod)
}

func (y *yard) status(pod *corev1.Pod) {
	y.must(y.world.client.Status().Update(y.world.t.Context(), pod))
}

// forget is the kubelet's word that nothing of a Pod runs any more.
func (y *yard) forget(pod *corev1.Pod) {
	before := pod.DeepCopy()
	controllerutil.RemoveFinalizer(pod, kubeletFinalizer)
	y.must(y.world.client.Patch(y.world.t.Context(), pod, client.MergeFrom(before)))
}

func (y *yard) schedule(pod *corev1.Pod) {
	nodes := &corev1.NodeList{}
	y.must(y.world.client.List(y.world.t.Context(), nodes))
	why := y.unfit(pod)
	if why == "" && len(nodes.Items) == 0 {
		why = "no nodes available to schedule pods"
	}
	if why != "" {
		if len(pod.Status.Conditions) == 0 || pod.Status.Conditions[0].Message != why {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: why}}
			y.status(pod)
		}
		return
	}
	before := pod.DeepCopy()
	pod.Spec.NodeName = nodes.Items[0].Name
	y.must(y.world.client.Patch(y.world.t.Context(), pod, client.MergeFrom(before)))
}

// unfit says why a Pod gets no node; a claim is bound by that.
func (y *yard) unfit(pod *corev1.Pod) string {
	if y.full {
		return "0/1 nodes are available: 1 Insufficient cpu"
	}
	claim := y.claim(pod)
	switch {
	case claim == nil:
		return ""
	case claim.Name == "":
		return "persistentvolumeclaim not found"
	case claim.Status.Phase == corev1.ClaimBound:
		return ""
	case claim.Spec.StorageClassName != nil && y.world.client.Get(y.world.t.Context(), client.ObjectKey{Name: *claim.Spec.StorageClassName}, &storagev1.StorageClass{}) != nil:
		return "pod has unbound immediate PersistentVolumeClaims"
	}
	claim.Status.Phase = corev1.ClaimBound
	y.must(y.world.client.Status().Update(y.world.t.Context(), claim))

	return ""
}

// claim is the claim of a Pod; nil where it wants none, without a name when it is not
// there.
func (y *yard) claim(pod *corev1.Pod) *corev1.PersistentVolumeClaim {
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		if !y.world.exists(claim, volume.PersistentVolumeClaim.ClaimName) {
			return &corev1.PersistentVolumeClaim{}
		}
		return claim
	}

	return nil
}

func (y *yard) start(pod *corev1.Pod) {
	if y.node(pod.Spec.NodeName) == nil {
		return
	}
	userData, missing := y.environment(pod)
	switch {
	case y.pull != "":
		y.waits(pod, "ImagePullBackOff", y.pull)
		return
	case missing != "":
		y.waits(pod, "CreateContainerConfigError", missing)
		return
	}
	volume := pod.UID
	if claim := y.claim(pod); claim != nil {
		volume = claim.UID
	}
	y.state[volume] = y.state[volume] || userData != ""
	y.userData[pod.UID] = userData
	pod.Status.PodIP = fmt.Sprintf("172.21.0.%d", y.number())
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "talos", Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(y.world.clock.Now())}},
	}}
	y.status(pod)
	y.machines[pod.UID] = y.boot(pod, volume)
}

// environment is the configuration in the environment of a container.
func (y *yard) environment(pod *corev1.Pod) (userData, missing string) {
	for _, env := range pod.Spec.Containers[0].Env {
		if env.ValueFrom == nil {
			continue
		}
		ref, secret := env.ValueFrom.SecretKeyRef, &corev1.Secret{}
		if !y.world.exists(secret, ref.Name) {
			return "", fmt.Sprintf("secret %q not found", ref.Name)
		}
		return string(secret.Data[ref.Key]), ""
	}

	return "", ""
}

func (y *yard) waits(pod *corev1.Pod, reason, message string) {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Waiting != nil && *pod.Status.ContainerStatuses[0].State.Waiting == *state.Waiting {
		return
	}
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "talos", Image: pod.Spec.Containers[0].Image, State: state}}
	y.status(pod)
}

// boot is Talos in a container: without a configuration in maintenance mode.
func (y *yard) boot(pod *corev1.Pod, volume types.UID) *bareMetal {
	_, version, _ := strings.Cut(pod.Spec.Containers[0].Image, ":")
	if y.release != "" {
		version = y.release
	}
	address := pod.Status.PodIP
	machine := &bareMetal{world: y.world, address: address, Machine: talosfake.NewMachine(talosfake.State{
		Version: version, Addresses: []string{address}, Hostname: pod.Spec.Hostname,
	})}
	machine.OnApply = func(*talosfake.Machine, []byte) error {
		y.state[volume] = true
		machine.boot(false, bundle(y.world.t).TalosCA())
		return nil
	}
	machine.OnReset = func(*talosfake.Machine, talosclient.ResetOptions) error {
		return errors.New("a machine in a Pod is never reset")
	}
	machine.boot(!y.state[volume], bundle(y.world.t).TalosCA())
	if version != "none" {
		y.world.dialer.Add(address, machine.Machine)
	}

	return machine
}

// crash ends the container of a Pod; the kubelet starts it again at its next look.
func (y *yard) crash(name string) {
	y.world.t.Helper()
	pod := get(y.world, &corev1.Pod{}, name)
	y.end(pod)
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}}
	y.status(pod)
}

// evict is what a kubelet does whose node has too little of something.
func (y *yard) evict(name string) {
	y.world.t.Helper()
	pod := get(y.world, &corev1.Pod{}, name)
	y.end(pod)
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory"
	pod.Status.ContainerStatuses = nil
	y.status(pod)
}

// running are the names of the Pods in which something runs.
func (y *yard) running() []string {
	pods := &corev1.PodList{}
	y.must(y.world.client.List(y.world.t.Context(), pods))
	names := map[string]bool{}
	for i := range pods.Items {
		if y.machines[pods.Items[i].UID] != nil {
			names[pods.Items[i].Name] = true
		}
	}

	return slices.Sorted(maps.Keys(names))
}

// machine is what runs in a Pod.
func (y *yard) machine(name string) *bareMetal {
	y.world.t.Helper()

	return y.machines[get(y.world, &corev1.Pod{}, name).UID]
}

// forbidden is how the API server refuses what a rule of the namespace forbids.
func forbidden(object client.Object, words string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: fmt.Sprintf("%T", object)}, object.GetName(), errors.New(words))
}

// leftOf names what is left of a machine.
func (w *world) leftOf(name string) []string {
	w.t.Helper()
	var left []string
	for _, kept := range []struct {
		object client.Object
		name   string
	}{
		{&corev1.Pod{}, name},
		{&corev1.PersistentVolumeClaim{}, name + infrav1.DataClaimSuffix},
		{&corev1.Secret{}, name + infrav1.UserDataSecretSuffix},
		{&corev1.Service{}, name + infrav1.EtcdServiceSuffix},
		{&infrav1.TalosMachine{}, name},
	} {
		if w.exists(kept.object, kept.name) {
			left = append(left, fmt.Sprintf("%T", kept.object))
		}
	}

	return left
}
