// Package faults is the fault matrix: every fault at every moment in the life of a
// control plane, with the managers killed in the middle, and talossim's model of
// etcd as the judge.
package faults

import (
	"errors"
	"flag"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

// These are what is asked for on the command line, after -args.
var (
	count = flag.Int("cells", 11, "run so many cells of the matrix, spread over it: with 11 each fault and each moment, from 154 on all")
	only  = flag.String("only", "", "run the cells whose name <fault>-<moment>-<replicas> this expression fits")
	slots = flag.String("slots", "14", "run so many cells at a time; they wait most of the time")
	file  = flag.String("table", "", "write the table there (default: out/fault-matrix.txt)")
)

var (
	world   bed.World
	killing = newKiller()
	// seen reads what is told of control planes and Machines.
	seen client.Reader
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", *slots)
	bed.Main(m, bed.Options{}, &world)
}

// TestFaultMatrix runs the cells in one management cluster, each in a namespace and
// with a fleet of its own.
func TestFaultMatrix(t *testing.T) {
	var fitting *regexp.Regexp
	if *only != "" {
		fitting = regexp.MustCompile(*only)
	}
	results, begin := &table{}, time.Now()
	var err error
	if seen, err = watching(t.Context()); err != nil {
		t.Fatal(err)
	}
	go killing.serve(t.Context())
	t.Run("cells", func(t *testing.T) {
		for _, cell := range selected(*count, fitting) {
			t.Run(cell.name(), func(t *testing.T) {
				t.Parallel()
				result := play(t, cell)
				results.add(result)
				if result.why != nil {
					t.Error(result.why)
				}
			})
		}
	})
	results.print(t.Output())
	t.Logf("the managers were killed %d times in %.0f minutes", killing.rounds, time.Since(begin).Minutes())
	if *file == "" {
		*file = filepath.Join(world.Source, "out", "fault-matrix.txt")
	}
	if err := results.write(*file); err != nil {
		t.Error(err)
	}
	if err := errors.Join(world.Stack.Check(), results.seldomInTheMiddle()); err != nil {
		t.Error(err)
	}
}

func play(t *testing.T, of cell) outcome {
	t.Helper()
	result := outcome{cell: of, impossible: impossible()[of.name()]}
	if result.impossible != "" {
		return result
	}
	r := &run{cell: of, ctx: t.Context()}
	result.why = r.play()
	result.took = r.took
	result.lost, result.middle = r.told, r.middle
	t.Logf("%s after %.0f s", result.result(), r.took.Seconds())
	if result.why != nil {
		r.report(t)
	}
	if err := r.giveUp(); err != nil {
		t.Log(err)
	}
	return result
}

// report tells what is known about a cell that failed.
func (r *run) report(t *testing.T) {
	t.Helper()
	if r.victim != nil {
		t.Logf("broken was %s, node %q", r.victim.Spec().Name, r.victim.Hostname())
	}
	if controlPlane, err := r.controlPlane(); err == nil {
		t.Logf("conditions: %s", summary(controlPlane))
	}
	if r.fleet == nil {
		return
	}
	for _, act := range r.fleet.Sim.Acts() {
		t.Log(act)
	}
	for _, m := range r.machines() {
		t.Logf("%s node=%q stage=%s etcd data=%t serves=%t voters answering %s", m.Spec().Name, m.Hostname(), m.Stage(), m.HasEtcdData(), m.ServesAPI(), r.fleet.Sim.Voters(m))
	}
}
