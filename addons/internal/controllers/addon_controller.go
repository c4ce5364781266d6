// Package controllers reconciles TalosClusterAddons and TalosClusterAddonReleases: one
// finds charts and the Clusters that get them, the other brings a chart to one Cluster.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/content"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

// addonControllerName names the controller in logs, events and metrics.
const addonControllerName = "talosclusteraddon"

// addonTimeout is how long a reconcile of an add-on may take. Cluster API's default of a minute is
// less than a slow source may, and then nobody could write why there is no chart.
const addonTimeout = source.ResolveTimeout + time.Minute

// Charts finds and fetches the charts of sources.
type Charts interface {
	// Resolve finds the newest chart that a source allows.
	Resolve(ctx context.Context, from addonv1.AddonSource, access source.Access, known addonv1.ChartStatus) (addonv1.ChartStatus, error)
	// Take says what the archive of a ConfigMap is.
	Take(archive []byte) (addonv1.ChartStatus, error)
	// Archive returns the archive of a chart that a source was resolved to.
	Archive(ctx context.Context, from addonv1.AddonSource, access source.Access, chart addonv1.ChartStatus) ([]byte, error)
}

// AddonReconciler reconciles TalosClusterAddons. All fields but WatchFilterValue are
// required.
type AddonReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Content reads what users refer to.
	Content *content.Reader
	// Charts are those of all sources.
	Charts Charts
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random spreads what begins together.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// WatchFilterValue restricts the controller to objects with this value of the
	// watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
	// tries are the last tries to resolve a source.
	tries *tries
}

// +kubebuilder:rbac:groups=addons.cluster.x-k8s.io,resources=talosclusteraddons,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=addons.cluster.x-k8s.io,resources=talosclusteraddons/status,verbs=patch
// +kubebuilder:rbac:groups=addons.cluster.x-k8s.io,resources=talosclusteraddons/finalizers,verbs=update
// +kubebuilder:rbac:groups=addons.cluster.x-k8s.io,resources=talosclusteraddonreleases,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller with mgr.
func (r *AddonReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.Content == nil || r.Charts == nil || r.Clock == nil || r.Random == nil || r.Recorder == nil {
		return errors.New("setting up the TalosClusterAddon controller: a required field is nil")
	}
	r.init()
	options.ReconciliationTimeout = addonTimeout
	log := ctrl.LoggerFrom(ctx).WithValues("controller", addonControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&addonv1.TalosClusterAddon{}).
		Owns(&addonv1.TalosClusterAddonRelease{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.addonsOfNamespace), selectable()).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.contentToAddons)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.contentToAddons)).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosClusterAddon controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &addonv1.TalosClusterAddon{})

	return nil
}

func (r *AddonReconciler) init() { r.tries = newTries(r.Clock) }

// addonScope is what one reconcile knows about one TalosClusterAddon.
type addonScope struct {
	addon *addonv1.TalosClusterAddon

	// chart is what the source was resolved to, and chartFound what its condition says.
	chart      addonv1.ChartStatus
	chartFound condition.Finding
	// clusters are those that are selected, and releases those of the add-on. isGathered
	// reports whether both are known.
	clusters   []clusterv1.Cluster
	releases   []addonv1.TalosClusterAddonRelease
	isGathered bool
	// conflicts are releases of the same name that are not the add-on's.
	conflicts []string
	// refused is what the API server has refused, by the name of the Cluster.
	refused map[string]string
	// stopped reports whether a change is brought to no further cluster.
	stopped bool
	// waitsFor says what a deletion waits for.
	waitsFor string
	// next is how soon to look again; 0 when nothing is waited for.
	next time.Duration
}

// again asks for a look after d at the latest.
func (s *addonScope) again(d time.Duration) {
	if d > 0 && (s.next == 0 || d < s.next) {
		s.next = d
	}
}

// Reconcile reconciles one TalosClusterAddon.
func (r *AddonReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	addon := &addonv1.TalosClusterAddon{}
	if err := r.Client.Get(ctx, req.NamespacedName, addon); err != nil {
		r.tries.forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, nil, addon, addonv1.AddonFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	before, s := addon.DeepCopy(), &addonScope{addon: addon, refused: map[string]string{}}
	defer func() {
		if err := r.reconcileStatus(ctx, s, before, reterr); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		if reterr != nil {
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		}
	}()
	if !addon.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.reconcileDelete(ctx, s)
	}
	// A source may take minutes, and none of the releases waits for what it says now.
	err := kerrors.NewAggregate([]error{r.reconcileReleases(ctx, s), r.reconcileSource(ctx, s)})

	return requeue.After(r.Random, s.next), err
}

// reconcileDelete deletes the releases, and lets the add-on go when they are gone.
func (r *AddonReconciler) reconcileDelete(ctx context.Context, s *addonScope) error {
	if err := r.gatherReleases(ctx, s); err != nil {
		return err
	}
	var errs []error
	for i := range s.releases {
		errs = append(errs, r.deleteRelease(ctx, s, &s.releases[i]))
	}
	if len(s.releases) > 0 {
		s.waitsFor = fmt.Sprintf("%d TalosClusterAddonReleases are being removed: %s", len(s.releases), namesOf(s.releases))
		return kerrors.NewAggregate(errs)
	}
	before := s.addon.DeepCopy()
	controllerutil.RemoveFinalizer(s.addon, addonv1.AddonFinalizer)

	return client.IgnoreNotFound(r.Client.Patch(ctx, s.addon, client.MergeFrom(before)))
}

// addonsOfNamespace maps an object to all add-ons of its namespace.
func (r *AddonReconciler) addonsOfNamespace(ctx context.Context, object client.Object) []ctrl.Request {
	return r.addonsThat(ctx, object, func(*addonv1.TalosClusterAddon) bool { return true })
}

// contentToAddons maps a Secret or ConfigMap to the add-ons whose source needs it.
func (r *AddonReconciler) contentToAddons(ctx context.Context, object client.Object) []ctrl.Request {
	_, isSecret := object.(*corev1.Secret)
	name := object.GetName()

	return r.addonsThat(ctx, object, func(addon *addonv1.TalosClusterAddon) bool {
		from := addon.Spec.Source
		if !isSecret {
			return from.ConfigMap.Name == name
		}
		return from.Repository.CredentialsSecretName == name || from.Repository.CASecretName == name ||
			from.Registry.CredentialsSecretName == name || from.Registry.CASecretName == name
	})
}

func (r *AddonReconciler) addonsThat(ctx context.Context, object client.Object, are func(*addonv1.TalosClusterAddon) bool) []ctrl.Request {
	addons := &addonv1.TalosClusterAddonList{}
	if err := r.Client.List(ctx, addons, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosClusterAddons of an object", "object", klog.KObj(object))
		return nil
	}

	return reconciliation.Requests(addons.Items, are)
}
