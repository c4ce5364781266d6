package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/bench"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

const (
	// benchRun names what the measurements start in Docker, benchBridge is the
	// device of their network.
	benchRun, benchBridge = "capi-talos-bench", "capt-bench"
	// benchRounds is how often each measurement is made when ROUNDS does not say
	// so, benchClusters how many clusters the managers hold at most.
	benchRounds, benchClusters = 5, 50
)

// runBench measures the main job. The managers are processes, so that the
// management cluster takes as little of the machine as it can.
func runBench(ctx context.Context) (err error) {
	set, err := fromEnvironment(metalBeds())
	if err != nil {
		return err
	}
	rounds := benchRounds
	if text := os.Getenv("ROUNDS"); text != "" {
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			return fmt.Errorf("ROUNDS=%s is no number of rounds", text)
		}
	}
	if set.dir, err = os.MkdirTemp("", "capi-talos-bench-"); err != nil {
		return fmt.Errorf("making the folder of the measurements: %w", err)
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(set.dir)
		} else {
			err = fmt.Errorf("%w\nlogs are in %s", err, set.dir)
		}
	}()
	stack, err := management.Up(ctx, management.StackOptions{Dir: filepath.Join(set.dir, "stack"), Repository: set.repository, Output: set.output})
	if err != nil {
		return err
	}
	late := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, stack.Stop(late)) }()
	pretended, err := simfleet.New(ctx, simfleet.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pretended.Close(late)) }()
	machines, closeMachines, err := benchMachines(ctx, set)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeMachines(late)) }()
	return bench.Run(ctx, bench.Options{
		Stack: stack, Fleet: machines, Sim: pretended, Rounds: rounds, Clusters: benchClusters, Output: set.output,
	})
}

// benchMachines are those that are built upon, and what takes them away.
func benchMachines(ctx context.Context, set settings) (fleet.Fleet, func(context.Context) error, error) {
	if set.bed.name != dockerBed().name {
		machines, err := simfleet.New(ctx, simfleet.Options{})
		if err != nil {
			return nil, nil, err
		}
		return machines, machines.Close, nil
	}
	built, err := parts.Ensure(ctx, parts.Print(set.output), nodes.Parts()...)
	if err != nil {
		return nil, nil, err
	}
	around, err := nodes.Up(ctx, nodes.Options{Run: benchRun, Bridge: benchBridge, Dir: filepath.Join(set.dir, "nodes"), Built: built, Output: set.output})
	if err != nil {
		return nil, nil, err
	}
	return around.Fleet, around.Down, nil
}
