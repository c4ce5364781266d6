package othervendor

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// uninitialized is the taint of a Node that waits for a cloud controller.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// instanceReconciler has an instance run for each Machine, with the bootstrap data as user
// data.
type instanceReconciler struct {
	client.Client

	cloud Cloud
}

// Reconcile implements reconcile.Reconciler.
func (r *instanceReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := newObject(instanceKind)
	if err := r.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, metav1.ObjectMeta{Namespace: object.GetNamespace(), OwnerReferences: object.GetOwnerReferences()})
	if err != nil || machine == nil {
		return ctrl.Result{}, err
	}
	cluster, err := util.GetClusterFromMetadata(ctx, r.Client, machine.ObjectMeta)
	if err != nil || annotations.IsPaused(cluster, object) {
		return ctrl.Result{}, err
	}
	if !object.GetDeletionTimestamp().IsZero() {
		return ctrl.Result{}, r.end(ctx, object)
	}
	if !ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) || machine.Spec.Bootstrap.DataSecretName == nil {
		return ctrl.Result{RequeueAfter: interval}, nil
	}
	return r.run(ctx, object, machine, cluster)
}

// run has the instance run, and says so.
func (r *instanceReconciler) run(ctx context.Context, object *unstructured.Unstructured, machine *clusterv1.Machine, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	before := object.DeepCopy()
	if controllerutil.AddFinalizer(object, finalizer) {
		if err := r.Patch(ctx, object, client.MergeFrom(before)); err != nil {
			return ctrl.Result{}, err
		}
	}
	secret := &corev1.Secret{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: *machine.Spec.Bootstrap.DataSecretName}, secret); err != nil {
		return ctrl.Result{}, err
	}
	instance, err := r.cloud.Run(ctx, object.GetName(), secret.Data["value"])
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := patchSpec(ctx, r.Client, object, map[string]any{"providerID": instance.providerID()}); err != nil {
		return ctrl.Result{}, err
	}
	if err := patchStatus(ctx, r.Client, object, map[string]any{
		"initialization": map[string]any{"provisioned": true},
		"addresses":      []any{map[string]any{"type": string(clusterv1.MachineInternalIP), "address": instance.Address}},
	}); err != nil {
		return ctrl.Result{}, err
	}
	if r.setUpNode(ctx, client.ObjectKeyFromObject(cluster), machine.Name, instance) != nil {
		// There is no Node yet, or no API server.
		return ctrl.Result{RequeueAfter: interval}, nil
	}
	return ctrl.Result{}, nil
}

// setUpNode does what the vendor's cloud controller does in the workload cluster.
func (r *instanceReconciler) setUpNode(ctx context.Context, cluster client.ObjectKey, name string, instance Instance) error {
	access, err := kubeconfig.FromSecret(ctx, r.Client, cluster)
	if err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(access)
	if err != nil {
		return err
	}
	workload, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := workload.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return err
	}
	before := node.DeepCopy()
	node.Spec.ProviderID = instance.providerID()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == uninitialized })
	return workload.Patch(ctx, node, client.MergeFrom(before))
}

// end takes the instance away.
func (r *instanceReconciler) end(ctx context.Context, object *unstructured.Unstructured) error {
	if err := r.cloud.End(ctx, object.GetName()); err != nil {
		return err
	}
	before := object.DeepCopy()
	controllerutil.RemoveFinalizer(object, finalizer)
	return r.Patch(ctx, object, client.MergeFrom(before))
}
