package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/content"
	"github.com/capi-talos/capi-talos/addons/internal/metrics"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/values"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

const (
	// releaseControllerName names the controller in logs, events and metrics.
	releaseControllerName = "talosclusteraddonrelease"
	// probeFailures is how long a cluster may not answer before its releases are told.
	probeFailures = 2 * time.Minute
)

// Connection is how the releases of one workload cluster are acted on.
type Connection struct {
	Helm    release.Helm
	Objects release.Objects
}

// Connect connects to a workload cluster. It returns clustercache.ErrClusterNotConnected
// while that does not answer.
type Connect func(ctx context.Context, cluster types.NamespacedName, ignore []addonv1.DriftIgnoreRule) (Connection, error)

// ReleaseReconciler reconciles TalosClusterAddonReleases. All fields but WatchFilterValue
// are required.
type ReleaseReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// ClusterCache tells when the API servers of clusters come and go.
	ClusterCache clustercache.ClusterCache
	// Connect connects to them.
	Connect Connect
	// Content reads what users refer to.
	Content *content.Reader
	// Charts are those of all sources.
	Charts Charts
	// Jobs carry out what takes long.
	Jobs *jobs.Jobs[addonv1.ReleaseAction, release.Result]
	// Metrics count what is done.
	Metrics *metrics.Metrics
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random spreads what begins together.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// WatchFilterValue restricts the controller to objects with this value of the
	// watch-filter label; empty means all.
	WatchFilterValue string

	pace  reconciliation.Pace
	holds *holds
}

// +kubebuilder:rbac:groups=addons.cluster.x-k8s.io,resources=talosclusteraddonreleases/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io;controlplane.cluster.x-k8s.io,resources=*,verbs=get
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get

// SetupWithManager registers the controller with mgr.
func (r *ReleaseReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.ClusterCache == nil || r.Connect == nil || r.Content == nil || r.Charts == nil || r.Jobs == nil ||
		r.Metrics == nil || r.Clock == nil || r.Random == nil || r.Recorder == nil {
		return errors.New("setting up the TalosClusterAddonRelease controller: a required field is nil")
	}
	r.init()
	log := ctrl.LoggerFrom(ctx).WithValues("controller", releaseControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&addonv1.TalosClusterAddonRelease{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&addonv1.TalosClusterAddon{}, handler.EnqueueRequestsFromMapFunc(r.addonToReleases), releasable()).
		Watches(&addonv1.TalosClusterAddonRelease{}, handler.EnqueueRequestsFromMapFunc(r.releaseToReleases), awaited()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToReleases)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.contentToReleases)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.contentToReleases)).
		WatchesRawSource(r.ClusterCache.GetClusterSource(releaseControllerName, r.clusterToReleases, clustercache.WatchForProbeFailure(probeFailures))).
		WatchesRawSource(source.Channel(r.Jobs.Events(), handler.EnqueueRequestsFromMapFunc(r.jobToRelease))).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosClusterAddonRelease controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &addonv1.TalosClusterAddonRelease{})

	return nil
}

func (r *ReleaseReconciler) init() { r.holds = newHolds(r.Clock) }

// releaseScope is what one reconcile knows about one TalosClusterAddonRelease.
type releaseScope struct {
	release *addonv1.TalosClusterAddonRelease
	// addon and cluster are nil when they are gone.
	addon   *addonv1.TalosClusterAddon
	cluster *clusterv1.Cluster

	// reachable, released and deleting are what the conditions say.
	reachable, released, deleting condition.Finding
	// values are those of the chart, and hidden what of them must not be seen.
	values map[string]any
	hidden values.Hidden
	// digest is that of what is asked for; empty while that is not known.
	digest string
	// readiness says what is waited for until the objects of the release work; nil when
	// that was not looked for.
	readiness *string
	// decided is what a job has said that could do nothing.
	decided condition.Finding
	// removed reports whether the release was uninstalled, or there was none.
	removed bool
	// wasPaused reports whether nobody has looked at it since it was paused.
	wasPaused bool
	// gone reports whether the object was let go.
	gone bool
	// ended is the result of a job that was taken in; nil when there was none.
	ended *release.Result
	// next is how soon to look again; 0 when nothing is waited for.
	next time.Duration
}

// again asks for a look after d at the latest.
func (s *releaseScope) again(d time.Duration) {
	if d > 0 && (s.next == 0 || d < s.next) {
		s.next = d
	}
}

func (s *releaseScope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.release) }

// isOfAddon reports whether the add-on has made the release: one that somebody else has
// written may name any release, and a Cluster that the add-on does not select.
func (s *releaseScope) isOfAddon() bool {
	return metav1.IsControlledBy(s.release, s.addon) && s.release.Name == naming.Release(s.addon.Name, s.release.Spec.ClusterName) &&
		targetOf(s.release) == naming.Target(s.addon)
}

// Reconcile reconciles one TalosClusterAddonRelease.
func (r *ReleaseReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	s := &releaseScope{release: &addonv1.TalosClusterAddonRelease{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.release); err != nil {
		if apierrors.IsNotFound(err) {
			r.Jobs.Drop(req.NamespacedName)
			r.holds.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	s.wasPaused = conditions.IsTrue(s.release, clusterv1.PausedCondition)
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KRef(s.release.Namespace, s.release.Spec.ClusterName)))
	if err := r.gatherOwners(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, s.cluster, s.release, addonv1.ReleaseFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	before := s.release.DeepCopy()
	defer func() {
		if s.gone {
			r.Jobs.Drop(req.NamespacedName)
		} else if err := r.reconcileStatus(ctx, s, before); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		} else if s.ended != nil {
			r.Jobs.Forget(req.NamespacedName, s.ended)
		}
		if reterr != nil {
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		}
	}()
	r.takeResult(ctx, s)
	// The jobs alone know what is under way.
	s.release.Status.Action, _ = r.Jobs.Running(s.key())
	act := r.reconcileNormal
	if !s.release.DeletionTimestamp.IsZero() {
		act = r.reconcileDelete
	}
	err := act(ctx, s)

	return requeue.After(r.Random, s.next), err
}

// reconcileNormal makes the release what is asked for, when everything that it waits for
// is there.
func (r *ReleaseReconciler) reconcileNormal(ctx context.Context, s *releaseScope) error {
	if s.addon == nil || s.cluster == nil || !s.cluster.DeletionTimestamp.IsZero() || annotations.HasPaused(s.addon) {
		// It goes with its add-on, and the add-on's controller deletes it with the Cluster.
		return nil
	}
	if !s.isOfAddon() {
		s.released = condition.False(addonv1.ReleaseConflictReason, "the TalosClusterAddon has not made it; delete it")
		return nil
	}
	connected, err := r.gatherConnection(ctx, s)
	if err != nil {
		return err
	}
	if proceed, err := r.gatherDigest(ctx, s); err != nil || !proceed {
		return err
	}
	if isPlanned(s.addon) {
		return r.plan(ctx, s, connected)
	}
	s.release.Status.Plan = addonv1.ReleasePlan{}
	if proceed, err := r.gate(ctx, s); err != nil || !proceed || !connected {
		return err
	}

	return r.act(ctx, s)
}

// gatherOwners reads the add-on and the Cluster.
func (r *ReleaseReconciler) gatherOwners(ctx context.Context, s *releaseScope) error {
	addon, cluster := &addonv1.TalosClusterAddon{}, &clusterv1.Cluster{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.release.Namespace, Name: s.release.Spec.AddonName}, addon)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the TalosClusterAddon: %w", err)
	}
	if err == nil {
		s.addon = addon
	}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: s.release.Namespace, Name: s.release.Spec.ClusterName}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the Cluster: %w", err)
	}
	if err == nil {
		s.cluster = cluster
	}

	return nil
}

// addonToReleases maps an add-on to its releases.
func (r *ReleaseReconciler) addonToReleases(ctx context.Context, object client.Object) []ctrl.Request {
	return r.releasesThat(ctx, object.GetNamespace(), func(release *addonv1.TalosClusterAddonRelease) bool {
		return release.Spec.AddonName == object.GetName()
	})
}

// releaseToReleases maps a release to the others of its cluster that may wait for it. Where
// its add-on is gone, nobody knows who does, and all are asked that are not ready.
func (r *ReleaseReconciler) releaseToReleases(ctx context.Context, object client.Object) []ctrl.Request {
	changed, ok := object.(*addonv1.TalosClusterAddonRelease)
	if !ok {
		return nil
	}
	list := &addonv1.TalosClusterAddonList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosClusterAddons that may wait for a release", "object", klog.KObj(object))
		return nil
	}
	addons := map[string]*addonv1.TalosClusterAddon{}
	for i := range list.Items {
		addons[list.Items[i].Name] = &list.Items[i]
	}
	other := addons[changed.Spec.AddonName]

	return r.releasesThat(ctx, object.GetNamespace(), func(release *addonv1.TalosClusterAddonRelease) bool {
		addon := addons[release.Spec.AddonName]

		return release.Name != changed.Name && !order.IsCurrent(release) && addon != nil && (other == nil || order.MayWaitFor(addon, other, list.Items))
	}, client.MatchingLabels{clusterv1.ClusterNameLabel: changed.Spec.ClusterName})
}

// clusterToReleases maps a Cluster to its releases.
func (r *ReleaseReconciler) clusterToReleases(ctx context.Context, object client.Object) []ctrl.Request {
	return r.releasesThat(ctx, object.GetNamespace(), func(*addonv1.TalosClusterAddonRelease) bool { return true },
		client.MatchingLabels{clusterv1.ClusterNameLabel: object.GetName()})
}

// contentToReleases maps a Secret or ConfigMap to the releases that take values from it.
func (r *ReleaseReconciler) contentToReleases(ctx context.Context, object client.Object) []ctrl.Request {
	kind := addonv1.ConfigMapValues
	if _, isSecret := object.(*corev1.Secret); isSecret {
		kind = addonv1.SecretValues
	}
	addons := &addonv1.TalosClusterAddonList{}
	if err := r.Client.List(ctx, addons, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosClusterAddons of an object", "object", klog.KObj(object))
		return nil
	}
	users := map[string]bool{}
	for i := range addons.Items {
		for _, from := range addons.Items[i].Spec.ValuesFrom {
			if from.Kind == kind && from.Name == object.GetName() {
				users[addons.Items[i].Name] = true
			}
		}
	}
	if len(users) == 0 {
		return nil
	}

	return r.releasesThat(ctx, object.GetNamespace(), func(release *addonv1.TalosClusterAddonRelease) bool { return users[release.Spec.AddonName] })
}

func (r *ReleaseReconciler) releasesThat(
	ctx context.Context, namespace string, are func(*addonv1.TalosClusterAddonRelease) bool, options ...client.ListOption,
) []ctrl.Request {
	releases := &addonv1.TalosClusterAddonReleaseList{}
	if err := r.Client.List(ctx, releases, append(options, client.InNamespace(namespace))...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list TalosClusterAddonReleases")
		return nil
	}

	return reconciliation.Requests(releases.Items, are)
}
