// Package world is what the tests of rung 2 run in: the real kube-apiserver,
// etcd and Cluster API core, our managers as processes under their shipped
// rights, and talossim in place of machines.
package world

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"google.golang.org/grpc/grpclog"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/fleet/podhost"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// World is a management cluster that all tests of a package share.
type World struct {
	// Stack is the management cluster.
	Stack *management.Stack
	// Client is an administrator's. It knows Cluster API's kinds and ours.
	Client client.WithWatch
	// Source is the folder of the repository.
	Source string
	// Pods runs Pods of the Talos image, where they were asked for.
	Pods *podhost.Host
}

// Options are what a World is made of.
type Options struct {
	// Audit writes down who has asked the API server for what.
	Audit bool
	// ManagerArgs are given to our managers beyond their manifests' arguments, by the name
	// of the provider.
	ManagerArgs map[string][]string
	// Pods has the management cluster run Pods of the Talos image, with talossim in
	// them.
	Pods bool

	// gcPercent is that of the management cluster.
	gcPercent int
}

// parallel is how many tests run at the same time when -parallel does not say so.
// They wait most of the time: for Cluster API, which looks for an API server every
// 30 seconds.
const parallel = "8"

// polling is how often tests look whether what they wait for has come, and patience how long
// they do, where they do not say it. Gomega's 10 ms keep the API server at a hundred reads a
// second, and its second is short with a dozen clusters beside each other.
const polling, patience = 200 * time.Millisecond, 30 * time.Second

// gcPercent is the GOGC of Kubernetes' programs and Cluster API's manager: collecting
// garbage is a fifth of what an API server does here, and the suites keep all processors
// busy. An API server was seen with 2.2 GiB; with 400 it took 5.
const gcPercent = 200

// Main raises a world, runs the tests in it, and takes it down. It is called by
// TestMain, and ends the process with exit code 1 when something has failed. The
// environment variable RACE builds our managers with the race detector.
func Main(m *testing.M, options Options, into *World) {
	gomega.SetDefaultEventuallyPollingInterval(polling)
	gomega.SetDefaultEventuallyTimeout(patience)
	options.gcPercent = gcPercent
	start(m, options, into)
}

func start(m *testing.M, options Options, into *World) {
	if !flag.Parsed() {
		// Not by flag.Set: Ginkgo refuses to run beside a -parallel that somebody gave.
		_ = flag.Lookup("test.parallel").Value.Set(parallel)
	}
	// What these libraries log of machines that do not answer is no news here.
	ctrl.SetLogger(logr.Discard())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if err := run(context.Background(), m, options, into); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, m *testing.M, options Options, into *World) (err error) {
	dir, err := os.MkdirTemp("", "capi-talos-integration-")
	if err != nil {
		return fmt.Errorf("making the folder of the test bed: %w", err)
	}
	if err := into.raise(ctx, dir, options); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, into.stop(ctx)) }()
	if code := m.Run(); code != 0 {
		return fmt.Errorf("tests have failed; logs are in %s", dir)
	}
	if err := checkLogs(into.Stack.LogDir(), into.Stack.Managers.Ours()); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

func (w *World) raise(ctx context.Context, dir string, options Options) error {
	var err error
	if w.Source, err = parts.SourceDir(); err != nil {
		return err
	}
	w.Stack, err = management.Up(ctx, management.StackOptions{
		Pods: options.Pods, GCPercent: options.gcPercent,
		Dir: dir, Repository: filepath.Join(w.Source, "out", "repository"), Race: os.Getenv("RACE") != "",
		Audit: options.Audit, ManagerArgs: options.ManagerArgs, Variables: []string{"CLUSTER_TOPOLOGY=true"}, Output: os.Stdout,
	})
	if err != nil {
		return err
	}
	if err := w.equip(ctx, options); err != nil {
		return errors.Join(err, w.stop(ctx))
	}
	return nil
}

// equip makes what the tests use besides the management cluster.
func (w *World) equip(ctx context.Context, options Options) error {
	scheme, err := demo.Scheme()
	if err != nil {
		return err
	}
	if w.Client, err = client.NewWithWatch(w.Stack.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if options.Pods {
		w.Pods, err = podhost.Start(ctx, podhost.Options{Config: w.Stack.Config})
	}
	return err
}

func (w *World) stop(ctx context.Context) error {
	err := w.Stack.Stop(ctx)
	if w.Pods != nil {
		w.Pods.Close()
	}
	return err
}

// checkLogs fails for a right that a manager lacked, and for a data race.
func checkLogs(dir string, managers []string) error {
	var failures []error
	logs, err := filepath.Glob(filepath.Join(dir, "*-twin.log"))
	if err != nil {
		return fmt.Errorf("looking for the logs of twins: %w", err)
	}
	for _, manager := range managers {
		logs = append(logs, filepath.Join(dir, manager+".log"))
	}
	for _, log := range logs {
		manager := filepath.Base(log)
		content, err := os.ReadFile(log)
		if err != nil {
			return fmt.Errorf("reading the log of a manager: %w", err)
		}
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, "is forbidden: User") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic") {
				failures = append(failures, fmt.Errorf("%s: %s", manager, strings.TrimSpace(line)))
			}
		}
	}
	const enough = 10
	return errors.Join(failures[:min(len(failures), enough)]...)
}
