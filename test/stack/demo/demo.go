// Package demo is the main job from end to end: from machines in maintenance
// mode to a scaled Kubernetes cluster, and back. The demo runs it for people,
// the integration tests for every commit.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// Management is the management cluster that a scenario runs on.
type Management struct {
	// Config is an administrator's.
	Config *rest.Config
	// Kubeconfig is the file of the same.
	Kubeconfig string
	// Clusterctl is configured for the local repository.
	Clusterctl *clusterctl.Tool
	// Kubectl is the program.
	Kubectl string
	// Check fails when a part of the management cluster has ended; nil means
	// that nothing can be told.
	Check func() error
}

// ManagementOf is a management cluster of plain processes.
func ManagementOf(stack *management.Stack) Management {
	return Management{
		Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl, Kubectl: stack.Built.Path("kubectl"), Check: stack.Check,
	}
}

// Scenario is one run of the main job.
type Scenario struct {
	// Management and Fleet are what it runs on.
	Management Management
	Fleet      fleet.Fleet
	// InPods makes the machines Pods of the management cluster: the fleet only
	// tells what they can run.
	InPods bool
	// Cluster is the name of the cluster and of its namespace.
	Cluster string
	// Unready is the longest time for which the API server did not say through its
	// endpoint that it is ready, while the control plane grew. The scenario sets
	// it.
	Unready time.Duration
	// StoreHost is an address of this machine at which the managers may reach an S3 server;
	// empty means that nothing is backed up.
	StoreHost string
	// Hosts is how many machines there are; 0 means as many as are needed.
	Hosts int
	// ControlPlanes are the numbers of control plane machines, one after the
	// other: up to the greatest before there are more workers, the rest at the
	// end; empty means 1, 3, 1.
	ControlPlanes []int
	// Workers are the numbers of workers, one after the other; empty means 1, 3,
	// 2.
	Workers []int
	// Variables are further variables of the cluster template.
	Variables map[string]string
	// StepTimeout bounds each step; 0 means 15 minutes, which machines that are not emulated
	// never need.
	StepTimeout time.Duration
	// Dir is where files of the scenario go, as the cluster's manifest.
	Dir string
	// Output is told what goes on; nil means nobody.
	Output io.Writer
	// Clock is the real one when nil.
	Clock clock.Clock
	// Keep leaves the cluster running: the scenario ends before it is deleted.
	Keep bool
	// Around, when set, runs each step: it must call do, and may do something
	// else meanwhile.
	Around func(ctx context.Context, step string, do func(context.Context) error) error

	client client.Client
	hosts  []fleet.Host
	store  *s3server.Server
	// controlPlanes and workers are the numbers of machines at present.
	controlPlanes, workers int
}

// Result is how a step ended.
type Result struct {
	// Step is what was done, Outcome what came of it.
	Step, Outcome string
	// Took is how long it took.
	Took time.Duration
}

// step is one step: it waits for something, and tells what came of it.
type step struct {
	name  string
	waits string
	do    func(context.Context) (string, error)
}

// defaultStepTimeout bounds a step.
const defaultStepTimeout = 15 * time.Minute

// Scheme knows all kinds that a scenario reads.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme, addonv1.AddToScheme,
		backupv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	return scheme, nil
}

// Run runs the scenario, and returns what came of its steps; when one fails, of
// those up to it.
func (s *Scenario) Run(ctx context.Context) (_ []Result, err error) {
	if err := s.prepare(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stopStore()) }()
	return s.runSteps(ctx, s.steps())
}

func (s *Scenario) runSteps(ctx context.Context, steps []step) ([]Result, error) {
	results := make([]Result, 0, len(steps))
	for _, step := range steps {
		fmt.Fprintf(s.Output, "==> %s: waiting for %s\n", step.name, step.waits)
		start := s.Clock.Now()
		outcome, err := s.run(ctx, step)
		took := s.Clock.Since(start)
		if err != nil {
			fmt.Fprintf(s.Output, "    failed after %.1f s: %v\n", took.Seconds(), err)
			return append(results, Result{Step: step.name, Outcome: "failed", Took: took}), fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(s.Output, "    %s (%.1f s)\n", outcome, took.Seconds())
		results = append(results, Result{Step: step.name, Outcome: outcome, Took: took})
	}
	return results, nil
}

func (s *Scenario) run(ctx context.Context, step step) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.StepTimeout, defaultStepTimeout))
	defer cancel()
	do := func(ctx context.Context) (err error) {
		outcome, err = step.do(ctx)
		return err
	}
	if s.Around != nil {
		err = s.Around(ctx, step.name, do)
	} else {
		err = do(ctx)
	}
	if s.Management.Check != nil && err == nil {
		err = s.Management.Check()
	}
	return outcome, err
}

func (s *Scenario) prepare() error {
	if s.Output == nil {
		s.Output = io.Discard
	}
	if s.Clock == nil {
		s.Clock = clock.RealClock{}
	}
	if len(s.Workers) == 0 {
		s.Workers = []int{1, 3, 2}
	}
	if len(s.ControlPlanes) == 0 {
		s.ControlPlanes = []int{1, 3, 1}
	}
	s.controlPlanes, s.workers = s.ControlPlanes[0], s.Workers[0]
	if s.Hosts == 0 && !s.InPods {
		s.Hosts = slices.Max(s.ControlPlanes) + slices.Max(s.Workers)
	}
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	if s.client, err = client.New(s.Management.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client of the management cluster: %w", err)
	}
	return nil
}

// write keeps a file of the scenario, for people to look at.
func (s *Scenario) write(name string, content []byte) error {
	if s.Dir == "" {
		return nil
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the scenario: %w", err)
	}
	return os.WriteFile(filepath.Join(s.Dir, name), content, 0o600)
}

// Table prints results.
func Table(out io.Writer, results []Result) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STEP\tRESULT\tSECONDS")
	var total time.Duration
	for _, result := range results {
		total += result.Took
		fmt.Fprintf(table, "%s\t%s\t%.1f\n", result.Step, result.Outcome, result.Took.Seconds())
	}
	fmt.Fprintf(table, "total\t\t%.1f\n", total.Seconds())
	_ = table.Flush()
}
