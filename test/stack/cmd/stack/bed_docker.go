package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

const (
	// dockerRun names what the demo starts in Docker, and its cluster in kind.
	dockerRun = "capi-talos-demo"
	// dockerBridge is the device of the demo's network.
	dockerBridge = "capt-demo"
)

// podBed is the bed on which machines are Pods of the management cluster.
func podBed() bedKind {
	return bedKind{
		mode: inPods, name: "kind", what: "a management cluster in kind, and Talos in its Pods",
		possible: canHaveDocker,
		raise:    func(ctx context.Context, set settings) (*bed, error) { return raiseDocker(ctx, set, true) },
	}
}

// dockerBed is the bed with real machines.
func dockerBed() bedKind {
	return bedKind{
		mode: onMetal, name: "docker", what: "a management cluster in kind, real Talos machines in containers",
		possible: canHaveDocker,
		raise:    func(ctx context.Context, set settings) (*bed, error) { return raiseDocker(ctx, set, false) },
	}
}

func canHaveDocker() bool { return nodes.Reason(context.Background()) == "" }

// raiseDocker needs root, and Docker or a machine that can have it.
func raiseDocker(ctx context.Context, set settings, pods bool) (_ *bed, err error) {
	if reason := nodes.Reason(ctx); reason != "" {
		return nil, fmt.Errorf("there can be no real machines here: %s; FLEET=sim needs nothing", reason)
	}
	fmt.Fprintln(set.output, "==> building the parts that are missing")
	needed := slices.Concat(kindstack.Parts(), nodes.Parts(), []string{parts.PreviousTalosNodeImages})
	if pods {
		needed = slices.Concat(needed, kindstack.PodParts())
	}
	built, err := parts.Ensure(ctx, parts.Print(set.output), needed...)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(set.output, "==> starting the surroundings of the machines")
	machines, err := nodes.Up(ctx, nodes.Options{
		Run: dockerRun, Bridge: dockerBridge, Kind: dockerRun, Dir: filepath.Join(set.dir, "nodes"), Built: built, Output: set.output,
		Previous: true,
	})
	if err != nil {
		return nil, err
	}
	stack, err := kindstack.Up(ctx, kindstack.Options{
		Name: dockerRun, Nodes: machines, Dir: set.dir, Repository: set.repository, Built: built, Output: set.output, Pods: pods,
	})
	if err != nil {
		return nil, errors.Join(err, machines.Down(context.WithoutCancel(ctx)))
	}
	return &bed{
		management: demo.Management{
			Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl,
			Kubectl: built.Path("kubectl"), Check: func() error { return stack.Check(context.WithoutCancel(ctx)) },
		},
		fleet:  &loggedFleet{Fleet: machines.Fleet, stack: stack},
		inPods: pods,
		// The machine's own address in the network of the containers.
		storeHost: machines.Network.Gateway.String(),
		stop: func(ctx context.Context) error {
			dropped, err := machines.Dropped(ctx)
			fmt.Fprintf(set.output, "\npackets that tried to leave this machine from a container: %d\n", dropped)
			return errors.Join(err, stack.Down(ctx), machines.Down(ctx))
		},
	}, nil
}

// loggedFleet collects the logs of the management cluster's containers, too.
type loggedFleet struct {
	fleet.Fleet

	stack *kindstack.Stack
}

// CollectLogs implements fleet.Fleet.
func (f *loggedFleet) CollectLogs(ctx context.Context, dir string) error {
	return errors.Join(f.Fleet.CollectLogs(ctx, dir), f.stack.CollectLogs(ctx, filepath.Join(dir, "kind")))
}
