// Package controllers reconciles TalosConfigs: it makes the secrets of a
// cluster once, renders machine configurations, and reports.
package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/collections"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// controllerName names the controller in logs, events and metrics.
const controllerName = "talosconfig"

// Reconciler reconciles TalosConfigs. All fields but WatchFilterValue are
// required.
type Reconciler struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// SecretCachingClient reads Secrets from the cache.
	SecretCachingClient client.Client
	// Clock tells the time.
	Clock clock.PassiveClock
	// Recorder records events.
	Recorder events.EventRecorder
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
}

// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs/status,verbs=patch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=list;watch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes,verbs=get
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller with mgr.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.SecretCachingClient == nil || r.Clock == nil || r.Recorder == nil {
		return errors.New("setting up the TalosConfig controller: a required field is nil")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", controllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&bootstrapv1.TalosConfig{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(r.machineToConfigs)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToConfigs)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.secretToConfigs)).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosConfig controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &bootstrapv1.TalosConfig{})

	return nil
}

// Reconcile reconciles one TalosConfig.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	config := &bootstrapv1.TalosConfig{}
	if err := r.Client.Get(ctx, req.NamespacedName, config); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !config.DeletionTimestamp.IsZero() {
		// What it owns goes with it; the secrets of the cluster go with the Cluster.
		return ctrl.Result{}, nil
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, config.ObjectMeta)
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if machine == nil {
		ctrl.LoggerFrom(ctx).Info("Waiting for the Machine controller to set the owner reference")
		r.pace.OnlyWaits(req)
		return ctrl.Result{}, nil
	}
	cluster, err := util.GetClusterByName(ctx, r.Client, machine.Namespace, machine.Spec.ClusterName)
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KObj(cluster), "Machine", klog.KObj(machine)))

	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, cluster, config, ""); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(config, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("preparing the patch: %w", err)
	}
	s := &scope{cluster: cluster, machine: machine, config: config, controlPlane: util.IsControlPlaneMachine(machine)}
	defer func() {
		if err := r.reconcileStatus(ctx, s, helper, reterr); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		if reterr == nil && s.waits {
			r.pace.OnlyWaits(req)
		}
		result, reterr = r.pace.AfterConflict(ctx, req, result, reterr)
	}()

	return r.reconcileNormal(ctx, s)
}

// reconcileNormal makes what the config promises. One step does not hide the
// state of another: each reports by itself.
func (r *Reconciler) reconcileNormal(ctx context.Context, s *scope) (ctrl.Result, error) {
	var errs []error
	for _, step := range []func(context.Context, *scope) error{
		r.reconcileCertificates,
		r.reconcileDataSecret,
		r.reconcileClientConfig,
		r.reconcileOwnership,
	} {
		errs = append(errs, step(ctx, s))
	}
	if err := kerrors.NewAggregate(errs); err != nil {
		return ctrl.Result{}, err
	}

	return ctrl.Result{RequeueAfter: max(0, s.renewAfter)}, nil
}

// requestOf is the request for the TalosConfig of a Machine; none when it has
// another kind of bootstrap configuration.
func requestOf(machine *clusterv1.Machine) []ctrl.Request {
	ref := machine.Spec.Bootstrap.ConfigRef
	if ref.Kind != bootstrapv1.TalosConfigKind || ref.APIGroup != bootstrapv1.GroupVersion.Group {
		return nil
	}

	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}}}
}

// machineToConfigs maps a Machine to its TalosConfig, and a control plane
// Machine to those of all its peers, whose client configuration names it.
func (r *Reconciler) machineToConfigs(ctx context.Context, object client.Object) []ctrl.Request {
	machine, ok := object.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	if !util.IsControlPlaneMachine(machine) {
		return requestOf(machine)
	}

	return r.configsOf(ctx, machine.Namespace, machine.Spec.ClusterName, collections.ControlPlaneMachines(machine.Spec.ClusterName))
}

// clusterToConfigs maps a Cluster to the TalosConfigs of its Machines.
func (r *Reconciler) clusterToConfigs(ctx context.Context, object client.Object) []ctrl.Request {
	return r.configsOf(ctx, object.GetNamespace(), object.GetName())
}

// secretToConfigs maps a Secret with key material of a cluster to the
// TalosConfigs of its control plane, which look after it.
func (r *Reconciler) secretToConfigs(ctx context.Context, object client.Object) []ctrl.Request {
	cluster := object.GetLabels()[clusterv1.ClusterNameLabel]
	switch object.GetName() {
	case secrets.BundleName(cluster):
		// Those of workers wait for it, too.
		return r.configsOf(ctx, object.GetNamespace(), cluster)
	case secrets.CAName(cluster), secrets.TalosconfigName(cluster):
		return r.configsOf(ctx, object.GetNamespace(), cluster, collections.ControlPlaneMachines(cluster))
	default:
		return nil
	}
}

func (r *Reconciler) configsOf(ctx context.Context, namespace, cluster string, filters ...collections.Func) []ctrl.Request {
	if cluster == "" {
		return nil
	}
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client,
		&clusterv1.Cluster{ObjectMeta: objectMeta(namespace, cluster)}, filters...)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to list the Machines of a Cluster", "Cluster", klog.KRef(namespace, cluster))
		}
		return nil
	}
	var requests []ctrl.Request
	for _, machine := range machines {
		requests = append(requests, requestOf(machine)...)
	}

	return requests
}
