package container

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
)

// errTaken says that an object of a name that is ours belongs to somebody else.
type errTaken struct{ kind, name string }

// Error implements error.
func (e errTaken) Error() string { return e.kind + " " + e.name + " belongs to somebody else" }

// taken says so in a condition.
func taken(kind, name string) backends.Finding {
	return backends.False(infrav1.PodNameTakenReason, fmt.Sprintf(
		"%s %s exists, and does not belong to this TalosMachine; nothing is done to it. Delete it, or the Machine, to go on", kind, name))
}

// createPod makes what the Pod needs, and then the Pod. That it may exist is
// recorded before.
func (m *Machines) createPod(ctx context.Context, scope *backends.Scope, w wish, configuration []byte) (ctrl.Result, error) {
	scope.Observed.Claim = backends.False(infrav1.PodPreparingReason, "Making what the Pod needs")
	if unfit := m.unfit(scope, configuration); unfit != "" {
		scope.Observed.Claim = backends.False(infrav1.OverlayFailedReason, unfit)
		return m.later(), nil
	}
	if err := m.intend(ctx, scope); err != nil {
		return ctrl.Result{}, err
	}
	if w.controlPlane {
		if found, err := m.ensureEtcdService(ctx, scope, w); err != nil || !found {
			return m.judge(scope, err)
		}
	}
	if !isEphemeral(w.machine) {
		if err := m.ensure(ctx, w, w.claim(), "PersistentVolumeClaim"); err != nil {
			return m.judge(scope, err)
		}
	}
	pod := w.pod()
	err := m.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		// The next pass sees whose it is.
		return m.soon(), nil
	}
	if err != nil {
		return m.judge(scope, fmt.Errorf("creating Pod %s: %w", pod.Name, err))
	}
	ctrl.LoggerFrom(ctx).Info("Created the Pod of the machine", "Pod", pod.Name, "providerID", w.machine.Spec.ProviderID)
	again := w.machine.Spec.Pod.UID != ""
	if err := m.bindPod(ctx, scope, pod); err != nil {
		return ctrl.Result{}, err
	}
	event, note := infrav1.EventPodCreated, "Created Pod %s"
	if again {
		event, note = infrav1.EventPodReplaced, "Made Pod %s again on its volume"
	}
	m.Recorder.Eventf(w.machine, pod, corev1.EventTypeNormal, event, "Create", note, pod.Name)
	scope.Observed.Claim = backends.False(infrav1.PodNotScheduledReason, "Waiting for the Pod to get a node")

	return ctrl.Result{}, nil
}

// intend records the provider ID, and that there may be a Pod.
func (m *Machines) intend(ctx context.Context, scope *backends.Scope) error {
	machine := scope.TalosMachine
	if machine.Spec.ProviderID != "" && machine.Spec.Pod.Progress != "" {
		return nil
	}
	providerID := machine.Spec.ProviderID
	if providerID == "" {
		var err error
		if providerID, err = backends.MintProviderID(m.Random); err != nil {
			return err
		}
	}

	return backends.Record(ctx, m.Client, machine, func(spec *infrav1.TalosMachineSpec) {
		spec.ProviderID = providerID
		if spec.Pod.Progress == "" {
			spec.Pod.Progress = infrav1.PodCreating
		}
	})
}

// ensureEtcdService makes the Service of the machine's etcd, and records its
// address. It tells whether the address is known.
func (m *Machines) ensureEtcdService(ctx context.Context, scope *backends.Scope, w wish) (bool, error) {
	service := w.etcdService()
	if recorded := w.machine.Spec.Pod.EtcdAddress; recorded != "" {
		// It was deleted by hand: etcd's peers know the machine by this address alone.
		service.Spec.ClusterIP = recorded
	}
	if err := m.ensure(ctx, w, service, "Service"); err != nil {
		return false, err
	}
	address := service.Spec.ClusterIP
	if address == "" || address == corev1.ClusterIPNone {
		return false, nil
	}
	if recorded := w.machine.Spec.Pod.EtcdAddress; recorded != "" {
		if recorded != address {
			return false, fmt.Errorf("reading Service %s: %w", service.Name, errAddressLost{recorded: recorded, found: address})
		}
		return true, nil
	}

	return true, backends.Record(ctx, m.Client, w.machine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.EtcdAddress = address })
}

// errAddressLost says that a Service has another address than the one that is
// recorded.
type errAddressLost struct{ recorded, found string }

// Error implements error.
func (e errAddressLost) Error() string {
	return fmt.Sprintf("its address is %s, but etcd of the cluster knows the machine at %s: delete the Service, so that it is made again with that address", e.found, e.recorded)
}

// ensure creates an object of the machine, unless it is there; object is what is
// there then. One that goes is waited for.
func (m *Machines) ensure(ctx context.Context, w wish, object client.Object, kind string) error {
	err := m.Client.Create(ctx, object)
	if err == nil {
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %s %s: %w", kind, object.GetName(), err)
	}
	key := client.ObjectKeyFromObject(object)
	if err := m.APIReader.Get(ctx, key, object); err != nil {
		return fmt.Errorf("reading %s %s: %w", kind, key.Name, err)
	}
	if !metav1.IsControlledBy(object, w.machine) {
		return errTaken{kind: kind, name: key.Name}
	}

	return nil
}

// letPodGo takes our finalizer off a Pod.
func (m *Machines) letPodGo(ctx context.Context, pod *corev1.Pod) error {
	before := pod.DeepCopy()
	if !controllerutil.RemoveFinalizer(pod, infrav1.TalosPodFinalizer) {
		return nil
	}
	if err := m.Client.Patch(ctx, pod, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("letting Pod %s go: %w", pod.Name, err)
	}

	return nil
}

// deleteObject deletes an object of the machine, if there is one; it tells whether
// it is still there.
func (m *Machines) deleteObject(ctx context.Context, w wish, object client.Object) (bool, error) {
	key := client.ObjectKeyFromObject(object)
	if err := m.APIReader.Get(ctx, key, object); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading %T %s: %w", object, key.Name, err)
	}
	if !metav1.IsControlledBy(object, w.machine) {
		return false, nil
	}
	if !object.GetDeletionTimestamp().IsZero() {
		return true, nil
	}
	uid := object.GetUID()
	if err := m.Client.Delete(ctx, object, client.Preconditions{UID: &uid}); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("deleting %T %s: %w", object, key.Name, err)
	}
	// What has no finalizer is gone with the answer.
	if err := m.APIReader.Get(ctx, key, object); err != nil {
		return false, client.IgnoreNotFound(err)
	}

	return object.GetUID() == uid, nil
}

// storageProblem says why the claim of a machine has no volume; empty when nothing
// is known against it.
func (m *Machines) storageProblem(ctx context.Context, machine *infrav1.TalosMachine) (string, error) {
	if isEphemeral(machine) {
		return "", nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := m.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Name + infrav1.DataClaimSuffix}, claim)
	if err != nil || claim.Status.Phase == corev1.ClaimBound {
		return "", client.IgnoreNotFound(err)
	}
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		return fmt.Sprintf("PersistentVolumeClaim %s is not bound, and the management cluster has no default StorageClass: name one in spec.container.storage.volumeClaim of a new template", claim.Name), nil
	}
	err = m.APIReader.Get(ctx, client.ObjectKey{Name: *name}, &storagev1.StorageClass{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("StorageClass %s of PersistentVolumeClaim %s does not exist: create it, or name another one in a new template", *name, claim.Name), nil
	}
	if err != nil {
		return "", fmt.Errorf("reading StorageClass %s: %w", *name, err)
	}

	return "", nil
}
