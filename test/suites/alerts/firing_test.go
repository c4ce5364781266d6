package alerts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// step is how far the samples of a series are apart, and how often rules are evaluated.
const step = time.Minute

// sample is a sample of a series. Nothing else is asked of one that is no histogram.
type sample struct {
	chunks.Sample

	at    int64
	value float64
}

func (s sample) T() int64                 { return s.at }
func (s sample) ST() int64                { return 0 }
func (s sample) F() float64               { return s.value }
func (s sample) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// world is what Prometheus knows.
type world struct {
	series []*storage.SeriesEntry
	end    time.Time
}

// worldOf reads series as promtool's unit tests have them: their samples begin at the epoch.
func worldOf(g Gomega, descriptions []string) *world {
	made := &world{}
	for _, text := range descriptions {
		name, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(text)
		g.Expect(err).NotTo(HaveOccurred(), text)
		var samples []chunks.Sample
		for i, value := range values {
			at := time.Unix(0, 0).Add(time.Duration(i) * step)
			if !value.Omitted {
				samples = append(samples, sample{at: at.UnixMilli(), value: value.Value})
			}
			if at.After(made.end) {
				made.end = at
			}
		}
		made.series = append(made.series, storage.NewListSeries(name, samples))
	}

	return made
}

// Querier implements storage.Queryable.
func (w *world) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		matching := &seriesSet{}
		for _, series := range w.series {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.Labels().Get(m.Name)) }) {
				matching.left = append(matching.left, series)
			}
		}
		return matching
	}}, nil
}

// seriesSet implements storage.SeriesSet.
type seriesSet struct {
	current *storage.SeriesEntry
	left    []*storage.SeriesEntry
}

func (s *seriesSet) Next() bool {
	if len(s.left) == 0 {
		return false
	}
	s.current, s.left = s.left[0], s.left[1:]

	return true
}

func (s *seriesSet) At() storage.Series                { return s.current }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// firing are the alerts of a rule that fire in the end: "<alert>: <summary>".
func firing(ctx context.Context, g Gomega, rule rule, world *world) []string {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer func() { g.Expect(engine.Close()).To(Succeed()) }()
	query, err := engine.NewRangeQuery(ctx, world, nil, rule.Expr, time.Unix(0, 0), world.end, step)
	g.Expect(err).NotTo(HaveOccurred())
	defer query.Close()
	found, err := query.Exec(ctx).Matrix()
	g.Expect(err).NotTo(HaveOccurred())
	pending := time.Duration(0)
	if rule.For != "" {
		pending, err = time.ParseDuration(rule.For)
		g.Expect(err).NotTo(HaveOccurred())
	}
	var alerts []string
	for _, series := range found {
		since := world.end.Add(step)
		for _, point := range slices.Backward(series.Floats) {
			if point.T != since.Add(-step).UnixMilli() {
				break
			}
			since = since.Add(-step)
		}
		if last := len(series.Floats) - 1; world.end.Sub(since) >= pending {
			alerts = append(alerts, rule.Alert+": "+summary(g, rule.Annotations["summary"], series.Metric, series.Floats[last].F))
		}
	}

	return alerts
}

// expectFiring says that of what is known, one value a minute, these alerts fire in the end,
// and no other one of the file does.
func expectFiring(t *testing.T, series, wanted []string) {
	t.Helper()
	g := NewWithT(t)
	world := worldOf(g, series)
	var fires []string
	for _, rule := range all(g) {
		fires = append(fires, firing(t.Context(), g, rule, world)...)
	}
	g.Expect(fires).To(Equal(wanted))
}

func summary(g Gomega, text string, of labels.Labels, value float64) string {
	parsed, err := template.New("summary").
		Funcs(template.FuncMap{"humanize1024": fmt.Sprint, "humanizeDuration": fmt.Sprint, "humanizePercentage": fmt.Sprint}).
		Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + text)
	g.Expect(err).NotTo(HaveOccurred())
	var written strings.Builder
	g.Expect(parsed.Execute(&written, map[string]any{"Labels": of.Map(), "Value": value})).To(Succeed())

	return written.String()
}

// Beginnings of series of an add-on, and of its release in a cluster.
const (
	ofAddon   = `capi_talosclusteraddon_status_condition{namespace="fleet", name="demo", `
	ofRelease = `capi_talosclusteraddonrelease_status_condition{namespace="fleet", name="demo-blue", cluster_name="blue", `
	reasonOf  = `capi_talosclusteraddonrelease_status_condition_reason{namespace="fleet", name="demo-blue", cluster_name="blue", `
	leftOf    = `capi_talos_addon_releases_left_behind_total{pod="manager", `
)

func TestAddonAlerts(t *testing.T) {
	const (
		noChart  = "TalosAddonChartNotAvailable: The source of TalosClusterAddon fleet/demo has had no chart for an hour"
		notReady = "TalosAddonReleaseNotReady: TalosClusterAddonRelease fleet/demo-blue in cluster blue has not been ready for an hour"
		drifted  = "TalosAddonReleaseDrifted: Objects of TalosClusterAddonRelease fleet/demo-blue in cluster blue have been changed for an hour"
		left     = "TalosAddonReleaseLeftBehind: Releases of add-ons were left in their clusters because they could not be uninstalled in time"
		stalled  = "TalosAddonReleaseStalled: TalosClusterAddonRelease fleet/demo-blue in cluster blue needs somebody: "
	)
	for name, tt := range map[string]struct{ series, fires []string }{
		"a source has had no chart for an hour":  {[]string{ofAddon + `type="ChartAvailable", status="False"} 0 1x60`}, []string{noChart}},
		"two replicas of kube-state-metrics":     {[]string{ofAddon + `type="ChartAvailable", status="False", pod="a"} 1x60`, ofAddon + `type="ChartAvailable", status="False", pod="b"} 1x60`}, []string{noChart}},
		"for less":                               {[]string{ofAddon + `type="ChartAvailable", status="False"} 0 0 1x59`}, nil},
		"with a chart in between":                {[]string{ofAddon + `type="ChartAvailable", status="False"} 1x60 0 1x50`}, nil},
		"a source that has one":                  {[]string{ofAddon + `type="ChartAvailable", status="True"} 1x90`, ofAddon + `type="ChartAvailable", status="False"} 0x90`}, nil},
		"another condition of an add-on":         {[]string{ofAddon + `type="ReleasesReady", status="False"} 1x90`}, nil},
		"a release was given up":                 {[]string{reasonOf + `type="Ready", status="False", reason="Stalled"} 1x15`}, []string{stalled + "Stalled"}},
		"and nobody came":                        {[]string{reasonOf + `type="Ready", status="False", reason="Stalled"} 1x90`}, []string{stalled + "Stalled"}},
		"values cannot be made":                  {[]string{reasonOf + `type="Ready", status="False", reason="ValuesInvalid"} 1x90`}, []string{stalled + "ValuesInvalid"}},
		"it was given up a moment ago":           {[]string{reasonOf + `type="Ready", status="False", reason="Stalled"} 1x14`}, nil},
		"a release waits for others":             {[]string{reasonOf + `type="Ready", status="Unknown", reason="WaitingForDependencies"} 1x60`}, []string{notReady}},
		"first for some, then for others":        {[]string{reasonOf + `type="Ready", status="Unknown", reason="WaitingForNetwork"} 1x30 stale`, reasonOf + `type="Ready", status="Unknown", reason="WaitingForDependencies"} _x31 1x30`}, []string{notReady}},
		"an action fails, and is tried again":    {[]string{reasonOf + `type="Ready", status="False", reason="ActionFailed"} 1x61`}, []string{notReady}},
		"a release is ready":                     {[]string{reasonOf + `type="Ready", status="True", reason="Ready"} 1x90`}, nil},
		"it was not ready for less than an hour": {[]string{reasonOf + `type="Ready", status="False", reason="ActionFailed"} 1x59`}, nil},
		"it is only planned":                     {[]string{reasonOf + `type="Ready", status="Unknown", reason="Planned"} 1x90`}, nil},
		"it is being removed":                    {[]string{reasonOf + `type="Ready", status="False", reason="Deleting"} 1x90`}, nil},
		"it is paused":                           {[]string{reasonOf + `type="Ready", status="False", reason="ActionFailed"} 1x90`, ofRelease + `type="Paused", status="True"} 1x90`}, nil},
		"it is not paused any more":              {[]string{reasonOf + `type="Ready", status="False", reason="ActionFailed"} 1x90`, ofRelease + `type="Paused", status="True"} 1x20 0x70`}, []string{notReady}},
		"objects were changed":                   {[]string{ofRelease + `type="Drifted", status="True"} 1x60`}, []string{drifted}},
		"and changed back":                       {[]string{ofRelease + `type="Drifted", status="True"} 1x60 0`}, nil},
		"a release was left behind":              {[]string{leftOf + `reason="timed_out"} 0x30 1x20`}, []string{left}},
		"long ago":                               {[]string{leftOf + `reason="timed_out"} 0x30 1x90`}, nil},
		"because a person wanted it":             {[]string{leftOf + `reason="forced"} 0x30 1x20`, leftOf + `reason="orphaned"} 0x30 1x20`}, nil},
	} {
		t.Run(name, func(t *testing.T) { expectFiring(t, tt.series, tt.fires) })
	}
}
