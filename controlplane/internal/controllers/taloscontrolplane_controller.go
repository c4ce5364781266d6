// Package controllers reconciles TalosControlPlanes: it gathers facts, has
// package plan decide, carries the decision out, and reports.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/backups"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/infracontract"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// controllerName names the controller in logs, events and metrics.
const controllerName = "taloscontrolplane"

// remoteGracePeriod is how long what was known about a node, and was not seen
// to change, is kept while the node does not answer.
const remoteGracePeriod = 2 * time.Minute

// Infrastructure is what is known of an infrastructure provider beyond Cluster API's
// contract; see package infracontract.
type Infrastructure interface {
	PeerAddresses(infraMachine *unstructured.Unstructured, addresses []string) (hosts []string, sure bool)
	ProvenGone(ctx context.Context, cluster *clusterv1.Cluster, providerID string) (bool, error)
	KindMismatch(ctx context.Context, template *unstructured.Unstructured, cluster *clusterv1.Cluster) (string, error)
	NoSpareCapacity(machine *clusterv1.Machine) bool
	HasCapacity(domain clusterv1.FailureDomain) bool
	OtherRelease(machine *clusterv1.Machine) string
	TemplatedSpec(infraMachine *unstructured.Unstructured) (map[string]any, error)
}

// Reconciler reconciles TalosControlPlanes. All fields but Metrics and
// WatchFilterValue are required.
type Reconciler struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// SecretCachingClient reads Secrets from the cache.
	SecretCachingClient client.Client
	// ClusterCache tells when the API servers of clusters come and go.
	ClusterCache clustercache.ClusterCache
	// Dialer opens connections to Talos nodes.
	Dialer talosclient.Dialer
	// Watcher watches nodes.
	Watcher *machinewatch.Watcher
	// Prober asks API servers.
	Prober health.APIServerProber
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random is the source of names and of jitter.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// Metrics shows control planes; nil shows them to nobody.
	Metrics *metrics.Recorder
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string

	pace reconciliation.Pace
	// infrastructure is what is known of the infrastructure provider beyond the contract.
	infrastructure Infrastructure
	backups        backups.Backups
	applier        *applier
	certificates   *secrets.ClientCertificates
	grace          *nodes.GracePeriods
	leaves         *nodes.Leaves
	bootstraps     *nodes.Attempts
	restarts       *nodes.Attempts
	decisions      *lastDecisions
	memory         *nodes.Memory
}

// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes/status,verbs=patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes/finalizers,verbs=update
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=talosconfigs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=*,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machinepools,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller with mgr.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.SecretCachingClient == nil || r.ClusterCache == nil || r.Dialer == nil ||
		r.Watcher == nil || r.Prober == nil || r.Clock == nil || r.Random == nil || r.Recorder == nil {
		return errors.New("setting up the TalosControlPlane controller: a required field is nil")
	}
	r.init(ctx)

	log := ctrl.LoggerFrom(ctx).WithValues("controller", controllerName)
	filter := predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&controlplanev1.TalosControlPlane{}).
		Owns(&clusterv1.Machine{}).
		WithOptions(options).
		WithEventFilter(filter).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToControlPlane)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.secretToControlPlane)).
		WatchesRawSource(r.ClusterCache.GetClusterSource(controllerName, r.clusterToControlPlane,
			clustercache.WatchForProbeFailure(remoteGracePeriod))).
		WatchesRawSource(source.Channel(r.Watcher.Events(), handler.EnqueueRequestsFromMapFunc(r.nodeToControlPlane))).
		WatchesRawSource(source.Channel(r.leaves.Ended(), handler.EnqueueRequestsFromMapFunc(r.nodeToControlPlane))).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosControlPlane controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &controlplanev1.TalosControlPlane{})

	return nil
}

// init makes what the Reconciler keeps between reconciles. None of it is needed to
// be right: it saves work, holds conditions still, and keeps what was asked of a node
// from being asked again.
func (r *Reconciler) init(ctx context.Context) {
	r.infrastructure = infracontract.Contract{Cached: r.Client, Live: r.APIReader}
	r.backups = backups.Backups{Client: r.Client, Live: r.APIReader, Clock: r.Clock}
	r.applier = newApplier(ctx, r.Client)
	r.certificates = secrets.NewClientCertificates(r.Clock)
	r.grace = nodes.NewGracePeriods(r.Clock)
	r.leaves = nodes.NewLeaves(ctx, r.Clock)
	r.bootstraps = nodes.NewAttempts(r.Clock, nodes.BootstrapPatience)
	r.restarts = nodes.NewAttempts(r.Clock, nodes.RestartPatience)
	r.decisions = newLastDecisions()
	r.memory = nodes.NewMemory(r.Clock, healthyInterval)
	if r.Metrics == nil {
		r.Metrics = metrics.New()
	}
}

// Reconcile reconciles one TalosControlPlane.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	controlPlane := &controlplanev1.TalosControlPlane{}
	if err := r.Client.Get(ctx, req.NamespacedName, controlPlane); err != nil {
		if apierrors.IsNotFound(err) {
			r.Metrics.Forget(req.NamespacedName)
			r.decisions.forget(req.NamespacedName)
			r.grace.Forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := r.ownerCluster(ctx, controlPlane)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}
	if cluster == nil {
		ctrl.LoggerFrom(ctx).Info("Waiting for the Cluster controller to set the owner reference")
		r.pace.OnlyWaits(req)
		return ctrl.Result{}, nil
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KObj(cluster)))

	if proceed, err := r.begin(ctx, cluster, controlPlane); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	helper, err := patch.NewHelper(controlPlane, objects.ReadLive(r.Client, r.APIReader))
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("preparing the patch: %w", err)
	}

	r.grace.Continue(req.NamespacedName, controlPlane.Status.GracePeriods)
	s := &scope{cluster: cluster, controlPlane: controlPlane, counted: ptr.Deref(controlPlane.Status.Replicas, 0) > 0}
	defer func() {
		if err := r.reconcileStatus(ctx, s, helper, reterr); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		switch {
		case reterr != nil:
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		case s.onlyWaits():
			r.pace.OnlyWaits(req)
		}
	}()

	if !controlPlane.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, s)
	}

	return r.reconcileNormal(ctx, s)
}

// ownerCluster is the Cluster of a control plane; nil when none is named yet. Of one that
// is gone the name is left, by which the control plane is deleted.
func (r *Reconciler) ownerCluster(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (*clusterv1.Cluster, error) {
	cluster, err := util.GetOwnerCluster(ctx, r.Client, controlPlane.ObjectMeta)
	if !apierrors.IsNotFound(err) || controlPlane.DeletionTimestamp.IsZero() {
		return cluster, err
	}
	gone := &clusterv1.Cluster{}
	gone.Namespace = controlPlane.Namespace
	for _, owner := range controlPlane.OwnerReferences {
		if owner.Kind == clusterv1.ClusterKind && strings.HasPrefix(owner.APIVersion, clusterv1.GroupVersion.Group+"/") {
			gone.Name = owner.Name
		}
	}

	return gone, nil
}

// step is a part of a reconcile: gather steps only read, sync and record steps write.
type step func(context.Context, *scope) error

// inOrder takes steps one after the other, up to the first that fails.
func inOrder(ctx context.Context, s *scope, steps ...step) error {
	for _, take := range steps {
		if err := take(ctx, s); err != nil {
			return err
		}
	}

	return nil
}

// maxRounds is how often the facts are gathered in one reconcile at most: from memory, by
// asking the nodes, and once more after the bootstrap intent was recorded.
const maxRounds = 3

// reconcileNormal keeps what is to be kept whatever is decided, gathers the facts, decides,
// and acts. No decision is made on facts that could not be gathered. It does so again at
// once, and not with the next event, when the facts are older than what they decide.
func (r *Reconciler) reconcileNormal(ctx context.Context, s *scope) (ctrl.Result, error) {
	if err := inOrder(ctx, s,
		r.gatherMachines, r.gatherMachineRefs, r.gatherTemplate, r.gatherCertificates,
		r.syncTemplateOwner, r.syncClientConfigs, r.syncMachines,
	); err != nil {
		return ctrl.Result{}, r.notGathered(ctx, s, err)
	}
	for range maxRounds {
		if err := inOrder(ctx, s,
			r.gatherIntentWiped, r.gatherNodes, r.recordMembers, r.gatherOutdated, r.gatherMismatch, r.gatherFacts, r.gatherEndpoint,
		); err != nil {
			return ctrl.Result{}, r.notGathered(ctx, s, err)
		}
		s.decision = plan.Decide(s.facts)
		if s.recalled && (s.decision.Action != plan.Stable || !isHealthy(s, s.machines)) {
			// Something is to be done, or wrong: that is decided on what is so now.
			r.observer().Forget(s.machines)
			continue
		}
		if err := r.act(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
		if s.decision.Action != plan.RecordBootstrapIntent {
			break
		}
		// The nodes are asked again, now that the record is there (design D7).
		r.observer().Forget(s.machines)
	}

	return ctrl.Result{RequeueAfter: r.untilRollout(s, requeue.Jitter(r.Random, r.interval(s, s.decision.Recheck)))}, nil
}

// notGathered notes why nothing was decided. Machines that go without care for etcd need
// no facts to be let go.
func (r *Reconciler) notGathered(ctx context.Context, s *scope, err error) error {
	s.gatherErr = err

	return errors.Join(err, r.abandonMembers(ctx, s, abandoned(s)))
}

// clusterToControlPlane maps a Cluster to its TalosControlPlane.
func (r *Reconciler) clusterToControlPlane(_ context.Context, object client.Object) []ctrl.Request {
	cluster, ok := object.(*clusterv1.Cluster)
	if !ok {
		return nil
	}
	ref := cluster.Spec.ControlPlaneRef
	if ref.Kind != controlplanev1.TalosControlPlaneKind || ref.APIGroup != controlplanev1.GroupVersion.Group {
		return nil
	}

	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}}}
}

// secretToControlPlane maps the Secrets of a cluster on which the control plane
// depends to the TalosControlPlane.
func (r *Reconciler) secretToControlPlane(ctx context.Context, object client.Object) []ctrl.Request {
	name := object.GetLabels()[clusterv1.ClusterNameLabel]
	if name == "" || !isClusterSecret(name, object.GetName()) {
		return nil
	}

	return r.clusterNameToControlPlane(ctx, object)
}

// clusterNameToControlPlane maps an object to the TalosControlPlane of the
// Cluster that its label names.
func (r *Reconciler) clusterNameToControlPlane(ctx context.Context, object client.Object) []ctrl.Request {
	cluster := &clusterv1.Cluster{}
	key := client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetLabels()[clusterv1.ClusterNameLabel]}
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if !apierrors.IsNotFound(err) {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to read the Cluster of an object", "object", klog.KObj(object))
		}
		return nil
	}

	return r.clusterToControlPlane(ctx, cluster)
}
