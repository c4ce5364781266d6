package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"filippo.io/age"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/snapshot"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// backupControllerName names the controller in logs, events and metrics.
const backupControllerName = "talosetcdbackup"

// The outcomes of a backup, as its annotation has them.
const (
	outcomeCompleted = "Completed"
	outcomeFailed    = "Failed"
)

// BackupReconciler reconciles TalosEtcdBackups. All fields but WatchFilterValue are
// required.
type BackupReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// SecretCachingClient reads the secrets of clusters.
	SecretCachingClient client.Client
	// Stores opens stores.
	Stores *stores.Opener
	// Taker takes snapshots.
	Taker *snapshot.Taker
	// Verifier verifies backups.
	Verifier Verifier
	// Jobs carry out what takes long.
	Jobs *jobs.Jobs[metrics.Step, Result]
	// Metrics count what is done.
	Metrics *metrics.Metrics
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random spreads what begins together.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// Tool is what manifests say that has made them.
	Tool string
	// WatchFilterValue restricts the controller to objects with this value of the
	// watch-filter label; empty means all.
	WatchFilterValue string

	pace         reconciliation.Pace
	certificates *secrets.ClientCertificates
}

// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackups/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machines,verbs=list;watch

// SetupWithManager registers the controller with mgr.
func (r *BackupReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.SecretCachingClient == nil || r.Stores == nil || r.Taker == nil || r.Verifier == nil || r.Jobs == nil || r.Metrics == nil ||
		r.Clock == nil || r.Random == nil || r.Recorder == nil || r.Tool == "" {
		return errors.New("setting up the TalosEtcdBackup controller: a required field is nil")
	}
	r.init()
	log := ctrl.LoggerFrom(ctx).WithValues("controller", backupControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&backupv1.TalosEtcdBackup{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&backupv1.TalosBackupStore{}, handler.EnqueueRequestsFromMapFunc(r.storeToBackups)).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToBackups)).
		WatchesRawSource(source.Channel(r.Jobs.Events(), handler.EnqueueRequestsFromMapFunc(r.jobToBackup))).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosEtcdBackup controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &backupv1.TalosEtcdBackup{})

	return nil
}

func (r *BackupReconciler) init() { r.certificates = secrets.NewClientCertificates(r.Clock) }

// Verifier verifies backups. See verify.Verifier.
type Verifier interface {
	Verify(ctx context.Context, level backupv1.VerificationLevel, in *archive.Archive, manifest *archive.Manifest, identities []age.Identity) (*verify.Report, error)
}

// backupScope is what one reconcile knows about one TalosEtcdBackup.
type backupScope struct {
	backup *backupv1.TalosEtcdBackup
	// before is the backup as the management cluster has it.
	before *backupv1.TalosEtcdBackup
	// cluster and store are nil when they are not there.
	cluster *clusterv1.Cluster
	store   *backupv1.TalosBackupStore

	// completed, verified and deleting are what the conditions say.
	completed, verified, deleting condition.Finding
	// opened is the store, and take how a snapshot is taken; nil while they cannot be used.
	opened *stores.Opened
	take   *take
	// ended is the result of a job that was taken in; nil when there was none.
	ended *Result
	// gone reports whether the object was let go.
	gone bool
	// next is how soon to look again; 0 when nothing is waited for.
	next time.Duration
}

// again asks for a look after d at the latest.
func (s *backupScope) again(d time.Duration) {
	if d > 0 && (s.next == 0 || d < s.next) {
		s.next = d
	}
}

func (s *backupScope) key() types.NamespacedName { return client.ObjectKeyFromObject(s.backup) }

// outcome is how the backup has ended; empty while it has not.
func (s *backupScope) outcome() string { return s.backup.Annotations[backupv1.OutcomeAnnotation] }

func (s *backupScope) isMade() bool { return isMade(s.backup) }

// isMade reports whether a backup is to be in the store already.
func isMade(backup *backupv1.TalosEtcdBackup) bool {
	return isImported(backup) || backup.Annotations[backupv1.OutcomeAnnotation] == outcomeCompleted
}

// isImported reports whether a backup was found in the store, and is not made.
func isImported(backup *backupv1.TalosEtcdBackup) bool {
	return metav1.HasAnnotation(backup.ObjectMeta, backupv1.ImportedAnnotation)
}

// timeout is for how long the backup is tried.
func (s *backupScope) timeout() time.Duration {
	return time.Duration(ptr.Deref(s.backup.Spec.TimeoutSeconds, backupv1.DefaultBackupTimeoutSeconds)) * time.Second
}

// deadline is until when the backup is tried.
func (s *backupScope) deadline() time.Time { return s.backup.Status.StartedAt.Add(s.timeout()) }

// timeLeft is how long an attempt that begins now may take. One that only reads back what is
// in the store already, as after a long time without the store, has as long as any.
func (s *backupScope) timeLeft(now time.Time) time.Duration {
	if s.isMade() {
		return s.timeout()
	}

	return max(s.deadline().Sub(now), firstRetry)
}

// Reconcile reconciles one TalosEtcdBackup.
func (r *BackupReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	s := &backupScope{backup: &backupv1.TalosEtcdBackup{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.backup); err != nil {
		if apierrors.IsNotFound(err) {
			r.Jobs.Drop(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithValues("Cluster", klog.KRef(s.backup.Namespace, s.backup.Spec.ClusterName)))
	if err := r.gatherOthers(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, s.cluster, s.backup, backupv1.BackupFinalizer); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	s.before = s.backup.DeepCopy()
	notAhead(r.Clock.Now(), &s.backup.Status.StartedAt, &s.backup.Status.Failure.At)
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
	if err := r.takeResult(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	act := r.reconcileNormal
	if !s.backup.DeletionTimestamp.IsZero() {
		act = r.reconcileDelete
	}
	err := act(ctx, s)

	return requeue.After(r.Random, s.next), err
}

// notAhead puts times that were recorded by a clock that was ahead back to now: what is waited for
// since then is due as if it had happened now.
func notAhead(now time.Time, recorded ...*metav1.Time) {
	for _, at := range recorded {
		if at.After(now) {
			*at = metav1.NewTime(now.Truncate(time.Second))
		}
	}
}

// gatherOthers reads the Cluster and the store.
func (r *BackupReconciler) gatherOthers(ctx context.Context, s *backupScope) error {
	var err error
	if s.cluster, err = find(ctx, r.Client, s.backup.Namespace, s.backup.Spec.ClusterName, &clusterv1.Cluster{}); err != nil {
		return err
	}
	s.store, err = find(ctx, r.Client, s.backup.Namespace, s.backup.Spec.StoreName, &backupv1.TalosBackupStore{})

	return err
}

// find reads an object; nil when it is not there.
func find[T client.Object](ctx context.Context, from client.Reader, namespace, name string, object T) (T, error) {
	var none T
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("reading %s %s: %w", objects.KindOf(object), name, err)
	}

	return object, nil
}

// annotate writes annotations of the backup. What was found for its status stays to be
// written.
func (r *BackupReconciler) annotate(ctx context.Context, s *backupScope, annotations map[string]string) error {
	status, written := s.backup.Status, s.before.DeepCopy()
	if err := annotate(ctx, r.Client, written, annotations); err != nil {
		return err
	}
	s.before, s.backup = written, written.DeepCopy()
	s.backup.Status = status

	return nil
}

// annotate writes annotations of an object as the management cluster has it.
func annotate(ctx context.Context, c client.Client, object client.Object, annotations map[string]string) error {
	err := objects.Change(ctx, c, object, func(object client.Object) {
		all := maps.Clone(object.GetAnnotations())
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, annotations)
		object.SetAnnotations(all)
	})
	if err != nil {
		return fmt.Errorf("writing annotations of %s %s: %w", objects.KindOf(object), object.GetName(), err)
	}

	return nil
}

// storeToBackups maps a store to its backups that are not complete, or are being deleted.
func (r *BackupReconciler) storeToBackups(ctx context.Context, object client.Object) []ctrl.Request {
	return r.backupsThat(ctx, object, func(backup *backupv1.TalosEtcdBackup) bool { return backup.Spec.StoreName == object.GetName() })
}

// clusterToBackups maps a Cluster to its backups that are not complete, or are being
// deleted.
func (r *BackupReconciler) clusterToBackups(ctx context.Context, object client.Object) []ctrl.Request {
	return r.backupsThat(ctx, object, func(backup *backupv1.TalosEtcdBackup) bool { return backup.Spec.ClusterName == object.GetName() })
}

func (r *BackupReconciler) backupsThat(ctx context.Context, object client.Object, are func(*backupv1.TalosEtcdBackup) bool) []ctrl.Request {
	list := &backupv1.TalosEtcdBackupList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosEtcdBackups of an object", "object", klog.KObj(object))
		return nil
	}

	return reconciliation.Requests(list.Items, func(backup *backupv1.TalosEtcdBackup) bool {
		return are(backup) && (!isSettled(backup) || !backup.DeletionTimestamp.IsZero())
	})
}

// jobToBackup maps a job to its backup. How a job has ended is recorded at once.
func (r *BackupReconciler) jobToBackup(_ context.Context, object client.Object) []ctrl.Request {
	req := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
	if r.Jobs.Result(req.NamespacedName) != nil {
		r.pace.OnlyWaits(req)
	}

	return []ctrl.Request{req}
}
