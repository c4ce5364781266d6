// Package metrics counts what the add-on provider does to releases, and asks of sources.
// Nothing in it grows with add-ons or clusters: kube-state-metrics tells about each of
// these.
package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/collectors"
)

// Values of the label result of actions.
const (
	actionSucceeded = "succeeded"
	// actionRefused says that nothing was done, and that the same is refused again.
	actionRefused = "refused"
	// actionUnreachable says that the API server of the cluster did not answer.
	actionUnreachable = "unreachable"
	actionFailed      = "failed"
)

// Values of the label result of looks for drift.
const (
	driftNone  = "none"
	driftFound = "found"
)

// LeftBehind is why a release stays in a cluster though its object goes.
type LeftBehind string

// Why releases stay.
const (
	// LeftClusterGone says that the Cluster is gone.
	LeftClusterGone LeftBehind = "cluster_gone"
	// LeftClusterDeleting says that the Cluster is being deleted.
	LeftClusterDeleting LeftBehind = "cluster_deleting"
	// LeftMoved says that clusterctl has moved the object to another management cluster.
	LeftMoved LeftBehind = "moved"
	// LeftOrphaned says that its deletionPolicy is Orphan.
	LeftOrphaned LeftBehind = "orphaned"
	// LeftForced says that the annotation addons.cluster.x-k8s.io/force-delete has it so.
	LeftForced LeftBehind = "forced"
	// LeftTimedOut says that it could not be uninstalled in time.
	LeftTimedOut LeftBehind = "timed_out"
	// LeftIncomplete says that its uninstallation has failed after it had deleted the history.
	LeftIncomplete LeftBehind = "incomplete"
)

// Metrics are those of a manager. It is a prometheus.Collector, and safe for concurrent
// use.
type Metrics struct {
	// Several are all of them, and those that are read when somebody asks.
	collectors.Several

	clock clock.PassiveClock

	actions             *prometheus.CounterVec
	actionDurations     *prometheus.HistogramVec
	driftChecks         *prometheus.CounterVec
	driftedObjects      prometheus.Counter
	resolutions         *prometheus.CounterVec
	resolutionDurations *prometheus.HistogramVec
	leftBehind          *prometheus.CounterVec
}

var _ prometheus.Collector = &Metrics{}

// New returns Metrics that have counted nothing yet, and that show it to nobody. jobs tells
// how many jobs run, and how many releases wait for one.
func New(passiveClock clock.PassiveClock, jobs func() (running, waiting int)) *Metrics {
	m := &Metrics{
		clock: passiveClock,
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_addon_actions_total",
			Help: "Actions on releases, by action and result.",
		}, []string{"action", "result"}),
		actionDurations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "capi_talos_addon_action_duration_seconds",
			Help: "How long actions on releases took.",
			// By default an action may take ten minutes, and an uninstallation is tried for
			// fifteen.
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 900},
		}, []string{"action", "result"}),
		driftChecks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_addon_drift_checks_total",
			Help: "How often was looked for drift in a release, by whether there was some.",
		}, []string{"result"}),
		driftedObjects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "capi_talos_addon_drifted_objects_total",
			Help: "Objects that were found changed, each time that they were.",
		}),
		resolutions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_addon_source_resolutions_total",
			Help: "How often sources were resolved to charts, by kind of source and result.",
		}, []string{"source", "result"}),
		resolutionDurations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "capi_talos_addon_source_resolution_duration_seconds",
			Help: "How long it took to resolve a source to a chart, and to fetch that where it was new.",
			// An index and an archive may take two minutes each (package source).
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 240},
		}, []string{"source", "result"}),
		leftBehind: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_addon_releases_left_behind_total",
			Help: "Releases that were not uninstalled though their object has gone, by reason.",
		}, []string{"reason"}),
	}
	m.Several = collectors.Several{
		m.actions, m.actionDurations, m.driftChecks, m.driftedObjects, m.resolutions, m.resolutionDurations, m.leftBehind,
		collectors.Jobs("capi_talos_addon_jobs", "Jobs, each of which looks at a release and acts on it: those that run, and releases that wait for one.", jobs),
	}
	m.beginAtZero()

	return m
}

// beginAtZero shows what was not counted yet as 0: Prometheus sees no increase in a series
// that begins with 1.
func (m *Metrics) beginAtZero() {
	for _, action := range []addonv1.ReleaseAction{
		addonv1.ActionInstall, addonv1.ActionUpgrade, addonv1.ActionUnlock, addonv1.ActionCorrectDrift, addonv1.ActionRollback, addonv1.ActionUninstall, addonv1.ActionTest,
	} {
		for _, result := range []string{actionSucceeded, actionRefused, actionUnreachable, actionFailed} {
			m.actions.WithLabelValues(string(action), result)
		}
	}
	for _, result := range []string{driftNone, driftFound} {
		m.driftChecks.WithLabelValues(result)
	}
	for _, reason := range []LeftBehind{LeftClusterGone, LeftClusterDeleting, LeftMoved, LeftOrphaned, LeftForced, LeftTimedOut, LeftIncomplete} {
		m.leftBehind.WithLabelValues(string(reason))
	}
}

// Register registers the Metrics, in place of those that a former manager of the same
// process has left.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	return collectors.Register(registry, m, "add-ons")
}

// Ended counts what a job has done and found. It is called once for each job.
func (m *Metrics) Ended(result release.Result) {
	for _, done := range result.Done {
		action, how := string(done.Action), resultOf(done.Err)
		m.actions.WithLabelValues(action, how).Inc()
		m.actionDurations.WithLabelValues(action, how).Observe(done.Took.Seconds())
	}
	if !result.DriftLookedFor {
		return
	}
	found := driftNone
	if len(result.Drift) > 0 {
		found = driftFound
	}
	m.driftChecks.WithLabelValues(found).Inc()
	m.driftedObjects.Add(float64(len(result.Drift)))
}

// LeftBehind counts a release that stays in its cluster.
func (m *Metrics) LeftBehind(reason LeftBehind) {
	m.leftBehind.WithLabelValues(string(reason)).Inc()
}

// resultOf is how an action has ended.
func resultOf(err error) string {
	refused := (*release.RefusedError)(nil)
	switch {
	case err == nil:
		return actionSucceeded
	case errors.As(err, &refused):
		return actionRefused
	case errors.Is(err, release.ErrUnreachable):
		return actionUnreachable
	}

	return actionFailed
}
