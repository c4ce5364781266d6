package podhost

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// provisionerAnnotation is where Kubernetes asks a driver for a volume.
const provisionerAnnotation = "volume.kubernetes.io/storage-provisioner"

// runProvisioner sets up the driver of the volumes: who makes them for claims, and
// deletes those that are let go.
func (h *Host) runProvisioner(manager ctrl.Manager) error {
	if err := ctrl.NewControllerManagedBy(manager).Named("provisioner").For(&corev1.PersistentVolumeClaim{}).
		Complete(reconcile.Func(h.provision)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(manager).Named("deleter").For(&corev1.PersistentVolume{}).
		Complete(reconcile.Func(h.unprovision))
}

func (h *Host) provision(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := h.client.Get(ctx, request.NamespacedName, claim); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if claim.Annotations[provisionerAnnotation] != Provisioner || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]}, AccessModes: claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, StorageClassName: ptr.Deref(claim.Spec.StorageClassName, ""),
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: Provisioner, VolumeHandle: string(claim.UID)}},
		},
	}
	if err := h.client.Create(ctx, volume); err != nil && !apierrors.IsAlreadyExists(err) {
		return ctrl.Result{}, fmt.Errorf("making a volume for claim %s: %w", claim.Name, err)
	}
	return ctrl.Result{}, nil
}

func (h *Host) unprovision(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	volume := &corev1.PersistentVolume{}
	if err := h.client.Get(ctx, request.NamespacedName, volume); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if volume.Status.Phase != corev1.VolumeReleased || volume.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	h.mu.Lock()
	machine := h.volumes[volume.Name]
	delete(h.volumes, volume.Name)
	h.mu.Unlock()
	if machine != nil {
		h.Sim.Remove(machine)
	}
	return ctrl.Result{}, client.IgnoreNotFound(h.client.Delete(ctx, volume))
}
