package container

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
)

// Delete implements backends.Backend: the Pod, then its data and its names.
func (m *Backend) Delete(ctx context.Context, scope *backends.Scope) (backends.Deletion, ctrl.Result, error) {
	defer backends.WarnOnNewProblem(m.Recorder, scope)

	m.forget(client.ObjectKeyFromObject(scope.TalosMachine))
	scope.Observed.Reprovisioning = condition.False(infrav1.NotReprovisioningReason, "")
	facts, err := m.gatherPodFacts(ctx, scope.TalosMachine)
	if err != nil {
		return "", ctrl.Result{}, err
	}
	left, err := m.deleteAll(ctx, m.podBuilder(scope, false), facts, true)
	if err != nil {
		return "", ctrl.Result{}, err
	}
	if len(left) > 0 {
		reason := infrav1.WaitingForPodDeletionReason
		if facts.nodeNotReady {
			reason = infrav1.NodeNotReadyReason
		}
		scope.Observed.Deleting = condition.True(reason, "Waiting to be gone: "+strings.Join(left, ", "))
		// The end of a node does not wake us.
		return backends.Releasing, m.Pacing.Later(), nil
	}
	if err := m.rememberGone(ctx, scope); err != nil {
		return "", ctrl.Result{}, err
	}
	m.Recorder.Eventf(scope.TalosMachine, nil, corev1.EventTypeNormal, infrav1.EventPodDeleted, "Delete", "The Pod of the machine and its data are gone")

	return backends.Released, ctrl.Result{}, nil
}

// rememberGone records on the TalosCluster that nothing is left of a control plane
// machine: where etcd of a cluster is not bootstrapped yet, the control plane
// provider may have named that very machine for it (design D7), and begins with
// another one then.
func (m *Backend) rememberGone(ctx context.Context, scope *backends.Scope) error {
	machine := scope.TalosMachine
	_, controlPlane := machine.Labels[clusterv1.MachineControlPlaneLabel]
	if !controlPlane || scope.TalosCluster == nil || ptr.Deref(scope.Cluster.Status.Initialization.ControlPlaneInitialized, false) {
		return nil
	}
	cluster := &infrav1.TalosCluster{}
	key := client.ObjectKeyFromObject(scope.TalosCluster)
	if err := m.APIReader.Get(ctx, key, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading TalosCluster %s: %w", key.Name, err)
	}
	before := cluster.DeepCopy()
	if !addGone(cluster, machine.Spec.ProviderID) {
		return nil
	}
	if err := objects.Patch(ctx, m.Client, before, cluster); err != nil {
		return fmt.Errorf("recording on TalosCluster %s that nothing is left of TalosMachine %s: %w", key.Name, machine.Name, err)
	}

	return nil
}

// addGone writes into a TalosCluster that nothing is left of a control plane
// machine in a Pod: its Pod, its volume and its Secret are gone. It has to be stored
// before the finalizer of the TalosMachine goes. False means that nothing has changed.
func addGone(cluster *infrav1.TalosCluster, providerID string) bool {
	known := infrav1.GoneMachines(cluster.Annotations)
	// The ID of a machine in a Pod is minted, and so never has the separator.
	if providerID == "" || strings.Contains(providerID, ",") || slices.Contains(known, providerID) {
		return false
	}
	known = slices.Insert(known, 0, providerID)
	known = known[:min(len(known), infrav1.MaxGoneMachines)]
	metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, infrav1.GoneMachinesAnnotation, strings.Join(known, ","))

	return true
}

// deleteAll deletes the Pod, and once it has ended what belongs to it; with names
// also the Service that gives etcd its address. It tells what is left.
func (m *Backend) deleteAll(ctx context.Context, b podBuilder, facts podFacts, names bool) ([]string, error) {
	if facts.pod != nil && metav1.IsControlledBy(facts.pod, b.machine) {
		left := "Pod " + facts.pod.Name
		if !facts.pod.DeletionTimestamp.IsZero() && !facts.hasEnded() {
			left += ", whose end " + facts.awaited()
		}
		return []string{left}, m.deletePod(ctx, facts)
	}
	if pod := facts.pod; pod != nil && metav1.GetControllerOf(pod) == nil {
		// The TalosMachine was deleted without its dependents: nobody else would let it go.
		if err := m.removePodFinalizer(ctx, pod); err != nil {
			return nil, err
		}
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: b.machine.Namespace, Name: name}
	}
	belongings := []client.Object{
		&corev1.Secret{ObjectMeta: meta(b.machine.Name + infrav1.UserDataSecretSuffix)},
		&corev1.PersistentVolumeClaim{ObjectMeta: meta(b.machine.Name + infrav1.DataClaimSuffix)},
	}
	if names {
		belongings = append(belongings, &corev1.Service{ObjectMeta: meta(b.etcdServiceName())})
	}
	var left []string
	for _, belonging := range belongings {
		there, err := objects.DeleteOwned(ctx, m.Client, m.APIReader, b.machine, belonging)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, objects.KindOf(belonging)+" "+belonging.GetName())
		}
	}

	return left, nil
}
