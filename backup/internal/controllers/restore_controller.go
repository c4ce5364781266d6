package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// restoreControllerName names the controller in logs, events and metrics.
const restoreControllerName = "talosetcdrestore"

const (
	// restoreInterval is how often a restore that is under way is looked at.
	restoreInterval = 5 * time.Second
	// nodesRetry is how soon it is tried again to clear up the Nodes of a cluster that does not
	// take that.
	nodesRetry = time.Minute
)

// Workload is what the API server of a cluster is asked for. See restore.Workload.
type Workload interface {
	Revision(ctx context.Context, cluster client.ObjectKey) (int64, error)
	DeleteNodesWithout(ctx context.Context, cluster client.ObjectKey, machines []*clusterv1.Machine, since time.Time) (waiting []string, err error)
	WorkersWithout(ctx context.Context, cluster client.ObjectKey, machines []*clusterv1.Machine) ([]string, error)
}

// DatabaseMaker makes the databases that nodes are sent. See restore.Maker.
type DatabaseMaker interface {
	Make(ctx context.Context, in *archive.Archive, manifest *archive.Manifest, identities []age.Identity, seen int64, use func(io.Reader) error) (*restore.Database, error)
}

// RestoreReconciler reconciles TalosEtcdRestores. All fields but WatchFilterValue are
// required.
type RestoreReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// SecretCachingClient reads the secrets of clusters.
	SecretCachingClient client.Client
	// Stores opens stores.
	Stores *stores.Opener
	// Dialer opens connections to nodes.
	Dialer talosclient.Dialer
	// Maker makes the databases that nodes are sent.
	Maker DatabaseMaker
	// Workload asks the API servers of clusters.
	Workload Workload
	// Jobs carry out what takes long.
	Jobs *jobs.Jobs[metrics.Step, RestoreResult]
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

	pace         reconciliation.Pace
	certificates *secrets.ClientCertificates
}

// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdrestores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdrestores/status,verbs=patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=taloscontrolplanes,verbs=get;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachines,verbs=get;patch

// SetupWithManager registers the controller with mgr.
func (r *RestoreReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.SecretCachingClient == nil || r.Stores == nil || r.Dialer == nil || r.Maker == nil || r.Workload == nil || r.Jobs == nil ||
		r.Metrics == nil || r.Clock == nil || r.Random == nil || r.Recorder == nil {
		return errors.New("setting up the TalosEtcdRestore controller: a required field is nil")
	}
	r.init()
	log := ctrl.LoggerFrom(ctx).WithValues("controller", restoreControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&backupv1.TalosEtcdRestore{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&backupv1.TalosBackupStore{}, handler.EnqueueRequestsFromMapFunc(r.objectToRestores)).
		Watches(&backupv1.TalosEtcdBackup{}, handler.EnqueueRequestsFromMapFunc(r.objectToRestores)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.objectToRestores)).
		WatchesRawSource(source.Channel(r.Jobs.Events(), &handler.EnqueueRequestForObject{})).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosEtcdRestore controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &backupv1.TalosEtcdRestore{})

	return nil
}

func (r *RestoreReconciler) init() { r.certificates = secrets.NewClientCertificates(r.Clock) }

// restoreScope is what one reconcile knows about one TalosEtcdRestore.
type restoreScope struct {
	restore *backupv1.TalosEtcdRestore
	// before is the restore as the management cluster has it.
	before *backupv1.TalosEtcdRestore
	// cluster, backup and store are nil when they are not there.
	cluster *clusterv1.Cluster
	backup  *backupv1.TalosEtcdBackup
	store   *backupv1.TalosBackupStore
	// controlPlane is the metadata of the TalosControlPlane; nil when the Cluster has none.
	controlPlane *metav1.PartialObjectMetadata
	// progress is how far the restore is; nil before anything was wiped.
	progress *backupv1.RestoreProgress

	// found are what the conditions say.
	found map[string]condition.Finding
	// ended is the result of a job that was taken in; nil when there was none.
	ended *RestoreResult
	// gone reports whether the object was let go.
	gone bool
	// next is how soon to look again; 0 when nothing is waited for.
	next time.Duration
}

func (s *restoreScope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.restore) }

// outcome is how the restore has ended; empty while it has not.
func (s *restoreScope) outcome() string { return s.restore.Annotations[backupv1.OutcomeAnnotation] }

// isNewCluster reports whether a new cluster is made of the backup.
func (s *restoreScope) isNewCluster() bool { return s.restore.Spec.Mode == backupv1.RestoreNewCluster }

// attemptID tells the present attempt from all others.
func (s *restoreScope) attemptID() string {
	return fmt.Sprintf("%s-%d", s.restore.Annotations[backupv1.IDAnnotation], s.progress.Attempt)
}

// is says what a condition says.
func (s *restoreScope) is(conditionType string, found condition.Finding) {
	s.found[conditionType] = found
}

// again asks for a look after d at the latest.
func (s *restoreScope) again(d time.Duration) {
	if d > 0 && (s.next == 0 || d < s.next) {
		s.next = d
	}
}

// Reconcile reconciles one TalosEtcdRestore.
func (r *RestoreReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	s := &restoreScope{restore: &backupv1.TalosEtcdRestore{}, found: map[string]condition.Finding{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.restore); err != nil {
		if apierrors.IsNotFound(err) {
			r.Jobs.Drop(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if s.outcome() == "" {
		// Machines are wiped by what it says.
		if err := r.APIReader.Get(ctx, req.NamespacedName, s.restore); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KRef(s.restore.Namespace, s.restore.Spec.ClusterName)))
	if err := r.gatherCluster(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, s.cluster, s.restore, backupv1.RestoreFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	s.before = s.restore.DeepCopy()
	notAhead(r.Clock.Now(), &s.restore.Status.StartedAt, &s.restore.Status.Failure.At)
	defer func() {
		if s.gone {
			r.Jobs.Drop(req.NamespacedName)
		} else if err := r.reconcileStatus(ctx, s); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		} else if s.ended != nil && reterr == nil {
			r.Jobs.Forget(req.NamespacedName, s.ended)
		}
		if reterr != nil {
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		}
	}()
	act := r.reconcileNormal
	if !s.restore.DeletionTimestamp.IsZero() {
		act = r.reconcileDelete
	}
	err := act(ctx, s)

	return requeue.After(r.Random, s.next), err
}

// reconcileNormal carries the restore out, once.
func (r *RestoreReconciler) reconcileNormal(ctx context.Context, s *restoreScope) error {
	if s.outcome() != "" {
		return r.letControlPlaneGo(ctx, s)
	}
	s.again(restoreInterval)
	if s.restore.Status.StartedAt.IsZero() {
		s.restore.Status.StartedAt = metav1.NewTime(r.Clock.Now().Truncate(time.Second))
	}
	if s.restore.Annotations[backupv1.IDAnnotation] == "" {
		if err := r.annotate(ctx, s, map[string]string{backupv1.IDAnnotation: string(s.restore.UID)}); err != nil {
			return err
		}
	}
	if ready, err := r.gatherOthers(ctx, s); err != nil || !ready {
		return err
	}
	s.ended = r.Jobs.Result(s.key())
	if s.progress == nil {
		return r.check(ctx, s)
	}

	return r.carryOn(ctx, s)
}

// reconcileDelete lets the control plane go, and then the object. What was wiped stays so.
func (r *RestoreReconciler) reconcileDelete(ctx context.Context, s *restoreScope) error {
	if _, running := r.Jobs.Running(s.key()); running {
		r.Jobs.Cancel(s.key())
		s.again(restoreInterval)
		return nil
	}
	if _, isMoved := s.restore.Annotations[clusterctlv1.DeleteForMoveAnnotation]; !isMoved {
		if err := r.letControlPlaneGo(ctx, s); err != nil {
			return err
		}
	}
	before := s.restore.DeepCopy()
	controllerutil.RemoveFinalizer(s.restore, backupv1.RestoreFinalizer)
	s.gone = true

	return client.IgnoreNotFound(r.Client.Patch(ctx, s.restore, client.MergeFrom(before)))
}

// end ends the restore, and lets the control plane go. Where it dies in between, the next
// reconcile does.
func (r *RestoreReconciler) end(ctx context.Context, s *restoreScope, outcome string) error {
	if err := r.annotate(ctx, s, map[string]string{backupv1.OutcomeAnnotation: outcome}); err != nil {
		return err
	}

	return r.letControlPlaneGo(ctx, s)
}

// annotate writes annotations of the restore. What was found for its status stays to be
// written.
func (r *RestoreReconciler) annotate(ctx context.Context, s *restoreScope, annotations map[string]string) error {
	status, written := s.restore.Status, s.before.DeepCopy()
	if err := annotate(ctx, r.Client, written, annotations); err != nil {
		return err
	}
	s.before, s.restore = written, written.DeepCopy()
	s.restore.Status = status

	return nil
}

// record writes how far the restore is where a lost status does not lose it.
func (r *RestoreReconciler) record(ctx context.Context, s *restoreScope, progress *backupv1.RestoreProgress) error {
	value, err := json.Marshal(progress)
	if err != nil {
		return fmt.Errorf("encoding the progress of the restore: %w", err)
	}
	if err := r.annotate(ctx, s, map[string]string{backupv1.RestoreProgressAnnotation: string(value)}); err != nil {
		return err
	}
	s.progress = progress

	return nil
}

// objectToRestores maps an object to the restores of its namespace that have not ended.
func (r *RestoreReconciler) objectToRestores(ctx context.Context, object client.Object) []ctrl.Request {
	list := &backupv1.TalosEtcdRestoreList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosEtcdRestores of a namespace", "object", klog.KObj(object))
		return nil
	}

	return reconciliation.Requests(list.Items, func(of *backupv1.TalosEtcdRestore) bool {
		return of.Annotations[backupv1.OutcomeAnnotation] == "" || !of.DeletionTimestamp.IsZero()
	})
}

// readProgress is how far a restore is; nil before anything was wiped.
func readProgress(of *backupv1.TalosEtcdRestore) (*backupv1.RestoreProgress, error) {
	value, found := of.Annotations[backupv1.RestoreProgressAnnotation]
	if !found {
		return nil, nil //nolint:nilnil // It has not begun.
	}
	progress := &backupv1.RestoreProgress{}
	if err := json.Unmarshal([]byte(value), progress); err != nil {
		return nil, fmt.Errorf("reading the annotation %s: %w", backupv1.RestoreProgressAnnotation, err)
	}

	return progress, nil
}

// keyOf is the key of a job of a restore.
func keyOf(of *backupv1.TalosEtcdRestore) jobs.Key {
	return jobs.Key{Namespace: of.Namespace, Name: of.Name, Cluster: of.Spec.ClusterName}
}
