package addons

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/gomega"
)

// make bench-addons has TestBesideCAAPH measure: it prints what both take.
var (
	besideCAAPH  = flag.Bool("caaph", false, "build CAAPH, and measure the add-on provider beside it")
	clusterCount = flag.Int("clusters", 20, "how many workload clusters there are with -caaph")
	rounds       = flag.Int("rounds", 3, "how often both are measured with -caaph")
	idle         = flag.Duration("idle", 2*time.Minute, "for how long a provider is left alone with -caaph")
)

// The goals: which part of the time and of the memory of CAAPH ours may take.
const maxTime, maxMemory = 0.5, 1

// TestBesideCAAPH has our provider and CAAPH bring the same chart to the same clusters, in
// turns, each from nothing. It fails where something does not arrive; how long that takes is
// printed, and judged by nobody.
func TestBesideCAAPH(t *testing.T) {
	if !*besideCAAPH {
		t.Skip("CAAPH is built and measured by make bench-addons only")
	}
	b := newBench(t)
	found := map[string][]figures{}
	for round := range *rounds {
		order := slices.Clone(b.contenders)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			measured := b.measure(c, fmt.Sprintf("%s-%d", c.name, round+1))
			found[c.name] = append(found[c.name], measured)
			t.Logf("round %d, %s: installed after %.1f s, changed after %.1f s", round+1, c.name, measured.installed, measured.changed)
		}
	}
	t.Log(table(*clusterCount, found[ours], found[caaph]))
}

// figures are what a provider has taken in one round.
type figures struct {
	// installed, changed and removed are after how many seconds all clusters had the chart,
	// the changed value, and nothing.
	installed, changed, removed float64
	// management and workloads are the API calls for the first two of these, of the
	// management cluster and of all workload clusters.
	management, workloads float64
	// restManagement and restWorkloads are those of a minute in which there was nothing to
	// do.
	restManagement, restWorkloads float64
	// residentMiB is the memory of the process at the end of the rest, and peakMiB the most
	// that it had until then.
	residentMiB, peakMiB float64
	// programMiB is how much of residentMiB are pages of the program, which others that run it
	// would share.
	programMiB float64
}

// table has a row of each figure: that of each round, the medians, and their ratio.
func table(clusters int, ours, theirs []figures) string {
	text := &strings.Builder{}
	out := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\n%d CLUSTERS\tOURS\tMEDIAN\tCAAPH\tMEDIAN\tRATIO\tGOAL\n", clusters)
	for _, row := range []struct {
		name string
		of   func(figures) float64
		goal float64
	}{
		{"seconds until all have the chart", func(f figures) float64 { return f.installed }, maxTime},
		{"seconds until all have a changed value", func(f figures) float64 { return f.changed }, maxTime},
		{"seconds until none has the chart", func(f figures) float64 { return f.removed }, 0},
		{"API calls to install and change, management cluster", func(f figures) float64 { return f.management }, 0},
		{"API calls to install and change, workload clusters", func(f figures) float64 { return f.workloads }, 0},
		{"API calls a minute at rest, management cluster", func(f figures) float64 { return f.restManagement }, 0},
		{"API calls a minute at rest, workload clusters", func(f figures) float64 { return f.restWorkloads }, 0},
		{"MiB at rest", func(f figures) float64 { return f.residentMiB }, maxMemory},
		{"MiB at rest, of these of its program", func(f figures) float64 { return f.programMiB }, 0},
		{"MiB at most", func(f figures) float64 { return f.peakMiB }, 0},
	} {
		own, ownMedian := column(ours, row.of)
		other, otherMedian := column(theirs, row.of)
		fmt.Fprintf(out, "%s\t%s\t%.1f\t%s\t%.1f\t%s\n", row.name, own, ownMedian, other, otherMedian, judged(ownMedian, otherMedian, row.goal))
	}
	_ = out.Flush()

	return text.String()
}

// column is a figure of all rounds, and its median.
func column(rounds []figures, of func(figures) float64) (string, float64) {
	var values []float64
	var words []string
	for _, round := range rounds {
		values, words = append(values, of(round)), append(words, fmt.Sprintf("%.1f", of(round)))
	}
	slices.Sort(values)

	return strings.Join(words, " "), values[len(values)/2]
}

// judged are the ratio and the goal of two medians. A goal of 0 is none.
func judged(ours, theirs, goal float64) string {
	if theirs == 0 {
		return "-\t"
	}
	ratio := ours / theirs
	switch {
	case goal == 0:
		return fmt.Sprintf("%.2f\t", ratio)
	case ratio <= goal:
		return fmt.Sprintf("%.2f\t≤ %.2f: met", ratio, goal)
	default:
		return fmt.Sprintf("%.2f\t≤ %.2f: missed", ratio, goal)
	}
}

func TestRatiosAreThoseOfTheMedians(t *testing.T) {
	t.Parallel()
	round := func(installed, changed, resting float64) figures {
		return figures{installed: installed, changed: changed, restWorkloads: resting, residentMiB: 40, peakMiB: 80}
	}
	NewWithT(t).Expect(table(20,
		[]figures{round(10, 9, 6), round(50, 6, 6), round(20, 1, 6)},
		[]figures{round(30, 10, 0), round(40, 5, 0), round(500, 10, 0)},
	)).To(And(
		ContainSubstring("20 CLUSTERS"),
		MatchRegexp(`have the chart +10\.0 50\.0 20\.0 +20\.0 +30\.0 40\.0 500\.0 +40\.0 +0\.50 +≤ 0\.50: met`),
		MatchRegexp(`changed value .* 0\.60 +≤ 0\.50: missed`),
		MatchRegexp(`at rest, workload clusters .* 0\.0 +-\s`),
		MatchRegexp(`MiB at rest .* 1\.00 +≤ 1\.00: met`),
		MatchRegexp(`MiB at most .* 1\.00\s`),
	))
}
