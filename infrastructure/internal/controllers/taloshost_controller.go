// Package controllers reconciles TalosClusters, TalosMachines and TalosHosts.
package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// HostReconciler reconciles TalosHosts: it looks at machines that nobody has
// claimed, and wipes those that are given back. A claimed machine is followed
// by the controller of its TalosMachine. All fields but WatchFilterValue are
// required.
type HostReconciler struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Dialer opens connections to Talos machines.
	Dialer talosclient.Dialer
	// Credentials gives out client certificates.
	Credentials *credentials.Store
	// Clock tells the time.
	Clock clock.PassiveClock
	// Recorder records events.
	Recorder events.EventRecorder
	// Probes remembers when machines have answered.
	Probes *probe.Log
	// Counts counts releases.
	Counts *metrics.Counts
	// Tracker watches free machines.
	Tracker *machinewatch.Tracker
	// Changes wake the hosts whose free machine has changed.
	Changes <-chan event.GenericEvent
	// Pacing says when a machine is asked again; three times as often while it is being
	// wiped.
	Pacing pacing.Pacing
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=taloshosts,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=taloshosts/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=taloshosts/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller with mgr.
func (r *HostReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.Dialer == nil || r.Credentials == nil || r.Clock == nil ||
		r.Recorder == nil || r.Probes == nil || r.Counts == nil || r.Tracker == nil || r.Changes == nil || r.Pacing.Interval <= 0 {
		return errors.New("setting up the TalosHost controller: a required field is not set")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", "taloshost")
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&infrav1.TalosHost{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&infrav1.TalosMachine{}, handler.EnqueueRequestsFromMapFunc(machineToHost)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToHosts)).
		Watches(&infrav1.TalosHost{}, handler.EnqueueRequestsFromMapFunc(r.hostToDuplicates)).
		WatchesRawSource(source.Channel(r.Changes, &handler.EnqueueRequestForObject{})).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosHost controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &infrav1.TalosHost{})

	return nil
}

// Reconcile reconciles one TalosHost.
func (r *HostReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	host := &infrav1.TalosHost{}
	if err := r.Client.Get(ctx, req.NamespacedName, host); err != nil {
		if apierrors.IsNotFound(err) {
			r.Tracker.Forget(req.NamespacedName)
			r.Probes.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	s := &hostScope{host: host}
	if err := r.findConsumer(ctx, s, r.Client); err != nil {
		return ctrl.Result{}, err
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, s.cluster, host, infrav1.TalosHostFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(host, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("preparing the patch: %w", err)
	}
	defer func() {
		if err := r.reconcileStatus(ctx, s, helper); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		result, reterr = r.pace.AfterConflict(ctx, req, result, reterr)
	}()

	return r.reconcileHost(ctx, s)
}

// reconcileHost does what the records in the spec ask for; the status is never
// asked, because it may be lost.
func (r *HostReconciler) reconcileHost(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	spec := &s.host.Spec
	deleting := !s.host.DeletionTimestamp.IsZero()
	isFree := !deleting && spec.Release.Policy == "" && spec.ConsumerRef.Name == "" && spec.Handover.ProviderID == ""
	if !isFree {
		r.Tracker.Forget(client.ObjectKeyFromObject(s.host))
	}
	switch {
	case taloshost.IsMoved(s.host):
		s.available = condition.False(infrav1.DeletedForMoveReason, "The host was moved to another management cluster")
		s.deletion = condition.True(infrav1.DeletedForMoveReason, "The host was moved to another management cluster; its machine is left alone here")
		return ctrl.Result{}, nil
	case spec.Release.Policy != "" && !deleting && s.consumerMovedOrMissing():
		s.setClaimed()
		s.available = condition.Falsef(infrav1.HostReleasingReason, "TalosMachine %s, for which the machine is re-provisioned, is missing, or was moved to another management cluster; the machine is left alone", spec.ConsumerRef.Name)
		return ctrl.Result{}, nil
	case spec.Release.Policy != "":
		return r.reconcileRelease(ctx, s)
	case deleting:
		return ctrl.Result{}, r.reconcileDelete(ctx, s)
	case spec.ConsumerRef.Name != "":
		s.setClaimed()
		return ctrl.Result{}, nil
	case spec.Handover.ProviderID != "":
		s.setError(infrav1.HostOrphanedReason, "The machine was configured by this provider, but no TalosMachine has claimed it and no release was asked for; delete the host, and wipe the machine by hand")
		return ctrl.Result{}, nil
	}

	return r.reconcileFree(ctx, s)
}

// reconcileDelete lets a host object go. Its machine is never wiped because of
// that: only the TalosMachine asks for a release.
func (r *HostReconciler) reconcileDelete(ctx context.Context, s *hostScope) error {
	// The cache may not know yet of a TalosMachine, or of its provider ID.
	if err := r.findConsumer(ctx, s, r.APIReader); err != nil {
		return err
	}
	if s.consumer == nil {
		return r.removeFinalizer(ctx, s, s.host.Spec.Handover.ProviderID != "")
	}
	s.setClaimed()
	s.deletion = condition.True(infrav1.DeletingReason, "Waiting for TalosMachine "+s.consumer.Name+" to give the host back")

	return nil
}

// removeFinalizer ends the life of a host object.
func (r *HostReconciler) removeFinalizer(ctx context.Context, s *hostScope, unwiped bool) error {
	if err := r.Credentials.DeleteAdmin(ctx, s.host); err != nil {
		return err
	}
	if unwiped {
		r.Recorder.Eventf(s.host, nil, corev1.EventTypeWarning, infrav1.EventUnwiped, "Delete", "The host goes although its machine is not proven wiped")
	}
	before := s.host.DeepCopy()
	controllerutil.RemoveFinalizer(s.host, infrav1.TalosHostFinalizer)
	s.gone = true
	if err := r.Client.Patch(ctx, s.host, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	if unwiped {
		r.Counts.Release(s.host.Namespace, metrics.ReleaseDeleted)
	}

	return nil
}

// findConsumer finds the TalosMachine that has claimed the host, and its
// Cluster.
func (r *HostReconciler) findConsumer(ctx context.Context, s *hostScope, reader client.Reader) error {
	ref := s.host.Spec.ConsumerRef
	s.consumer, s.otherConsumer = nil, false
	if ref.Name == "" {
		return nil
	}
	consumer := &infrav1.TalosMachine{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: s.host.Namespace, Name: ref.Name}, consumer); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading TalosMachine %s: %w", ref.Name, err)
	}
	if consumer.Spec.ProviderID != ref.ProviderID {
		s.otherConsumer = true
		return nil
	}
	s.consumer = consumer
	cluster, err := util.GetClusterFromMetadata(ctx, r.Client, consumer.ObjectMeta)
	if err != nil && !errors.Is(err, util.ErrNoCluster) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the Cluster of TalosMachine %s: %w", ref.Name, err)
	}
	s.cluster = cluster

	return nil
}

// HostOf is the TalosHost of a key, for the events of a Watcher.
func HostOf(key client.ObjectKey) client.Object {
	return &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// hostToDuplicates maps a host to those that stand for the same machine, or were found
// to do so with another: what they may do depends on each other.
func (r *HostReconciler) hostToDuplicates(ctx context.Context, object client.Object) []ctrl.Request {
	host, ok := object.(*infrav1.TalosHost)
	if !ok {
		return nil
	}
	others, err := r.hosts().Affected(ctx, host)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list TalosHosts")
		return nil
	}
	var requests []ctrl.Request
	for i := range others {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&others[i])})
	}

	return requests
}

func machineToHost(_ context.Context, object client.Object) []ctrl.Request {
	machine, ok := object.(*infrav1.TalosMachine)
	if !ok || machine.Spec.HostRef.Name == "" {
		return nil
	}

	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.HostRef.Name}}}
}

// clusterToHosts maps a Cluster to the hosts of its TalosMachines: they are
// paused with it.
func (r *HostReconciler) clusterToHosts(ctx context.Context, object client.Object) []ctrl.Request {
	machines := &infrav1.TalosMachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(object.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosMachines of a Cluster")
		return nil
	}
	var requests []ctrl.Request
	for i := range machines.Items {
		requests = append(requests, machineToHost(ctx, &machines.Items[i])...)
	}

	return requests
}
