// Package e2e is rung 4 of the tests: the providers as users install them, in Pods
// of a cluster of kind under the rights of their release, on Cluster API's own test
// framework. Machines are real Talos nodes: containers in Docker, and Pods.
//
// The suite runs with -kind ("make test-e2e") and is skipped without it, and where
// there can be no Docker.
package e2e

import (
	"context"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
)

var (
	inKind      = flag.Bool("kind", false, "start kind, and real Talos nodes in Docker and in its Pods")
	strict      = flag.Bool("strict", false, "fail where there can be no Docker, instead of skipping")
	upgradeFrom = flag.String("upgrade-from", "", "git revision of the older release that the providers are upgraded from")
)

const (
	// timeout is how long specs wait for what takes seconds on an idle machine.
	timeout = 5 * time.Minute
	// longTimeout is how long they wait for several machines, one after the other.
	longTimeout = 30 * time.Minute
	// interval is how often they look.
	interval = time.Second
)

func TestE2E(t *testing.T) {
	if !*inKind {
		t.Skip("kind is started by make test-e2e only")
	}
	if reason := nodes.Reason(t.Context()); reason != "" {
		if *strict {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	ctrl.SetLogger(logr.Discard())
	RegisterFailHandler(Fail)
	RunSpecs(t, "The providers in a cluster")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	DeferCleanup(restoreEnvironment, os.Environ())
	DeferCleanup(takeDown)
	raise(ctx)
}, NodeTimeout(3*longTimeout))

// The specs run one after the other, in this order: what judges the whole comes
// after it, and the providers go last. Upstream's specs are handed a context while
// the tree is built.
var _ = Describe("The providers in a cluster", Ordered, ContinueOnFailure, func() {
	Context("As they are installed", installationSpecs)
	Context("A cluster of machines", machinesSpecs)
	Context("A cluster in Pods", podsSpecs)
	Context("Machines of both kinds", bothSpecs)
	Context("Upstream's specs", func() { upstreamSpecs(context.Background()) })
	Context("The rights of the managers", rightsSpecs)
	Context("The end of the providers", removalSpecs)
	Context("Upgrade of the providers", upgradeSpecs)
})

// failedBefore reports whether a spec has failed so far.
var failedBefore bool

var _ = ReportAfterEach(func(report SpecReport) {
	failedBefore = failedBefore || report.Failed()
	if slices.Contains(report.Labels(), upstreamLabel) && report.State.Is(types.SpecStatePassed|types.SpecStateFailureStates) {
		note(demo.Result{Step: upstreamLabel + ": " + report.Labels()[1], Outcome: report.State.String(), Took: report.RunTime})
	}
})
