package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// ClusterReconciler reconciles TalosClusters. Client, APIReader, ClusterDomain and Recorder
// are required.
type ClusterReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// ClusterDomain is the DNS domain of the management cluster.
	ClusterDomain string
	// Recorder records events.
	Recorder events.EventRecorder
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
}

// maxFailureDomains is what the Cluster API contract allows.
const maxFailureDomains = 100

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosclusters/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosclusters/finalizers,verbs=update

// SetupWithManager registers the controller with mgr.
func (r *ClusterReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.ClusterDomain == "" || r.Recorder == nil {
		return errors.New("setting up the TalosCluster controller: a required field is nil")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", "taloscluster")
	toCluster := util.ClusterToInfrastructureMapFunc(ctx, infrav1.GroupVersion.WithKind(infrav1.TalosClusterKind), r.Client, &infrav1.TalosCluster{})
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&infrav1.TalosCluster{}).
		Owns(&corev1.Service{}).
		Owns(&policyv1.PodDisruptionBudget{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(toCluster)).
		Watches(&infrav1.TalosHost{}, handler.EnqueueRequestsFromMapFunc(r.hostToClusters), changes(isOtherFailureDomain)).
		Watches(&infrav1.TalosMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineToClusters)).
		// Nodes have no label of the watch filter.
		WatchesRawSource(source.Kind[client.Object](mgr.GetCache(), &corev1.Node{},
			handler.EnqueueRequestsFromMapFunc(r.nodeToClusters), changes(isOtherPlace))).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosCluster controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &infrav1.TalosCluster{})

	return nil
}

// Reconcile reconciles one TalosCluster.
func (r *ClusterReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	talosCluster := &infrav1.TalosCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, talosCluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if annotations.IsExternallyManaged(talosCluster) {
		// Somebody else brings the infrastructure, and writes the status.
		return ctrl.Result{}, nil
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, talosCluster.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}
	if cluster == nil && talosCluster.DeletionTimestamp.IsZero() {
		ctrl.LoggerFrom(ctx).Info("Waiting for the Cluster controller to set the owner reference")
		r.pace.OnlyWaits(req)
		return ctrl.Result{}, nil
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, cluster, talosCluster, infrav1.TalosClusterFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(talosCluster, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("preparing the patch: %w", err)
	}
	defer func() {
		if err := writeCluster(ctx, helper, talosCluster); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		result, reterr = r.pace.AfterConflict(ctx, req, result, reterr)
	}()

	if !talosCluster.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.reconcileDelete(ctx, cluster, talosCluster)
	}

	return r.reconcileNormal(ctx, cluster, talosCluster)
}

// writeCluster writes what a reconciliation has changed. A TalosCluster whose last finalizer
// went with it may be gone by then.
func writeCluster(ctx context.Context, helper *patch.Helper, talosCluster *infrav1.TalosCluster) error {
	err := helper.Patch(ctx, talosCluster, patch.WithOwnedConditions{Conditions: []string{
		clusterv1.PausedCondition, infrav1.ReadyCondition, infrav1.DeletingCondition,
	}})
	if !talosCluster.DeletionTimestamp.IsZero() {
		err = client.IgnoreNotFound(err)
	}
	if err != nil {
		return fmt.Errorf("writing the TalosCluster: %w", err)
	}

	return nil
}

func (r *ClusterReconciler) reconcileNormal(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (ctrl.Result, error) {
	condition.Set(talosCluster, infrav1.DeletingCondition, condition.False(infrav1.NotDeletingReason, ""))
	if talosCluster.Spec.Container != nil {
		return r.reconcileContainer(ctx, cluster, talosCluster)
	}
	var err error
	if talosCluster.Status.FailureDomains, err = r.failureDomains(ctx, talosCluster.Namespace); err != nil {
		return ctrl.Result{}, err
	}
	// The user gives the endpoint, here or on the Cluster.
	if !talosCluster.Spec.ControlPlaneEndpoint.IsValid() && !cluster.Spec.ControlPlaneEndpoint.IsValid() {
		condition.Set(talosCluster, infrav1.ReadyCondition, condition.False(infrav1.WaitingForControlPlaneEndpointReason,
			"Set spec.controlPlaneEndpoint to the load balancer, DNS name or Talos virtual IP of the cluster"))
		return ctrl.Result{}, nil
	}
	talosCluster.Status.Initialization.Provisioned = ptr.To(true)
	condition.Set(talosCluster, infrav1.ReadyCondition, condition.True(infrav1.ClusterReadyReason, ""))

	return ctrl.Result{}, nil
}

// reconcileContainer makes the endpoint of a control plane in Pods.
func (r *ClusterReconciler) reconcileContainer(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (ctrl.Result, error) {
	zones, err := r.zones(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	talosCluster.Status.FailureDomains = zones
	found, err := r.overlap(ctx, cluster, talosCluster)
	if err == nil && found.Status == "" {
		found, err = r.reconcileService(ctx, cluster, talosCluster)
	}
	// The cluster does not wait for its budget.
	budget, budgetErr := r.reconcileBudget(ctx, cluster, talosCluster)
	if err != nil {
		return ctrl.Result{}, kerrors.NewAggregate([]error{err, budgetErr})
	}
	if talosCluster.Spec.ControlPlaneEndpoint.IsValid() {
		talosCluster.Status.Initialization.Provisioned = ptr.To(true)
	}
	if found.Status == "" {
		found = budget
	}
	if found.Status == "" {
		unreached, err := r.unreachedNodes(ctx, cluster, talosCluster)
		if err != nil {
			return ctrl.Result{}, err
		}
		found = condition.True(infrav1.ClusterReadyReason, unreached)
	}
	if found.Reason == infrav1.PodsNotAllowedReason && conditions.GetReason(talosCluster, infrav1.ReadyCondition) != found.Reason {
		r.Recorder.Eventf(talosCluster, nil, corev1.EventTypeWarning, infrav1.EventAttention, "Observe", "%s: %s", found.Reason, found.Message)
	}
	condition.Set(talosCluster, infrav1.ReadyCondition, found)

	return util.LowestNonZeroResult(retryRefused(found), retryRefused(budget)), budgetErr
}

// retryRefused asks again for what was refused: nothing tells when an address, a
// quota or a name becomes free, or an administrator labels a namespace.
func retryRefused(found condition.Finding) ctrl.Result {
	switch found.Reason {
	case infrav1.ServiceRefusedReason, infrav1.ServiceNameConflictReason, infrav1.BudgetMissingReason, infrav1.PodsNotAllowedReason:
		return ctrl.Result{RequeueAfter: pacing.RefusedInterval}
	}

	return ctrl.Result{}
}

// failureDomains are those of all hosts of the namespace, free or not, so that
// they do not change with each claim. Of each it is told whether a host is free
// in it.
func (r *ClusterReconciler) failureDomains(ctx context.Context, namespace string) ([]clusterv1.FailureDomain, error) {
	hosts := &infrav1.TalosHostList{}
	if err := r.Client.List(ctx, hosts, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing TalosHosts: %w", err)
	}
	free := map[string]string{}
	for i := range hosts.Items {
		host := &hosts.Items[i]
		switch name := host.Spec.FailureDomain; {
		case name == "":
		case isFree(host):
			free[name] = infrav1.FreeHostsSome
		case free[name] == "":
			free[name] = infrav1.FreeHostsNone
		}
	}
	var domains []clusterv1.FailureDomain
	for _, name := range domainNames(free) {
		domains = append(domains, clusterv1.FailureDomain{
			Name: name, ControlPlane: ptr.To(true), Attributes: map[string]string{infrav1.FreeHostsAttribute: free[name]},
		})
	}

	return domains, nil
}

// domainNames are the names of failure domains in alphabetical order, as many as the
// contract allows.
func domainNames[V any](found map[string]V) []string {
	names := slices.Sorted(maps.Keys(found))

	return names[:min(len(names), maxFailureDomains)]
}

// isFree reports whether a TalosMachine may claim the host.
func isFree(host *infrav1.TalosHost) bool {
	return host.Status.State == infrav1.HostAvailable && host.Spec.ConsumerRef.Name == "" && !ptr.Deref(host.Spec.Unschedulable, false)
}

// reconcileDelete lets a TalosCluster go once its TalosMachines are gone. The Cluster
// may be gone before it.
func (r *ClusterReconciler) reconcileDelete(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) error {
	if taloshost.IsMoved(talosCluster) {
		condition.Set(talosCluster, infrav1.DeletingCondition, condition.True(infrav1.DeletedForMoveReason, "The TalosCluster was moved to another management cluster"))
		return nil
	}
	machines := &infrav1.TalosMachineList{}
	name := talosCluster.Labels[clusterv1.ClusterNameLabel]
	if cluster != nil {
		name = cluster.Name
	}
	if name != "" {
		if err := r.Client.List(ctx, machines, client.InNamespace(talosCluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
			return fmt.Errorf("listing TalosMachines: %w", err)
		}
	}
	if len(machines.Items) > 0 {
		var names []string
		for i := range machines.Items {
			names = append(names, machines.Items[i].Name)
		}
		slices.Sort(names)
		setWaiting(talosCluster, infrav1.WaitingForTalosMachinesReason, "Waiting for TalosMachines to be gone: "+strings.Join(names, ", "))
		return nil
	}
	left, err := r.deleteMade(ctx, talosCluster)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		setWaiting(talosCluster, infrav1.WaitingForServiceReason, "Waiting to be gone: "+strings.Join(left, ", "))
		return nil
	}
	controllerutil.RemoveFinalizer(talosCluster, infrav1.TalosClusterFinalizer)

	return nil
}

// setWaiting says what the deletion of a TalosCluster waits for.
func setWaiting(talosCluster *infrav1.TalosCluster, reason, message string) {
	condition.Set(talosCluster, infrav1.DeletingCondition, condition.True(reason, message))
	condition.Set(talosCluster, infrav1.ReadyCondition, condition.False(infrav1.DeletingReason, message))
}

// hostToClusters maps a host to the TalosClusters of its namespace, whose
// failure domains it may change.
func (r *ClusterReconciler) hostToClusters(ctx context.Context, object client.Object) []ctrl.Request {
	return r.list(ctx, isAny, client.InNamespace(object.GetNamespace()))
}

// isOtherFailureDomain reports whether a host is in another failure domain now, or free
// in it, or not any more.
func isOtherFailureDomain(before, after client.Object) bool {
	old, isHost := before.(*infrav1.TalosHost)
	host, isHostToo := after.(*infrav1.TalosHost)

	return isHost && isHostToo && (old.Spec.FailureDomain != host.Spec.FailureDomain || isFree(old) != isFree(host))
}

// nodeToClusters maps a node of the management cluster to the TalosClusters whose
// failure domains are zones.
func (r *ClusterReconciler) nodeToClusters(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.list(ctx, func(cluster *infrav1.TalosCluster) bool { return cluster.Spec.Container != nil })
}

// isOtherPlace tells a node of which a TalosCluster knows another zone or network now.
func isOtherPlace(before, after client.Object) bool {
	old, isNode := before.(*corev1.Node)
	node, isNodeToo := after.(*corev1.Node)

	return isNode && isNodeToo && (old.Labels[corev1.LabelTopologyZone] != node.Labels[corev1.LabelTopologyZone] ||
		isKept(old) != isKept(node) || !slices.Equal(old.Spec.PodCIDRs, node.Spec.PodCIDRs))
}

// machineToClusters maps a TalosMachine to its TalosCluster: one on metal when it
// goes, a control plane machine in a Pod also when it comes or is lost.
func (r *ClusterReconciler) machineToClusters(ctx context.Context, object client.Object) []ctrl.Request {
	machine, ok := object.(*infrav1.TalosMachine)
	if !ok || (machine.DeletionTimestamp.IsZero() && machine.Spec.Container == nil) {
		return nil
	}

	return r.list(ctx, isAny, client.InNamespace(object.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetLabels()[clusterv1.ClusterNameLabel]})
}

func isAny(*infrav1.TalosCluster) bool { return true }

// list are the TalosClusters that are wanted, and have the label of the watch filter:
// what has woken them need not have it.
func (r *ClusterReconciler) list(ctx context.Context, wanted func(*infrav1.TalosCluster) bool, options ...client.ListOption) []ctrl.Request {
	clusters := &infrav1.TalosClusterList{}
	if err := r.Client.List(ctx, clusters, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list TalosClusters")
		return nil
	}
	var requests []ctrl.Request
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		isOurs := r.WatchFilterValue == "" || capilabels.HasWatchLabel(cluster, r.WatchFilterValue)
		if isOurs && wanted(cluster) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
		}
	}

	return requests
}
