package main

import (
	"context"
	"errors"

	"github.com/capi-talos/capi-talos/test/fleet"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// bed is what a demo runs on: a management cluster with all providers, and
// machines.
type bed struct {
	management demo.Management
	fleet      fleet.Fleet
	// stop takes both down. The logs stay in the demo's folder.
	stop func(context.Context) error
}

// bedKind is a kind of bed.
type bedKind struct {
	// name is what FLEET says, what is for people.
	name, what string
	// possible tells whether this machine can have it.
	possible func() bool
	// raise builds and starts it. When it fails, all is stopped again.
	raise func(context.Context, settings) (*bed, error)
}

// bedKinds are all kinds, the preferred one first.
func bedKinds() []bedKind {
	return []bedKind{
		dockerBed(),
		{name: "sim", what: "a management cluster of plain processes, pretended Talos machines", possible: func() bool { return true }, raise: raiseSim},
	}
}

// raiseSim needs neither Docker nor root.
func raiseSim(ctx context.Context, set settings) (*bed, error) {
	stack, err := management.Up(ctx, management.StackOptions{Dir: set.dir, Repository: set.repository, Output: set.output})
	if err != nil {
		return nil, err
	}
	machines, err := simfleet.New(ctx, simfleet.Options{})
	if err != nil {
		return nil, errors.Join(err, stack.Stop(context.WithoutCancel(ctx)))
	}
	return &bed{
		management: demo.Management{
			Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl,
			Kubectl: stack.Built.Path("kubectl"), Check: stack.Check,
		},
		fleet: machines,
		stop: func(ctx context.Context) error {
			return errors.Join(machines.Close(ctx), stack.Stop(ctx))
		},
	}, nil
}
