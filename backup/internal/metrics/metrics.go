// Package metrics counts what the backup provider does. Nothing in it grows with backups or
// clusters: kube-state-metrics tells about each of these.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/collectors"
)

// Values of the label result of what is done for a backup.
const (
	resultSucceeded = "succeeded"
	resultFailed    = "failed"
)

// Step is something that is done for a backup.
type Step string

// The steps.
const (
	// StepBackUp takes a snapshot and stores it.
	StepBackUp Step = "BackUp"
	// StepVerify verifies what the store has.
	StepVerify Step = "Verify"
	// StepDelete deletes it.
	StepDelete Step = "Delete"
	// StepCheckRestore makes the database of a backup, to see whether it can be restored.
	StepCheckRestore Step = "CheckRestore"
	// StepSend makes it, and sends a node the database.
	StepSend Step = "Send"
)

// Metrics are those of a manager. It is a prometheus.Collector, and safe for concurrent
// use.
type Metrics struct {
	// Several are all of them, and those that are read when somebody asks.
	collectors.Several

	attempts    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	plainBytes  prometheus.Counter
	storedBytes prometheus.Counter
	checks      *prometheus.CounterVec
	pruned      prometheus.Counter
}

var _ prometheus.Collector = &Metrics{}

// New returns Metrics that have counted nothing yet, and that show it to nobody. jobs tells
// how many jobs run, and how many backups wait for one.
func New(jobs func() (running, waiting int)) *Metrics {
	m := &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_backup_attempts_total",
			Help: "Attempts to make, verify, delete, check and send backups, by step and result.",
		}, []string{"step", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "capi_talos_backup_attempt_duration_seconds",
			Help: "How long attempts to make, verify, delete, check and send backups took.",
			// By default a backup is tried for an hour.
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
		}, []string{"step", "result"}),
		plainBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "capi_talos_backup_plain_bytes_total",
			Help: "Bytes of the snapshots that were stored, as etcd has given them.",
		}),
		storedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "capi_talos_backup_stored_bytes_total",
			Help: "Bytes of the snapshots that were stored, as the stores have them.",
		}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_backup_store_checks_total",
			Help: "Checks of stores, by the reason of condition Ready that they have led to.",
		}, []string{"result"}),
		pruned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "capi_talos_backup_pruned_total",
			Help: "Backups that schedules have deleted because their retention does not keep them.",
		}),
	}
	m.Several = collectors.Several{
		m.attempts, m.durations, m.plainBytes, m.storedBytes, m.checks, m.pruned,
		collectors.Jobs("capi_talos_backup_jobs", "Jobs, each of which makes, verifies or deletes a backup: those that run, and backups that wait for one.", jobs),
	}
	m.beginAtZero()

	return m
}

// beginAtZero shows what was not counted yet as 0: Prometheus sees no increase in a series
// that begins with 1.
func (m *Metrics) beginAtZero() {
	for _, step := range []Step{StepBackUp, StepVerify, StepDelete, StepCheckRestore, StepSend} {
		for _, result := range []string{resultSucceeded, resultFailed} {
			m.attempts.WithLabelValues(string(step), result)
		}
	}
	m.checks.WithLabelValues(backupv1.ReadyReason)
}

// Register registers the Metrics, in place of those that a former manager of the same
// process has left.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	return collectors.Register(registry, m, "backups")
}

// Ended counts a step that has taken a time, and failed if err is not nil.
func (m *Metrics) Ended(step Step, took time.Duration, err error) {
	result := resultSucceeded
	if err != nil {
		result = resultFailed
	}
	m.attempts.WithLabelValues(string(step), result).Inc()
	m.durations.WithLabelValues(string(step), result).Observe(took.Seconds())
}

// Stored counts the bytes of a snapshot that was stored.
func (m *Metrics) Stored(plain, stored int64) {
	m.plainBytes.Add(float64(plain))
	m.storedBytes.Add(float64(stored))
}

// Checked counts a check of a store, by the reason that condition Ready has after it.
func (m *Metrics) Checked(reason string) { m.checks.WithLabelValues(reason).Inc() }

// Pruned counts a backup that retention does not keep.
func (m *Metrics) Pruned() { m.pruned.Inc() }
