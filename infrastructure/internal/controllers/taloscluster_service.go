package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

// apiServerPort is where the API server of a control plane machine listens.
const apiServerPort = int32(6443)

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete

// reconcileService makes the Service of a control plane in Pods as it is to be, and
// sets the endpoint from it. It finds nothing, the zero Finding, when all is well, and
// what is true where the cluster is ready all the same.
func (r *ClusterReconciler) reconcileService(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (condition.Finding, error) {
	service, found, err := r.ensureService(ctx, cluster, talosCluster)
	if err != nil || found.Status == metav1.ConditionFalse {
		return found, err
	}
	address := endpoint.Address(service)
	wanted := talosCluster.Spec.ControlPlaneEndpoint
	switch {
	case address != "" && wanted.IsValid() && slices.Contains(endpoint.Names(service, nil, r.ClusterDomain), wanted.Host):
		return found, nil
	case found.Status != "":
		// What is to be mended may be why.
		found.Status = metav1.ConditionFalse
		return found, nil
	case address == "":
		return condition.Falsef(infrav1.WaitingForServiceReason, "Waiting for Service %s to get the address of a load balancer", service.Name), nil
	case !wanted.IsValid():
		return condition.Finding{}, r.setEndpoint(ctx, talosCluster, clusterv1.APIEndpoint{Host: address, Port: servicePort(talosCluster)})
	}
	cure := "give the Service that address back"
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		cure = "delete the Service, which is made again at that address if it is a cluster IP, or give it its former type back"
	}

	return condition.Falsef(infrav1.ServiceAddressLostReason,
		"Service %s is reached at %q, but the endpoint of the cluster is %s, which cannot be changed: %s", service.Name, address, wanted.Host, cure), nil
}

// setEndpoint writes the endpoint at once: whoever sees the status of this reconciliation, that
// the infrastructure is provisioned, looks for it.
func (r *ClusterReconciler) setEndpoint(ctx context.Context, talosCluster *infrav1.TalosCluster, found clusterv1.APIEndpoint) error {
	changed := talosCluster.DeepCopy()
	changed.Spec.ControlPlaneEndpoint = found
	if err := objects.Patch(ctx, r.Client, talosCluster, changed); err != nil {
		return fmt.Errorf("writing the endpoint of TalosCluster %s: %w", talosCluster.Name, err)
	}
	// The patch at the end of the reconciliation knows the old version, and reads the new one.
	talosCluster.Spec.ControlPlaneEndpoint = found

	return nil
}

// ensureService creates the Service, or mends it. One that was deleted gets its
// address back. The cache is believed where it shows that all is well.
func (r *ClusterReconciler) ensureService(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (*corev1.Service, condition.Finding, error) {
	wanted := desiredService(cluster, talosCluster)
	cached := &corev1.Service{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(wanted), cached)
	if err == nil && metav1.IsControlledBy(cached, talosCluster) && cached.DeletionTimestamp.IsZero() {
		if _, differs := endpoint.Updated(cached, wanted); !differs {
			return cached, condition.Finding{}, nil
		}
	}
	service := &corev1.Service{}
	err = r.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), service)
	switch {
	case apierrors.IsNotFound(err):
		return r.createService(ctx, cluster, talosCluster)
	case err != nil:
		return nil, condition.Finding{}, fmt.Errorf("reading Service %s: %w", wanted.Name, err)
	case !metav1.IsControlledBy(service, talosCluster):
		return nil, condition.Falsef(infrav1.ServiceNameConflictReason, "Service %s exists, and does not belong to this TalosCluster; nothing is done to it. Delete it to go on", wanted.Name), nil
	case !service.DeletionTimestamp.IsZero():
		return nil, condition.Falsef(infrav1.WaitingForServiceReason, "Service %s is being deleted; it is made again with its address", wanted.Name), nil
	}
	mended, differs := endpoint.Updated(service, wanted)
	if !differs {
		return service, condition.Finding{}, nil
	}
	found, err := r.mendService(ctx, talosCluster, service, mended)
	switch {
	case err != nil || found.Status == "":
		return mended, found, err
	case leadsThere(service, mended):
		found.Status = metav1.ConditionTrue
	}

	return service, found, nil
}

// mendService makes a Service what it is to be. It finds what speaks against that.
func (r *ClusterReconciler) mendService(ctx context.Context, talosCluster *infrav1.TalosCluster, service, mended *corev1.Service) (condition.Finding, error) {
	if found, err := r.notAllowed(ctx, talosCluster); err != nil || found.Status != "" {
		return found, err
	}
	if err := objects.Patch(ctx, r.Client, service, mended); err != nil {
		return refusedService(service.Name, err), clientError(err)
	}

	return condition.Finding{}, nil
}

// notAllowed says that no administrator lets the control plane be in Pods in the namespace; the
// zero Finding when one does. What a Service is to be like is chosen by users whom RBAC may deny
// one.
func (r *ClusterReconciler) notAllowed(ctx context.Context, talosCluster *infrav1.TalosCluster) (condition.Finding, error) {
	allowed, err := backends.AllowsPods(ctx, r.APIReader, talosCluster.Namespace)
	if err != nil || allowed {
		return condition.Finding{}, err
	}

	return condition.False(infrav1.PodsNotAllowedReason,
		"The namespace does not ask for privileged Pods, and the Service of a control plane in Pods is neither made nor changed there: "+backends.HowToAllowPods), nil
}

// leadsThere reports whether a Service leads to the same machines as it is to. The cluster
// is ready then, whatever else is to be mended: while it is not, its MachineHealthChecks do
// nothing.
func leadsThere(service, mended *corev1.Service) bool {
	return apiequality.Semantic.DeepEqual(service.Spec.Selector, mended.Spec.Selector) && apiequality.Semantic.DeepEqual(service.Spec.Ports, mended.Spec.Ports)
}

// createService creates the Service at the endpoint that is recorded now: the cache may
// not have it yet, and at another address nobody would find the cluster.
func (r *ClusterReconciler) createService(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (*corev1.Service, condition.Finding, error) {
	if found, err := r.notAllowed(ctx, talosCluster); err != nil || found.Status != "" {
		return nil, found, err
	}
	current := &infrav1.TalosCluster{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(talosCluster), current); err != nil {
		return nil, condition.Finding{}, fmt.Errorf("reading TalosCluster %s: %w", talosCluster.Name, err)
	}
	talosCluster.Spec.ControlPlaneEndpoint = current.Spec.ControlPlaneEndpoint
	service := desiredService(cluster, talosCluster)
	if err := r.Client.Create(ctx, service); err != nil {
		return nil, refusedService(service.Name, err), clientError(err)
	}
	if current.Spec.ControlPlaneEndpoint.IsValid() {
		return service, condition.Finding{}, nil
	}

	return r.keepOrTakeBack(ctx, talosCluster, service)
}

// keepOrTakeBack takes a Service back that was made while no endpoint was known, when
// one is by now, and is another one: a second manager has made the first Service, and
// somebody has deleted that before our request arrived.
func (r *ClusterReconciler) keepOrTakeBack(ctx context.Context, talosCluster *infrav1.TalosCluster, service *corev1.Service) (*corev1.Service, condition.Finding, error) {
	current := &infrav1.TalosCluster{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(talosCluster), current); err != nil {
		return nil, condition.Finding{}, fmt.Errorf("reading TalosCluster %s: %w", talosCluster.Name, err)
	}
	known := current.Spec.ControlPlaneEndpoint
	if !known.IsValid() || slices.Contains(endpoint.Names(service, nil, r.ClusterDomain), known.Host) {
		return service, condition.Finding{}, nil
	}
	if err := r.Client.Delete(ctx, service, client.Preconditions{UID: &service.UID}); client.IgnoreNotFound(err) != nil {
		return nil, condition.Finding{}, fmt.Errorf("deleting Service %s, which has another address than the endpoint: %w", service.Name, err)
	}

	return nil, condition.Falsef(infrav1.WaitingForServiceReason, "Service %s is made again at %s, the endpoint of the cluster", service.Name, known.Host), nil
}

// desiredService is the Service as it is to be. With an endpoint that is known it
// asks for that address.
func desiredService(cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) *corev1.Service {
	spec := talosCluster.Spec.Container.ControlPlaneService
	service := &corev1.Service{
		ObjectMeta: objectOf(cluster, talosCluster, endpoint.ServiceName(talosCluster)),
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeClusterIP,
			Selector: controlPlanePods(cluster),
			Ports: []corev1.ServicePort{{
				Name: "kubernetes", Port: servicePort(talosCluster), TargetPort: intstr.FromInt32(apiServerPort), Protocol: corev1.ProtocolTCP,
			}},
		},
	}
	service.Annotations = maps.Clone(spec.Annotations)
	if spec.Type != "" {
		service.Spec.Type = corev1.ServiceType(spec.Type)
	}
	if spec.LoadBalancerClass != "" {
		service.Spec.LoadBalancerClass = ptr.To(spec.LoadBalancerClass)
	}
	known := talosCluster.Spec.ControlPlaneEndpoint.Host
	if _, err := netip.ParseAddr(known); err != nil {
		// None yet, or a name.
		return service
	}
	if service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		// There is no other way to ask just any load balancer for an address.
		service.Spec.LoadBalancerIP = known
	} else {
		service.Spec.ClusterIP = known
	}

	return service
}

// objectOf is the metadata of an object that a TalosCluster makes.
func objectOf(cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster, name string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Namespace: talosCluster.Namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(talosCluster, infrav1.GroupVersion.WithKind(infrav1.TalosClusterKind))},
	}
	objects.WatchAs(talosCluster, &meta)

	return meta
}

func controlPlanePods(cluster *clusterv1.Cluster) map[string]string {
	return map[string]string{clusterv1.ClusterNameLabel: cluster.Name, clusterv1.MachineControlPlaneLabel: ""}
}

func servicePort(talosCluster *infrav1.TalosCluster) int32 {
	return ptr.Deref(talosCluster.Spec.Container.ControlPlaneService.Port, infrav1.DefaultControlPlaneServicePort)
}

// refusedService says that the API server does not take the Service; the zero Finding
// for errors that pass by themselves.
func refusedService(name string, err error) condition.Finding {
	if !objects.IsNotTaken(err) {
		return condition.Finding{}
	}

	return condition.False(infrav1.ServiceRefusedReason, objects.Explain("The API server does not take Service "+name+" as it is to be; it is tried again. "+
		"Its address may be in use by another Service, a quota used up, its type not changeable, or a webhook not answer", err))
}

// clientError is an error to try again at once; nil for one that is a condition.
func clientError(err error) error {
	if objects.IsNotTaken(err) {
		return nil
	}

	return fmt.Errorf("writing the Service of the control plane: %w", err)
}

// reconcileBudget keeps evictions from taking more than one control plane machine
// at a time, and the only one at all: with its Pod its etcd may be gone. It finds
// nothing, the zero Finding, when all is well.
func (r *ClusterReconciler) reconcileBudget(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (condition.Finding, error) {
	machines, err := r.controlPlaneMachines(ctx, cluster)
	if err != nil {
		return condition.Finding{}, err
	}
	wanted := desiredBudget(cluster, talosCluster, int32(len(machines))) //nolint:gosec // G115: there are few.
	key, budget := client.ObjectKeyFromObject(wanted), &policyv1.PodDisruptionBudget{}
	if err := r.Client.Get(ctx, key, budget); err == nil && metav1.IsControlledBy(budget, talosCluster) && !differs(budget, wanted) {
		return condition.Finding{}, nil
	}
	// The cache has none that others have made.
	budget = &policyv1.PodDisruptionBudget{}
	err = r.APIReader.Get(ctx, key, budget)
	switch {
	case apierrors.IsNotFound(err):
		err = r.Client.Create(ctx, wanted)
	case err != nil:
	case !metav1.IsControlledBy(budget, talosCluster):
		return budgetMissing("PodDisruptionBudget " + wanted.Name + " exists, and does not belong to this TalosCluster, so that drains may evict more control plane machines at once than etcd can lose; delete it to go on"), nil
	case budget.DeletionTimestamp.IsZero() && differs(budget, wanted):
		before := budget.DeepCopy()
		mendBudget(budget, wanted)
		err = objects.Patch(ctx, r.Client, before, budget)
	}
	if objects.IsNotTaken(err) {
		missing := "The API server does not take PodDisruptionBudget " + wanted.Name + ", so that drains may evict more control plane machines at once than etcd can lose; it is tried again"
		return budgetMissing(objects.Explain(missing, err)), nil
	}
	if err != nil {
		return condition.Finding{}, fmt.Errorf("writing PodDisruptionBudget %s: %w", wanted.Name, err)
	}

	return condition.Finding{}, nil
}

// budgetMissing says so. The cluster is ready all the same: while it is not, the
// MachineHealthChecks of its Cluster do nothing.
func budgetMissing(message string) condition.Finding {
	return condition.True(infrav1.BudgetMissingReason, message)
}

// controlPlaneMachines are the control plane machines of a cluster that are neither
// lost nor being deleted.
func (r *ClusterReconciler) controlPlaneMachines(ctx context.Context, cluster *clusterv1.Cluster) ([]infrav1.TalosMachine, error) {
	machines := &infrav1.TalosMachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(cluster.Namespace), client.MatchingLabels(controlPlanePods(cluster))); err != nil {
		return nil, fmt.Errorf("listing TalosMachines: %w", err)
	}

	return slices.DeleteFunc(machines.Items, func(machine infrav1.TalosMachine) bool {
		return !machine.DeletionTimestamp.IsZero() || machine.Spec.Pod.Progress == infrav1.PodLost
	}), nil
}

func desiredBudget(cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster, machines int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: objectOf(cluster, talosCluster, talosCluster.Name+infrav1.ControlPlaneBudgetSuffix),
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: controlPlanePods(cluster)},
			MinAvailable: ptr.To(intstr.FromInt32(leastAvailable(machines))),
		},
	}
}

// mendBudget makes a budget as it is to be; what others have set besides stays.
func mendBudget(budget, wanted *policyv1.PodDisruptionBudget) {
	budget.Spec.Selector, budget.Spec.MinAvailable, budget.Spec.MaxUnavailable = wanted.Spec.Selector, wanted.Spec.MinAvailable, nil
	if budget.Labels == nil {
		budget.Labels = map[string]string{}
	}
	maps.Copy(budget.Labels, wanted.Labels)
}

func differs(budget, wanted *policyv1.PodDisruptionBudget) bool {
	mended := budget.DeepCopy()
	mendBudget(mended, wanted)

	return !apiequality.Semantic.DeepEqual(budget, mended)
}

// leastAvailable is how many of so many control plane machines evictions must leave:
// all but one where etcd keeps its quorum without it.
func leastAvailable(machines int32) int32 {
	const leastToSpareOne = 3
	if machines < leastToSpareOne {
		return max(machines, 1)
	}

	return machines - 1
}

// deleteMade deletes what the TalosCluster has made, last of all; it tells what is
// left.
func (r *ClusterReconciler) deleteMade(ctx context.Context, talosCluster *infrav1.TalosCluster) ([]string, error) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: talosCluster.Namespace, Name: name}
	}
	var left []string
	for _, made := range []client.Object{
		&policyv1.PodDisruptionBudget{ObjectMeta: meta(talosCluster.Name + infrav1.ControlPlaneBudgetSuffix)},
		&corev1.Service{ObjectMeta: meta(endpoint.ServiceName(talosCluster))},
	} {
		there, err := objects.DeleteOwned(ctx, r.Client, r.APIReader, talosCluster, made)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, objects.KindOf(made)+" "+made.GetName())
		}
	}

	return left, nil
}
