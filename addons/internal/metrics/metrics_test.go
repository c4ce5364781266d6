package metrics

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/test/support/series"
)

func none() (int, int) { return 0, 0 }

func newClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, time.November, 24, 12, 0, 0, 0, time.UTC))
}

func registered(g Gomega, metrics *Metrics) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	g.Expect(metrics.Register(registry)).To(Succeed())

	return registry
}

func TestActionsAreCountedByHowTheyEnd(t *testing.T) {
	g := NewWithT(t)
	metrics := New(newClock(), none)
	registry := registered(g, metrics)
	refused := &release.RefusedError{Reason: addonv1.CRDConflictReason, Message: "it is another release's"}
	metrics.Ended(release.Result{Done: []release.Done{
		{Action: addonv1.ActionInstall, Took: 3 * time.Second, Err: errors.New("it is broken")},
		{Action: addonv1.ActionUninstall, Took: time.Second},
	}})
	metrics.Ended(release.Result{Done: []release.Done{{Action: addonv1.ActionInstall, Took: time.Minute}}})
	metrics.Ended(release.Result{Done: []release.Done{{Action: addonv1.ActionInstall, Took: 20 * time.Minute}}})
	metrics.Ended(release.Result{Done: []release.Done{{Action: addonv1.ActionUpgrade, Err: fmt.Errorf("upgrading: %w", refused)}}})
	metrics.Ended(release.Result{Done: []release.Done{{Action: addonv1.ActionUpgrade, Err: fmt.Errorf("%w: no connection", release.ErrUnreachable)}}}.Redacted(strings.ToUpper))

	ends := []string{"Install failed 1", "Install succeeded 2", "Uninstall succeeded 1", "Upgrade refused 1", "Upgrade unreachable 1"}
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_actions_total")).To(Equal(ends))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_action_duration_seconds")).To(Equal(ends))
	g.Expect(testutil.CollectAndCompare(metrics.actionDurations.WithLabelValues("Install", "succeeded").(prometheus.Collector), strings.NewReader(`
# HELP capi_talos_addon_action_duration_seconds How long actions on releases took.
# TYPE capi_talos_addon_action_duration_seconds histogram
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="0.1"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="0.25"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="0.5"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="1"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="2.5"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="5"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="10"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="30"} 0
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="60"} 1
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="120"} 1
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="300"} 1
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="600"} 1
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="900"} 1
capi_talos_addon_action_duration_seconds_bucket{action="Install",result="succeeded",le="+Inf"} 2
capi_talos_addon_action_duration_seconds_sum{action="Install",result="succeeded"} 1260
capi_talos_addon_action_duration_seconds_count{action="Install",result="succeeded"} 2
`))).To(Succeed())
}

func TestDriftIsCountedWhereItWasLookedFor(t *testing.T) {
	g := NewWithT(t)
	metrics := New(newClock(), none)
	registry := registered(g, metrics)
	metrics.Ended(release.Result{Drift: []addonv1.DriftedObject{{Object: "ConfigMap/a/b", Change: "Missing"}}})
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_drift_checks_total")).To(BeEmpty())
	metrics.Ended(release.Result{DriftLookedFor: true})
	metrics.Ended(release.Result{DriftLookedFor: true, Drift: []addonv1.DriftedObject{
		{Object: "ConfigMap/a/b", Change: "Missing"}, {Object: "ConfigMap/a/c", Change: "/data/x"},
	}})
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_drift_checks_total")).To(Equal([]string{"found 1", "none 1"}))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_drifted_objects_total")).To(Equal([]string{"2"}))
}

// TestWhatNeverHappenedIsZero: Prometheus sees an increase only where it has seen less.
func TestWhatNeverHappenedIsZero(t *testing.T) {
	g := NewWithT(t)
	registry := registered(g, New(newClock(), none))
	for family, count := range map[string]int{
		"capi_talos_addon_actions_total": 7 * 4, "capi_talos_addon_drift_checks_total": 2, "capi_talos_addon_drifted_objects_total": 1,
		"capi_talos_addon_releases_left_behind_total": 7, "capi_talos_addon_jobs": 2,
	} {
		g.Expect(testutil.GatherAndCount(registry, family)).To(Equal(count), family)
		g.Expect(series.NonZero(g, registry, family)).To(BeEmpty(), family)
	}
}

func TestJobsAreReadWhenSomebodyAsks(t *testing.T) {
	g, running, waiting := NewWithT(t), 3, 5
	registry := registered(g, New(newClock(), func() (int, int) { return running, waiting }))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_jobs")).To(Equal([]string{"running 3", "waiting 5"}))
	running, waiting = 0, 1
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_jobs")).To(Equal([]string{"waiting 1"}))
}

func TestReleasesThatAreLeftBehindAreCounted(t *testing.T) {
	g := NewWithT(t)
	metrics := New(newClock(), none)
	metrics.LeftBehind(LeftTimedOut)
	metrics.LeftBehind(LeftTimedOut)
	metrics.LeftBehind(LeftForced)
	g.Expect(series.NonZero(g, registered(g, metrics), "capi_talos_addon_releases_left_behind_total")).To(Equal([]string{"forced 1", "timed_out 2"}))
}

// slow is where a chart is found after a second, or not.
type slow struct {
	clock *clocktesting.FakeClock
	err   error
}

func (s *slow) Find(context.Context, addonv1.AddonSource, source.Access) (source.Found, error) {
	s.clock.Step(time.Second)

	return source.Found{Version: "1.0.0", Digest: "sha256:one"}, s.err
}

func TestResolutionsAreCountedByKindAndResult(t *testing.T) {
	g, clock := NewWithT(t), newClock()
	finder := &slow{clock: clock}
	metrics := New(clock, none)
	registry := registered(g, metrics)
	charts := metrics.Charts(source.NewCharts(finder, func([]byte) (source.Metadata, error) { return source.Metadata{Name: "demo"}, nil }))
	repository := addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://example.com", Chart: "demo"}}
	registryOf := addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://example.com/demo"}}
	known := addonv1.ChartStatus{Version: "1.0.0", Digest: "sha256:one"}

	found, err := charts.Resolve(t.Context(), repository, source.Access{}, known)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(Equal(known))
	finder.err = &source.Error{Reason: addonv1.SourceUnreachableReason, Message: "no connection"}
	_, err = charts.Resolve(t.Context(), registryOf, source.Access{}, known)
	g.Expect(err).To(Equal(finder.err))
	finder.err = errors.New("something else")
	_, err = charts.Resolve(t.Context(), registryOf, source.Access{}, known)
	g.Expect(err).To(Equal(finder.err))
	taken, err := charts.Take([]byte("one"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(taken.Name).To(Equal("demo"))
	_, err = charts.Archive(t.Context(), addonv1.AddonSource{}, source.Access{}, taken)
	g.Expect(err).NotTo(HaveOccurred(), "it is kept, and no resolution")

	results := []string{"Available ConfigMap 1", "Available Repository 1", "Failed Registry 1", "SourceUnreachable Registry 1"}
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_source_resolutions_total")).To(Equal(results))
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_source_resolution_duration_seconds")).To(Equal(results))
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "capi_talos_addon_source_resolution_duration_seconds" && metric.GetLabel()[1].GetValue() == "Repository" {
				g.Expect(metric.GetHistogram().GetSampleSum()).To(BeEquivalentTo(1))
			}
		}
	}
}

func TestTheNextManagerOfAProcessTakesOver(t *testing.T) {
	g := NewWithT(t)
	former := New(newClock(), none)
	registry := registered(g, former)
	former.LeftBehind(LeftForced)
	g.Expect(New(newClock(), none).Register(registry)).To(Succeed())
	g.Expect(series.NonZero(g, registry, "capi_talos_addon_releases_left_behind_total")).To(BeEmpty())
}
