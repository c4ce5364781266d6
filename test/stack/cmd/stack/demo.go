package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/clock"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// cluster is the name of the demo's cluster and of its namespace.
const cluster = "demo"

// settings are what the environment says about a demo.
type settings struct {
	// bed is what it runs on.
	bed bedKind
	// keep leaves everything running until the program is told to end.
	keep bool
	// repository is the local repository of clusterctl.
	repository string
	// dir is where all files go.
	dir string
	// output is told what goes on.
	output io.Writer
}

// fromEnvironment reads the settings. kinds are the beds that there are to choose
// from.
func fromEnvironment(kinds []bedKind) (settings, error) {
	source, err := parts.SourceDir()
	if err != nil {
		return settings{}, err
	}
	kind, err := chooseBed(kinds, os.Getenv("MODE"), os.Getenv("FLEET"))
	if err != nil {
		return settings{}, err
	}
	return settings{
		bed: kind, keep: os.Getenv("KEEP") != "", repository: filepath.Join(source, "out", "repository"), output: os.Stdout,
	}, nil
}

// chooseBed finds the kind of that mode and name; where one of them is not given,
// it is the first one that this machine can have. A kind that is named may seem
// impossible: then raising it says why it is.
func chooseBed(kinds []bedKind, mode, name string) (bedKind, error) {
	var known []string
	var named []bedKind
	for _, kind := range kinds {
		known = append(known, "MODE="+kind.mode+" FLEET="+kind.name)
		if (mode == "" || kind.mode == mode) && (name == "" || kind.name == name) {
			named = append(named, kind)
		}
	}
	for _, kind := range named {
		if kind.possible() {
			return kind, nil
		}
	}
	if len(named) > 0 && (mode != "" || name != "") {
		return named[0], nil
	}
	return bedKind{}, fmt.Errorf("MODE=%s FLEET=%s is not known; use one of: %s", mode, name, strings.Join(known, ", "))
}

// runDemo runs the demo. Where it has left its logs when it fails, the last
// line says.
func runDemo(ctx context.Context) (err error) {
	set, err := fromEnvironment(bedKinds())
	if err != nil {
		return err
	}
	if set.dir, err = os.MkdirTemp("", "capi-talos-demo-"); err != nil {
		return fmt.Errorf("making the folder of the demo: %w", err)
	}
	defer func() { err = leave(ctx, set.dir, err) }()
	fmt.Fprintf(set.output, "The demo runs with MODE=%s FLEET=%s: %s. Its files are in %s.\n", set.bed.mode, set.bed.name, set.bed.what, set.dir)
	// Else it would be built in the middle, within the time of a step.
	if _, err := parts.Ensure(ctx, parts.Print(set.output), s3server.Parts()...); err != nil {
		return err
	}
	watch := clock.RealClock{}
	start := watch.Now()
	bed, err := set.bed.raise(ctx, set)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bed.stop(context.WithoutCancel(ctx))) }()
	ready := demo.Result{Step: "management cluster", Outcome: "providers installed", Took: watch.Since(start)}
	return play(ctx, set, bed, ready)
}

// leave removes the demo's files, or says where they are.
func leave(ctx context.Context, dir string, err error) error {
	logs := filepath.Join(dir, "logs")
	if _, missing := os.Stat(logs); err == nil || missing != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	return fmt.Errorf("%w\nlogs are in %s", err, logs)
}

// play runs the scenario, and stays when it is told to.
func play(ctx context.Context, set settings, bed *bed, ready demo.Result) error {
	scenario := &demo.Scenario{
		Management: bed.management, Fleet: bed.fleet, InPods: bed.inPods, Cluster: cluster, StoreHost: bed.storeHost,
		ControlPlanes: bed.controlPlanes, Workers: bed.workers, StepTimeout: bed.stepTimeout,
		Dir: filepath.Join(set.dir, "manifests"), Output: set.output, Keep: set.keep,
	}
	results, err := scenario.Run(ctx)
	if err != nil && ctx.Err() == nil {
		collect(ctx, set, bed, scenario)
	}
	fmt.Fprintln(set.output)
	demo.Table(set.output, append([]demo.Result{ready}, results...))
	if set.keep && ctx.Err() == nil {
		if err != nil {
			fmt.Fprintf(set.output, "\nThe demo has failed: %v\n", err)
		}
		fmt.Fprint(set.output, hints(bed))
		<-ctx.Done()
	}
	return err
}

// collect writes down what is to be known about a failure, as far as it can.
func collect(ctx context.Context, set settings, bed *bed, scenario *demo.Scenario) {
	logs := filepath.Join(set.dir, "logs")
	machines := filepath.Join(logs, "machines")
	err := os.MkdirAll(machines, 0o755)
	if err = errors.Join(err, scenario.Collect(ctx, filepath.Join(logs, "objects")), bed.fleet.CollectLogs(ctx, machines)); err != nil {
		fmt.Fprintf(set.output, "not all could be collected: %v\n", err)
	}
}

// hints tell how to look around.
func hints(bed *bed) string {
	kubectl, tool, machines := bed.management.Kubectl, bed.management.Clusterctl, "taloshosts"
	if bed.inPods {
		machines = "pods,services"
	}
	return fmt.Sprintf(`
Everything runs until you press Ctrl-C. To look around, in another terminal:

  export KUBECONFIG=%[1]s CLUSTERCTL_DISABLE_VERSIONCHECK=true
  %[2]s --namespace %[5]s get %[6]s
  %[2]s --namespace %[5]s get clusters,machines,talosmachines -o wide
  %[3]s --config %[4]s --namespace %[5]s describe cluster %[5]s

The cluster that was built:

  %[3]s --config %[4]s --namespace %[5]s get kubeconfig %[5]s > %[5]s.kubeconfig
  %[2]s --kubeconfig %[5]s.kubeconfig get nodes -o wide
`, bed.management.Kubeconfig, kubectl, tool.Path, tool.Config, cluster, machines)
}
