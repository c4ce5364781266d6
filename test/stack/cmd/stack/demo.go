package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/fleet"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// settings are what the environment says about a demo.
type settings struct {
	// fleet is "sim".
	fleet string
	// keep leaves everything running until the program is told to end.
	keep bool
	// repository is the local repository of clusterctl.
	repository string
}

func fromEnvironment() (settings, error) {
	source, err := parts.SourceDir()
	if err != nil {
		return settings{}, err
	}
	s := settings{fleet: os.Getenv("FLEET"), keep: os.Getenv("KEEP") != "", repository: filepath.Join(source, "out", "repository")}
	if s.fleet == "" {
		s.fleet = "sim"
	}
	if s.fleet != "sim" {
		return settings{}, fmt.Errorf("FLEET=%s is not known; use sim", s.fleet)
	}
	return s, nil
}

// runDemo runs the demo. What it leaves behind when it fails, the last line says.
func runDemo(ctx context.Context) (err error) {
	set, err := fromEnvironment()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "capi-talos-demo-")
	if err != nil {
		return fmt.Errorf("making the folder of the demo: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nlogs are in %s", err, dir)
			return
		}
		err = os.RemoveAll(dir)
	}()

	stack, err := management.Up(ctx, management.StackOptions{Dir: dir, Repository: set.repository, Output: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stack.Stop(context.WithoutCancel(ctx))) }()
	machines, err := simfleet.New(ctx, simfleet.Options{})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, closeFleet(context.WithoutCancel(ctx), machines, filepath.Join(dir, "logs"), err != nil))
	}()

	scenario := &demo.Scenario{
		Management: demo.Management{
			Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl,
			Kubectl: stack.Built.Path("kubectl", "kubectl"), Check: stack.Check,
		},
		Fleet: machines, Cluster: "demo", Dir: filepath.Join(dir, "manifests"), Output: os.Stdout, Keep: set.keep,
	}
	results, err := scenario.Run(ctx)
	fmt.Println()
	demo.Table(os.Stdout, results)
	if err != nil {
		return err
	}
	if set.keep {
		fmt.Print(hints(stack))
		<-ctx.Done()
	}
	return nil
}

func closeFleet(ctx context.Context, machines fleet.Fleet, logs string, failed bool) error {
	var err error
	if failed {
		err = machines.CollectLogs(ctx, logs)
	}
	return errors.Join(err, machines.Close(ctx))
}

// hints tell how to look around.
func hints(stack *management.Stack) string {
	return fmt.Sprintf(`
Everything runs until you press Ctrl-C. To look around:

  export KUBECONFIG=%s
  %s get taloshosts,machines,clusters --all-namespaces
  %s describe cluster demo --namespace demo --config %s
`, stack.Kubeconfig, stack.Built.Path("kubectl", "kubectl"), stack.Clusterctl.Path, stack.Clusterctl.Config)
}
