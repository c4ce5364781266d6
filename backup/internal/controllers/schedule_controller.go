package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/schedule"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

const (
	// scheduleControllerName names the controller in logs, events and metrics.
	scheduleControllerName = "talosetcdbackupschedule"
	// maxSleep is how long nobody looks at the clock, which may have been set meanwhile.
	maxSleep = 10 * time.Minute
	// maxRun is how much of the annotation is kept.
	maxRun = 256
)

// ScheduleReconciler reconciles TalosEtcdBackupSchedules. All fields but WatchFilterValue
// are required.
type ScheduleReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// SecretCachingClient reads the secrets of clusters.
	SecretCachingClient client.Client
	// Metrics count what is done.
	Metrics *metrics.Metrics
	// Clock tells the time.
	Clock clock.PassiveClock
	// Recorder records events.
	Recorder events.EventRecorder
	// WatchFilterValue restricts the controller to objects with this value of the
	// watch-filter label; empty means all.
	WatchFilterValue string

	pace       reconciliation.Pace
	identities identities
}

// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackupschedules,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackupschedules/status,verbs=patch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackups,verbs=get;list;watch;create;patch;delete

// SetupWithManager registers the controller with mgr.
func (r *ScheduleReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.SecretCachingClient == nil || r.Metrics == nil || r.Clock == nil || r.Recorder == nil {
		return errors.New("setting up the TalosEtcdBackupSchedule controller: a required field is nil")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", scheduleControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&backupv1.TalosEtcdBackupSchedule{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToSchedules)).
		Watches(&backupv1.TalosEtcdBackup{}, handler.EnqueueRequestsFromMapFunc(backupToSchedule)).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosEtcdBackupSchedule controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &backupv1.TalosEtcdBackupSchedule{})

	return nil
}

// scheduleScope is what one reconcile knows about one TalosEtcdBackupSchedule.
type scheduleScope struct {
	schedule *backupv1.TalosEtcdBackupSchedule
	before   *backupv1.TalosEtcdBackupSchedule
	// parsed is the schedule; nil when it cannot be understood.
	parsed *schedule.Schedule
	// verification is when backups are verified once more; nil when they are not.
	verification *schedule.Schedule
	// store is nil when it is not there.
	store *backupv1.TalosBackupStore
	// clusters are those that are selected, with their backups of this schedule.
	clusters []scheduledCluster
	// unread is why some of that could not be read; nil where all was.
	unread error

	// ready is what its condition says.
	ready condition.Finding
	// next is when to look again; zero means never.
	next time.Time
}

// scheduledCluster is a Cluster that is selected.
type scheduledCluster struct {
	*clusterv1.Cluster

	// identity tells it from a former one of its name; empty when its keys are not known.
	identity string
	// backups are its own of this schedule, the newest first.
	backups []*backupv1.TalosEtcdBackup
	// status is what is known of it.
	status backupv1.ScheduledCluster
	// refusal is why a backup could not be begun; nil where none was to be, or all were.
	refusal error
}

// again asks for a look at a time at the latest.
func (s *scheduleScope) again(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// Reconcile reconciles one TalosEtcdBackupSchedule.
func (r *ScheduleReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	s := &scheduleScope{schedule: &backupv1.TalosEtcdBackupSchedule{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.schedule); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, nil, s.schedule, ""); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	if !s.schedule.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	s.before = s.schedule.DeepCopy()
	defer func() {
		if err := r.reconcileStatus(ctx, s); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		if reterr != nil {
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		}
	}()
	if err := r.gather(ctx, s); err != nil {
		s.unread = err
		return ctrl.Result{}, err
	}
	var errs []error
	run, isAsked := s.run()
	for i := range s.clusters {
		errs = append(errs, r.reconcileCluster(ctx, s, &s.clusters[i], run))
	}
	if err := kerrors.NewAggregate(errs); err != nil {
		return ctrl.Result{}, err
	}
	if isAsked {
		s.schedule.Status.LastRun = run
	}
	if s.next.IsZero() {
		return ctrl.Result{}, nil
	}

	// A time is not spread: backups have a jitter of their own.
	return ctrl.Result{RequeueAfter: min(max(s.next.Sub(r.Clock.Now()), time.Second), maxSleep)}, nil
}

// run is the value of the annotation that asks for backups now; empty when it was heeded,
// or asks for none. It also reports whether the status is to say so.
func (s *scheduleScope) run() (string, bool) {
	value := condition.Cut(s.schedule.Annotations[backupv1.RunAnnotation], maxRun)
	if value == "" || value == s.schedule.Status.LastRun {
		return "", false
	}

	return value, true
}

// gather reads the store, the Clusters and the backups.
func (r *ScheduleReconciler) gather(ctx context.Context, s *scheduleScope) error {
	spec := &s.schedule.Spec
	parsed, err := schedule.Parse(spec.Schedule, spec.TimeZone)
	if err != nil {
		s.ready = condition.False(backupv1.ScheduleInvalidReason, err.Error())
	} else {
		s.parsed = parsed
	}
	if again := spec.Verification.Schedule; again != "" {
		if s.verification, err = schedule.Parse(again, spec.TimeZone); err != nil {
			s.ready = condition.False(backupv1.ScheduleInvalidReason, "verification: "+err.Error())
		}
	}
	store := &backupv1.TalosBackupStore{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: s.schedule.Namespace, Name: spec.StoreName}, store)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the TalosBackupStore: %w", err)
	}
	if err == nil {
		s.store = store
	}

	return r.gatherClusters(ctx, s)
}

// gatherClusters reads the Clusters that are selected, and their backups.
func (r *ScheduleReconciler) gatherClusters(ctx context.Context, s *scheduleScope) error {
	clusters, backups := &clusterv1.ClusterList{}, &backupv1.TalosEtcdBackupList{}
	if err := r.Client.List(ctx, clusters, client.InNamespace(s.schedule.Namespace)); err != nil {
		return fmt.Errorf("listing the Clusters: %w", err)
	}
	if err := r.Client.List(ctx, backups, client.InNamespace(s.schedule.Namespace), client.MatchingLabels{backupv1.ScheduleNameLabel: s.schedule.Name}); err != nil {
		return fmt.Errorf("listing the TalosEtcdBackups: %w", err)
	}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		selected, err := objects.Selects(s.schedule.Spec.ClusterSelector, s.schedule.Spec.MatchAll, cluster)
		if err != nil {
			s.ready = condition.Falsef(backupv1.ScheduleInvalidReason, "clusterSelector: %v", err)
			return nil
		}
		if !selected || !cluster.DeletionTimestamp.IsZero() {
			continue
		}
		identity, err := r.identities.of(ctx, r.SecretCachingClient, client.ObjectKeyFromObject(cluster))
		if err != nil {
			return err
		}
		s.clusters = append(s.clusters, s.clusterOf(cluster, identity, backups.Items))
	}
	slices.SortFunc(s.clusters, func(a, b scheduledCluster) int { return strings.Compare(a.Name, b.Name) })

	return nil
}

// clusterOf is a Cluster with its backups among all of this schedule.
func (s *scheduleScope) clusterOf(cluster *clusterv1.Cluster, identity string, backups []backupv1.TalosEtcdBackup) scheduledCluster {
	found := scheduledCluster{Cluster: cluster, identity: identity, status: backupv1.ScheduledCluster{Name: cluster.Name}}
	for _, known := range s.schedule.Status.Clusters {
		if known.Name == cluster.Name {
			found.status = known
		}
	}
	for i := range backups {
		if backup := &backups[i]; backup.Spec.ClusterName == cluster.Name && backup.Spec.StoreName == s.schedule.Spec.StoreName && mayBeOf(backup, identity) {
			found.backups = append(found.backups, backup)
		}
	}
	slices.SortFunc(found.backups, func(a, b *backupv1.TalosEtcdBackup) int {
		if order := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); order != 0 {
			return order
		}

		return strings.Compare(b.Name, a.Name)
	})

	return found
}

// clusterToSchedules maps a Cluster to the schedules of its namespace, any of which may
// select it.
func (r *ScheduleReconciler) clusterToSchedules(ctx context.Context, object client.Object) []ctrl.Request {
	list := &backupv1.TalosEtcdBackupScheduleList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosEtcdBackupSchedules of a Cluster", "Cluster", klog.KObj(object))
		return nil
	}

	return reconciliation.Requests(list.Items, func(*backupv1.TalosEtcdBackupSchedule) bool { return true })
}

// backupToSchedule maps a backup to the schedule that has made it.
func backupToSchedule(_ context.Context, object client.Object) []ctrl.Request {
	name := object.GetLabels()[backupv1.ScheduleNameLabel]
	if name == "" {
		return nil
	}

	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: name}}}
}

// isSuspended reports whether no backup is begun by the clock.
func (s *scheduleScope) isSuspended() bool { return ptr.Deref(s.schedule.Spec.Suspend, false) }
