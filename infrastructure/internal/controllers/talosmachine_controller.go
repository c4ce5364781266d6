package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// MachineReconciler reconciles TalosMachines. All fields but WatchFilterValue
// are required.
type MachineReconciler struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Metal and Container are the ways of getting machines that the specification
	// calls so.
	Metal, Container backends.Backend
	// Changes wake the TalosMachines whose machine has changed.
	Changes <-chan event.GenericEvent
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachines/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs,verbs=list;watch

// SetupWithManager registers the controller with mgr.
func (r *MachineReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.Metal == nil || r.Container == nil || r.Changes == nil {
		return errors.New("setting up the TalosMachine controller: a required field is nil")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", "talosmachine")
	toMachine := util.MachineToInfrastructureMapFunc(infrav1.GroupVersion.WithKind(infrav1.TalosMachineKind))
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&infrav1.TalosMachine{}).
		// What is made for a machine has its label of the watch filter.
		Owns(&corev1.Pod{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.PersistentVolumeClaim{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(toMachine)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToMachines)).
		Watches(&infrav1.TalosHost{}, handler.EnqueueRequestsFromMapFunc(r.hostToMachines)).
		Watches(&infrav1.TalosMachine{}, handler.EnqueueRequestsFromMapFunc(r.controlPlaneToWorkers), changes(getsHost)).
		WatchesRawSource(source.Channel(r.Changes, &handler.EnqueueRequestForObject{})).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosMachine controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &infrav1.TalosMachine{})

	return nil
}

// Reconcile reconciles one TalosMachine.
func (r *MachineReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	talosMachine := &infrav1.TalosMachine{}
	if err := r.Client.Get(ctx, req.NamespacedName, talosMachine); err != nil {
		if apierrors.IsNotFound(err) {
			err = kerrors.NewAggregate([]error{r.Metal.Gone(ctx, req.NamespacedName), r.Container.Gone(ctx, req.NamespacedName)})
		}
		return r.pace.AfterConflict(ctx, req, ctrl.Result{}, err)
	}
	scope, err := r.newScope(ctx, talosMachine)
	if err != nil {
		return ctrl.Result{}, err
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, scope.Cluster, talosMachine, infrav1.TalosMachineFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	if err := r.upgradeConditions(ctx, talosMachine); err != nil {
		return r.pace.AfterConflict(ctx, req, ctrl.Result{}, err)
	}
	defer func() {
		if err := r.reconcileStatus(ctx, scope); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		if reterr == nil && onlyWaits(scope) {
			r.pace.OnlyWaits(req)
		}
		result, reterr = r.pace.AfterConflict(ctx, req, result, reterr)
	}()

	if !talosMachine.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, scope)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KRef(talosMachine.Namespace, talosMachine.Labels[clusterv1.ClusterNameLabel])))
	switch {
	case scope.Machine == nil || scope.Cluster == nil:
		ctrl.LoggerFrom(ctx).Info("Waiting for the Machine controller to set the owner reference")
		return ctrl.Result{}, nil
	case !ptr.Deref(scope.Cluster.Status.Initialization.InfrastructureProvisioned, false):
		scope.Observed.Claim = condition.False(infrav1.WaitingForClusterInfrastructureReason, "Waiting for the infrastructure of the Cluster to be provisioned")
		return ctrl.Result{}, nil
	}
	if refused := refusal(scope); refused.Reason != "" {
		scope.Observed.Claim = refused
		return ctrl.Result{}, nil
	}

	return r.backend(talosMachine).Reconcile(ctx, scope)
}

// backend is the way of getting a machine that its specification names.
func (r *MachineReconciler) backend(machine *infrav1.TalosMachine) backends.Backend {
	if machine.Spec.Container != nil {
		return r.Container
	}

	return r.Metal
}

// refusal says why a TalosMachine gets no machine; it is zero when it does. A second
// machine of one name would, on the control plane, push the etcd member of the first one
// out, as Talos does it: past all care for the quorum.
func refusal(scope *backends.Scope) condition.Finding {
	if scope.Machine.Spec.ProviderID != "" && scope.TalosMachine.Spec.ProviderID == "" {
		reason := infrav1.HostLostReason
		if scope.TalosMachine.Spec.Container != nil {
			reason = infrav1.PodLostReason
		}
		return condition.False(reason, "The Machine had another TalosMachine of this name, which is gone, and gets no second machine: "+
			"delete the Machine, or let a MachineHealthCheck replace it")
	}
	if mismatch := clusterMismatch(scope); mismatch != "" {
		return condition.False(infrav1.ClusterMismatchReason, mismatch)
	}

	return condition.Finding{}
}

// clusterMismatch says why a control plane machine cannot be one of its Cluster;
// empty when it can. One that has run is one.
func clusterMismatch(scope *backends.Scope) string {
	if scope.TalosCluster == nil || !util.IsControlPlaneMachine(scope.Machine) || ptr.Deref(scope.TalosMachine.Status.Initialization.Provisioned, false) {
		return ""
	}
	inPods, inPod := scope.TalosCluster.Spec.Container != nil, scope.TalosMachine.Spec.Container != nil
	switch {
	case inPods && !inPod:
		return "TalosCluster " + scope.TalosCluster.Name + " makes a Service for a control plane in Pods, which leads to no machine on metal: " +
			"use a TalosMachineTemplate with container for the control plane, or a TalosCluster with an endpoint of your own. Workers may be of either kind"
	case !inPods && inPod:
		return "TalosCluster " + scope.TalosCluster.Name + " makes no Service, at which a control plane in Pods could be reached: " +
			"use a TalosCluster with container, or a TalosMachineTemplate with metal for the control plane. Workers may be of either kind"
	}

	return ""
}

// onlyWaits reports whether a TalosMachine waits for the Machine, its Cluster or the
// bootstrap provider, and has nothing yet.
func onlyWaits(scope *backends.Scope) bool {
	reason := scope.Observed.Claim.Reason
	waits := reason == infrav1.WaitingForClusterInfrastructureReason || reason == infrav1.WaitingForBootstrapDataReason

	return scope.TalosMachine.DeletionTimestamp.IsZero() && (waits || scope.Machine == nil || scope.Cluster == nil)
}

// TalosMachineOf is the TalosMachine of a key, for the events of a Watcher.
func TalosMachineOf(key client.ObjectKey) client.Object {
	return &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// newScope reads what the TalosMachine belongs to, as far as it is there.
func (r *MachineReconciler) newScope(ctx context.Context, talosMachine *infrav1.TalosMachine) (*backends.Scope, error) {
	scope := &backends.Scope{TalosMachine: talosMachine}
	machine, err := util.GetOwnerMachine(ctx, r.Client, talosMachine.ObjectMeta)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading the owner Machine: %w", err)
	}
	scope.Machine = machine
	name := talosMachine.Labels[clusterv1.ClusterNameLabel]
	if machine != nil {
		name = machine.Spec.ClusterName
	}
	if name == "" {
		return scope, nil
	}
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: talosMachine.Namespace, Name: name}, cluster); err != nil {
		if apierrors.IsNotFound(err) {
			return scope, nil
		}
		return nil, fmt.Errorf("reading Cluster %s: %w", name, err)
	}
	scope.Cluster = cluster
	scope.TalosCluster, err = r.talosCluster(ctx, cluster)

	return scope, err
}

// talosCluster is the infrastructure of a Cluster; nil when it is of another kind, or
// not there.
func (r *MachineReconciler) talosCluster(ctx context.Context, cluster *clusterv1.Cluster) (*infrav1.TalosCluster, error) {
	ref := cluster.Spec.InfrastructureRef
	if ref.APIGroup != infrav1.GroupVersion.Group || ref.Kind != infrav1.TalosClusterKind {
		return nil, nil //nolint:nilnil // Documented above.
	}
	found := &infrav1.TalosCluster{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, found); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // Documented above.
		}
		return nil, fmt.Errorf("reading TalosCluster %s: %w", ref.Name, err)
	}

	return found, nil
}

// reconcileDelete gives the machine back, and lets the TalosMachine go then.
func (r *MachineReconciler) reconcileDelete(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	talosMachine := scope.TalosMachine
	if !controllerutil.ContainsFinalizer(talosMachine, infrav1.TalosMachineFinalizer) {
		return ctrl.Result{}, nil
	}
	if taloshost.IsMoved(talosMachine) {
		scope.Observed.Deleting = condition.True(infrav1.DeletedForMoveReason, "The TalosMachine was moved to another management cluster")
		return ctrl.Result{}, nil
	}
	deletion, result, err := r.backend(talosMachine).Delete(ctx, scope)
	if err != nil || deletion != backends.Released {
		return result, err
	}
	scope.Observed.Released = true

	return ctrl.Result{}, nil
}

// clusterToMachines maps a Cluster to its TalosMachines.
func (r *MachineReconciler) clusterToMachines(ctx context.Context, object client.Object) []ctrl.Request {
	return r.list(ctx, func(*infrav1.TalosMachine) bool { return true },
		client.InNamespace(object.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetName()})
}

// hostToMachines maps a host to the TalosMachine that has claimed it and to those
// that wait to be re-provisioned, and a free one to all that wait for a host.
func (r *MachineReconciler) hostToMachines(ctx context.Context, object client.Object) []ctrl.Request {
	host, ok := object.(*infrav1.TalosHost)
	if !ok {
		return nil
	}
	if name := host.Spec.ConsumerRef.Name; name != "" {
		waiting := r.list(ctx, func(machine *infrav1.TalosMachine) bool {
			return machine.Name != name && reprovision.IsWanted(machine)
		}, client.InNamespace(host.Namespace))
		return append(waiting, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: host.Namespace, Name: name}})
	}

	return r.list(ctx, func(machine *infrav1.TalosMachine) bool {
		return machine.Spec.Metal != nil && (machine.Spec.HostRef.Claim != infrav1.HostClaimBound || machine.Spec.HostRef.Name == host.Name)
	}, client.InNamespace(host.Namespace))
}

// controlPlaneToWorkers maps a TalosMachine of the control plane to those of its Cluster that
// may have left the hosts to it.
func (r *MachineReconciler) controlPlaneToWorkers(ctx context.Context, object client.Object) []ctrl.Request {
	if _, ok := object.GetLabels()[clusterv1.MachineControlPlaneLabel]; !ok {
		return nil
	}

	return r.list(ctx, func(machine *infrav1.TalosMachine) bool {
		return machine.Spec.Metal != nil && machine.Spec.HostRef.Claim != infrav1.HostClaimBound
	}, client.InNamespace(object.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetLabels()[clusterv1.ClusterNameLabel]})
}

// getsHost reports whether a TalosMachine has its host now, and had none before.
func getsHost(before, after client.Object) bool {
	old, wasMachine := before.(*infrav1.TalosMachine)
	machine, isMachine := after.(*infrav1.TalosMachine)

	return wasMachine && isMachine && old.Spec.HostRef.Claim != infrav1.HostClaimBound && machine.Spec.HostRef.Claim == infrav1.HostClaimBound
}

// list are the TalosMachines that are wanted. They are those of the cache, and only read:
// the events of many hosts ask for them.
func (r *MachineReconciler) list(ctx context.Context, wanted func(*infrav1.TalosMachine) bool, options ...client.ListOption) []ctrl.Request {
	machines := &infrav1.TalosMachineList{}
	if err := r.Client.List(ctx, machines, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list TalosMachines")
		return nil
	}
	var requests []ctrl.Request
	for i := range machines.Items {
		if wanted(&machines.Items[i]) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&machines.Items[i])})
		}
	}

	return requests
}
