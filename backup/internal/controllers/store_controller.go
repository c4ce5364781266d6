// Package controllers reconciles TalosBackupStores, TalosEtcdBackups and
// TalosEtcdBackupSchedules: one finds out what is wrong with a store and what it has, one
// brings a backup there, and one says when, and which are kept.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

const (
	// storeControllerName names the controller in logs, events and metrics.
	storeControllerName = "talosbackupstore"
	// checkTimeout is how long a check of a store may take.
	checkTimeout = 30 * time.Second
	// importTimeout is how long the import of what a store has may take at a time, and readTimeout
	// how long one manifest may, of which there are thousands.
	importTimeout = 5 * time.Minute
	readTimeout   = 30 * time.Second
	// storeTimeout is how long a reconcile of a store may take. Cluster API's default of a minute
	// is less than a check and an import may, and then nobody could write how they have ended.
	storeTimeout = checkTimeout + importTimeout + time.Minute
	// recheckInterval is how soon a store is checked again that could not be used.
	recheckInterval = time.Minute
)

// StoreReconciler reconciles TalosBackupStores. All fields but WatchFilterValue are
// required.
type StoreReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Stores opens stores.
	Stores *stores.Opener
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

	pace   reconciliation.Pace
	checks *checks
	// importTimeout and readTimeout are how long an import and the reading of one manifest may
	// take.
	importTimeout, readTimeout time.Duration
}

// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosbackupstores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosbackupstores/status,verbs=patch
// +kubebuilder:rbac:groups=backup.cluster.x-k8s.io,resources=talosetcdbackups,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller with mgr.
func (r *StoreReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil || r.Stores == nil || r.Metrics == nil || r.Clock == nil || r.Random == nil || r.Recorder == nil {
		return errors.New("setting up the TalosBackupStore controller: a required field is nil")
	}
	r.init()
	options.ReconciliationTimeout = storeTimeout
	log := ctrl.LoggerFrom(ctx).WithValues("controller", storeControllerName)
	built, err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&backupv1.TalosBackupStore{}).
		WithOptions(options).
		WithEventFilter(predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&backupv1.TalosEtcdBackup{}, handler.EnqueueRequestsFromMapFunc(backupToStore)).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.secretToStores)).
		Build(ctx, reconciliation.Fairly(r, options.MaxConcurrentReconciles))
	if err != nil {
		return fmt.Errorf("setting up the TalosBackupStore controller: %w", err)
	}
	r.pace = reconciliation.NewPace(mgr, built, &backupv1.TalosBackupStore{})

	return nil
}

func (r *StoreReconciler) init() {
	r.checks, r.importTimeout, r.readTimeout = newChecks(), importTimeout, readTimeout
}

// storeScope is what one reconcile knows about one TalosBackupStore.
type storeScope struct {
	store *backupv1.TalosBackupStore
	// before is the store as the management cluster has it.
	before *backupv1.TalosBackupStore
	// checked reports whether it was checked now, and opened is nil unless it can be used.
	checked bool
	opened  *stores.Opened
	// backups are those that name it.
	backups []backupv1.TalosEtcdBackup

	// usable and imported are what the conditions say.
	usable, imported condition.Finding
	// next is how soon to look again.
	next time.Duration
}

// Reconcile reconciles one TalosBackupStore.
func (r *StoreReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, reterr error) {
	s := &storeScope{store: &backupv1.TalosBackupStore{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.store); err != nil {
		r.checks.forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, nil, s.store, ""); err != nil || !proceed {
		return ctrl.Result{}, err
	}
	if !s.store.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	s.before = s.store.DeepCopy()
	defer func() {
		if err := r.reconcileStatus(ctx, s); err != nil {
			reterr = kerrors.NewAggregate([]error{reterr, err})
		}
		if reterr != nil {
			result, reterr = r.pace.AfterConflict(ctx, req, ctrl.Result{}, reterr)
		}
	}()
	if err := r.gatherBackups(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.reconcileCheck(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	err := r.reconcileImport(ctx, s)

	return requeue.After(r.Random, s.next), err
}

func (r *StoreReconciler) gatherBackups(ctx context.Context, s *storeScope) error {
	list := &backupv1.TalosEtcdBackupList{}
	if err := r.Client.List(ctx, list, client.InNamespace(s.store.Namespace)); err != nil {
		return fmt.Errorf("listing the TalosEtcdBackups: %w", err)
	}
	s.backups = list.Items

	return nil
}

// reconcileCheck checks the store where that is due: its interval is over, or it or one of
// its Secrets has changed.
func (r *StoreReconciler) reconcileCheck(ctx context.Context, s *storeScope) error {
	interval := time.Duration(ptr.Deref(s.store.Spec.CheckIntervalSeconds, backupv1.DefaultCheckIntervalSeconds)) * time.Second
	s.next = min(interval, recheckInterval)
	opened, err := r.Stores.Open(ctx, s.store)
	if invalid := (*stores.InvalidError)(nil); errors.As(err, &invalid) {
		s.usable = condition.False(invalid.Reason, invalid.Message)
		return nil
	}
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(s.store)
	last, known := r.checks.get(key, fmt.Sprint(s.store.UID, s.store.Generation, opened.Versions))
	wait := interval
	if last.err != nil {
		wait = min(interval, recheckInterval)
	}
	if age := r.Clock.Since(last.at); known && age >= 0 && age < wait {
		s.next = wait - age
	} else {
		last.at = r.Clock.Now()
		last.facts, last.err = r.check(ctx, s.store, opened)
		r.checks.set(key, last)
		r.Metrics.Checked(usableOf(last).Reason)
		s.checked = true
		if last.err == nil {
			s.next = interval
		}
	}
	s.usable = usableOf(last)
	if s.usable.Status == "True" {
		s.opened = opened
	}
	s.store.Status.Versioning, s.store.Status.ObjectLock = feature(last, last.facts.Versioned), feature(last, last.facts.LocksObjects)

	return nil
}

func (r *StoreReconciler) check(ctx context.Context, of *backupv1.TalosBackupStore, opened *stores.Opened) (store.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	probe, err := archive.Probe(opened.Prefix, of.Namespace)
	if err != nil {
		return store.Facts{}, err
	}

	return opened.Check(ctx, probe, of.Spec.AccessMode != backupv1.AccessReadOnly)
}

// usableOf is what condition Ready says after a check.
func usableOf(last check) condition.Finding {
	if last.err != nil {
		return condition.False(reasonOf(last.err), last.err.Error())
	}

	return condition.True(backupv1.ReadyReason, "")
}

// reasonOf is the reason that an error of a store has. What has none may pass.
func reasonOf(err error) string {
	if reason := store.ReasonOf(err); reason != "" {
		return string(reason)
	}

	return string(store.Unavailable)
}

// feature is what is known of a bucket; nothing when the check has failed.
func feature(last check, has bool) backupv1.BucketFeature {
	switch {
	case last.err != nil:
		return ""
	case has:
		return backupv1.FeatureEnabled
	}

	return backupv1.FeatureDisabled
}

// reconcileStatus derives the status from what was found, and writes it.
func (r *StoreReconciler) reconcileStatus(ctx context.Context, s *storeScope) error {
	was := conditions.Get(s.before, backupv1.StoreReadyCondition)
	condition.Set(s.store, backupv1.StoreReadyCondition, s.usable)
	condition.Set(s.store, backupv1.ImportedCondition, s.imported)
	var count int32
	for i := range s.backups {
		if s.backups[i].Spec.StoreName == s.store.Name {
			count++
		}
	}
	s.store.Status.Backups = &count
	s.store.Status.ObservedGeneration = s.store.Generation
	if err := objects.PatchStatus(ctx, r.Client, s.before, s.store); err != nil {
		return fmt.Errorf("writing the TalosBackupStore: %w", err)
	}
	if s.usable.Status == "False" && (was == nil || was.Status != s.usable.Status || was.Reason != s.usable.Reason) {
		r.Recorder.Eventf(s.store, nil, corev1.EventTypeWarning, s.usable.Reason, "Check", "%s", s.usable.Message)
	}

	return nil
}

// backupToStore maps a backup to its store.
func backupToStore(_ context.Context, object client.Object) []ctrl.Request {
	backup, ok := object.(*backupv1.TalosEtcdBackup)
	if !ok {
		return nil
	}

	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: backup.Namespace, Name: backup.Spec.StoreName}}}
}

// secretToStores maps a Secret to the stores that need it.
func (r *StoreReconciler) secretToStores(ctx context.Context, object client.Object) []ctrl.Request {
	list := &backupv1.TalosBackupStoreList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the TalosBackupStores of a Secret", "Secret", klog.KObj(object))
		return nil
	}

	return reconciliation.Requests(list.Items, func(store *backupv1.TalosBackupStore) bool {
		return slices.Contains([]string{store.Spec.S3.CredentialsSecretName, store.Spec.S3.CASecretName, store.Spec.S3.Encryption.CustomerKeySecretName}, object.GetName())
	})
}
