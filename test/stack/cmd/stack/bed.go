package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// bed is what a demo runs on: a management cluster with all providers, and
// machines.
type bed struct {
	management demo.Management
	fleet      fleet.Fleet
	// storeHost is an address of this machine at which the managers may reach a server.
	storeHost string
	// inPods reports whether machines are Pods; the fleet has none then.
	inPods bool
	// controlPlanes and workers are the numbers of machines, one after the other, and
	// stepTimeout bounds a step; what is empty is as in demo.Scenario.
	controlPlanes, workers []int
	stepTimeout            time.Duration
	// stop takes both down. The logs stay in the demo's folder.
	stop func(context.Context) error
}

const (
	// inPods is the mode in which machines are Pods of the management cluster,
	// onMetal the one in which they are machines that booted by themselves.
	inPods, onMetal = "container", "metal"
	// loopback is where managers that are processes reach a store.
	loopback = "127.0.0.1"
)

// bedKind is a kind of bed.
type bedKind struct {
	// mode is what MODE says, name what FLEET says, what is for people.
	mode, name, what string
	// possible reports whether this machine can have it.
	possible func() bool
	// raise builds and starts it. When it fails, all is stopped again.
	raise func(context.Context, settings) (*bed, error)
}

// bedKinds are all kinds, the preferred one first.
func bedKinds() []bedKind { return slices.Concat([]bedKind{podBed()}, metalBeds(), []bedKind{vmBed()}) }

// metalBeds are those with machines that booted by themselves.
func metalBeds() []bedKind {
	return []bedKind{
		dockerBed(),
		{mode: onMetal, name: "sim", what: "a management cluster of plain processes, pretended Talos machines", possible: func() bool { return true }, raise: raiseSim},
	}
}

// startManagement starts a management cluster of plain processes.
func startManagement(ctx context.Context, set settings) (*management.Stack, error) {
	return management.Up(ctx, management.StackOptions{
		Dir: set.dir, Repository: set.repository, Output: set.output, ManagerArgs: map[string][]string{"backup": {"--allow-local-endpoints"}},
	})
}

// raiseSim needs neither Docker nor root.
func raiseSim(ctx context.Context, set settings) (*bed, error) {
	stack, err := startManagement(ctx, set)
	if err != nil {
		return nil, err
	}
	machines, err := simfleet.New(ctx, simfleet.Options{})
	if err != nil {
		return nil, errors.Join(err, stack.Stop(context.WithoutCancel(ctx)))
	}
	return &bed{
		management: demo.ManagementOf(stack),
		fleet:      machines,
		storeHost:  loopback,
		stop: func(ctx context.Context) error {
			return errors.Join(machines.Close(ctx), stack.Stop(ctx))
		},
	}, nil
}
