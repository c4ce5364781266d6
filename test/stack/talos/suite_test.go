// Package talos is rung 3 of the tests: real Talos nodes in containers, under
// the real kube-apiserver, etcd and Cluster API core; our managers are processes
// under their shipped rights.
//
// The suite runs with -real ("make test-talos") and is skipped without it, and
// where there can be no Docker. Specs labelled smoke are those of SMOKE=1.
package talos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var (
	real          = flag.Bool("real", false, "start real Talos nodes in Docker")
	previousTalos = flag.Bool("previous-talos", false, "have the nodes run the release of Talos before")
	strict        = flag.Bool("strict", false, "fail where there can be no Docker, instead of skipping")
)

const (
	// run names what the suite starts in Docker, bridge its network's device.
	run    = "capi-talos-test"
	bridge = "capt-test"
	// timeout is how long specs wait for what takes seconds on an idle machine.
	timeout = 5 * time.Minute
	// longTimeout is how long they wait for several machines that are replaced one
	// after the other.
	longTimeout = 20 * time.Minute
)

// world is what all specs share. They run one after the other, each in a
// namespace of its own.
var world struct {
	dir    string
	nodes  *nodes.Nodes
	stack  *management.Stack
	client client.Client
}

func TestTalos(t *testing.T) {
	if !*real {
		t.Skip("real Talos nodes are started by make test-talos only")
	}
	if reason := nodes.Reason(t.Context()); reason != "" {
		if *strict {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	ctrl.SetLogger(logr.Discard())
	RegisterFailHandler(Fail)
	RunSpecs(t, "Real Talos nodes")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	DeferCleanup(takeDown)
	Expect(raise(ctx)).To(Succeed())
}, NodeTimeout(40*time.Minute))

// managerArgs let the S3 servers of specs be on loopback.
func managerArgs() map[string][]string {
	return map[string][]string{"backup": {"--allow-local-endpoints"}}
}

// raise starts the management cluster and the surroundings of the nodes.
func raise(ctx context.Context) error {
	source, err := parts.SourceDir()
	if err != nil {
		return err
	}
	if world.dir, err = os.MkdirTemp("", "capi-talos-test-"); err != nil {
		return err
	}
	needed := slices.Concat(nodes.Parts(), management.StackParts())
	if *previousTalos {
		needed = append(needed, nodes.PreviousTalosParts()...)
	}
	built, err := parts.Ensure(ctx, parts.Print(GinkgoWriter), needed...)
	if err != nil {
		return err
	}
	world.stack, err = management.Up(ctx, management.StackOptions{
		Dir: filepath.Join(world.dir, "stack"), Repository: filepath.Join(source, "out", "repository"), Output: GinkgoWriter,
		ManagerArgs: managerArgs(),
	})
	if err != nil {
		return err
	}
	scheme, err := demo.Scheme()
	if err != nil {
		return err
	}
	if world.client, err = client.New(world.stack.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	world.nodes, err = nodes.Up(ctx, nodes.Options{
		Run: run, Bridge: bridge, Dir: filepath.Join(world.dir, "nodes"), Built: built, Output: GinkgoWriter, PreviousTalos: *previousTalos,
	})
	return err
}

// takeDown ends everything. After a failure the logs stay.
func takeDown(ctx SpecContext) {
	var failures []error
	failed := CurrentSpecReport().Failed() || failedBefore
	if world.nodes != nil {
		if failed && world.nodes.Fleet != nil {
			failures = append(failures, world.nodes.Fleet.CollectLogs(ctx, filepath.Join(world.dir, "machines")))
		}
		failures = append(failures, world.nodes.Down(ctx))
	}
	if world.stack != nil {
		failures = append(failures, world.stack.Stop(ctx))
	}
	if failed {
		AddReportEntry("logs", fmt.Sprintf("Logs are in %s", world.dir))
	} else {
		failures = append(failures, os.RemoveAll(world.dir))
	}
	Expect(errors.Join(failures...)).To(Succeed())
}

// failedBefore reports whether a spec has failed so far.
var failedBefore bool

var _ = ReportAfterEach(func(report SpecReport) { failedBefore = failedBefore || report.Failed() })
