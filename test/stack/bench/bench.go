// Package bench measures the main job: beside the floor, which is a program that
// only makes the Talos calls that are needed, and what the managers take of the
// machine.
package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// Options are what a Bench is made of.
type Options struct {
	// Stack is the management cluster. Nothing else runs on it.
	Stack *management.Stack
	// Fleet has the machines that are built upon, Sim pretended ones for what
	// asks for many.
	Fleet fleet.Fleet
	Sim   *simfleet.Fleet
	// Rounds is how often each measurement is made.
	Rounds int
	// Clusters is how many clusters the managers hold when their size is measured.
	Clusters int
	// Output gets the tables, and what goes on.
	Output io.Writer
}

// Bench measures.
type Bench struct {
	Options

	client *testClient
}

// The goals: how much longer than the floor we may take, and how much memory a
// manager may take that holds nothing.
const (
	maxRatio       = 1.15
	maxIdleMiB     = 50
	controlPlanes  = 3
	pollInterval   = 100 * time.Millisecond
	measureTimeout = 15 * time.Minute
)

// Run makes all measurements and prints them. A goal that is missed is no error.
func Run(ctx context.Context, options Options) error {
	client, err := newClient(options.Stack.Config)
	if err != nil {
		return err
	}
	b := &Bench{Options: options, client: client}
	for _, measure := range []func(context.Context) error{b.sizes, b.replacements, b.buildUp} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) say(format string, args ...any) { fmt.Fprintf(b.Output, format+"\n", args...) }

// buildUp prints how long a control plane takes, ours beside the floor. Each round
// measures both, in turns.
func (b *Bench) buildUp(ctx context.Context) error {
	var floors, ours []stages
	for round := range b.Rounds {
		measures := []func(context.Context, int) error{
			func(ctx context.Context, round int) error {
				found, err := b.floor(ctx, fmt.Sprintf("floor-%d", round))
				floors = append(floors, found)
				return err
			},
			func(ctx context.Context, round int) error {
				found, err := b.ours(ctx, fmt.Sprintf("ours-%d", round))
				ours = append(ours, found)
				return err
			},
		}
		if round%2 == 1 {
			slices.Reverse(measures)
		}
		for _, measure := range measures {
			if err := b.bounded(ctx, func(ctx context.Context) error { return measure(ctx, round) }); err != nil {
				return err
			}
		}
		b.say("round %d: floor %s, ours %s", round+1, floors[round], ours[round])
	}
	b.printBuildUp(floors, ours)
	return nil
}

func (b *Bench) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	return do(ctx)
}

// stages are when what was seen first, from the beginning of the first machine, and
// of the growth to three.
type stages struct {
	// certificate is when the Talos API answers with the cluster's certificate,
	// etcd when it tells a member, api when the API server is ready, node when the
	// Node is.
	certificate, etcd, api, node time.Duration
	// grown is how long the growth to three control plane machines takes.
	grown time.Duration
}

// String implements fmt.Stringer.
func (s stages) String() string {
	return fmt.Sprintf("first Ready %.1f s, 1→%d %.1f s", s.node.Seconds(), controlPlanes, s.grown.Seconds())
}

func (b *Bench) printBuildUp(floors, ours []stages) {
	out := tabwriter.NewWriter(b.Output, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nMEDIAN OF %d, SECONDS ON FLEET %s\tFLOOR\tOURS\tRATIO\tGOAL\n", b.Rounds, b.Fleet.Name())
	for _, row := range []struct {
		name string
		of   func(stages) time.Duration
		goal bool
	}{
		{"the Talos API has the cluster's certificate", func(s stages) time.Duration { return s.certificate }, false},
		{"etcd tells a member", func(s stages) time.Duration { return s.etcd }, false},
		{"the API server is ready", func(s stages) time.Duration { return s.api }, false},
		{"first control plane Ready", func(s stages) time.Duration { return s.node }, true},
		{fmt.Sprintf("1→%d", controlPlanes), func(s stages) time.Duration { return s.grown }, true},
	} {
		floor, our := median(floors, row.of), median(ours, row.of)
		ratio, goal := our.Seconds()/floor.Seconds(), ""
		if row.goal {
			goal = verdict(ratio <= maxRatio, fmt.Sprintf("≤ %.2f", maxRatio))
		}
		fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%.2f\t%s\n", row.name, floor.Seconds(), our.Seconds(), ratio, goal)
	}
	_ = out.Flush()
}

func verdict(met bool, goal string) string {
	if met {
		return goal + ": met"
	}
	return goal + ": missed"
}

// median is that of a figure of several measurements.
func median[T any](all []T, of func(T) time.Duration) time.Duration {
	found := make([]time.Duration, 0, len(all))
	for _, one := range all {
		found = append(found, of(one))
	}
	slices.Sort(found)
	return found[len(found)/2]
}
