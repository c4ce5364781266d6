package scale

import (
	"flag"
	"fmt"
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/process"
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

var (
	clusters = flag.Int("clusters", 3, "how many clusters of one control plane machine and one worker TestClustersAtRest makes; at most 50")
	rest     = flag.Duration("rest", 10*time.Minute, "for how long TestClustersAtRest leaves them alone")
)

// restNamespace is where the clusters are that are left alone.
const restNamespace = "rest"

// TestClustersAtRest prints what the managers have when all is as it will stay, and
// a while later: neither goroutines nor connections may grow with time.
func TestClustersAtRest(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	fleet, err := simfleet.New(ctx, simfleet.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = fleet.Close(ctx) })
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: restNamespace}})).To(Succeed())
	hosts, err := fleet.Add(ctx, 2**clusters)
	g.Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		g.Expect(world.Client.Create(ctx, host.Manifest(restNamespace, nil))).To(Succeed())
	}
	for i := range *clusters {
		manifest, err := world.Stack.Generate(ctx, fleet, management.Shape{
			Namespace: restNamespace, Name: fmt.Sprintf("rest-%d", i), ControlPlanes: 1, Workers: 1,
		})
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := management.Objects(manifest)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			g.Expect(world.Client.Create(ctx, object)).To(Succeed(), object.GetKind())
		}
	}
	g.Eventually(func(g Gomega) {
		found := &clusterv1.MachineList{}
		g.Expect(world.Client.List(ctx, found, client.InNamespace(restNamespace))).To(Succeed())
		g.Expect(found.Items).To(HaveLen(len(hosts)))
		for i := range found.Items {
			g.Expect(conditions.IsTrue(&found.Items[i], clusterv1.AvailableCondition)).To(BeTrue(), found.Items[i].Name)
		}
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	scraper, err := bed.NewScraper(ctx, world.Client, restNamespace)
	g.Expect(err).NotTo(HaveOccurred())
	pause(t, 2*time.Minute) // What was busy has calmed down, and is watched.

	before := gauge(t, scraper)
	pause(t, *rest)
	after := gauge(t, scraper)
	printGauges(t, len(hosts), before, after)
	g.Expect(world.Stack.Check()).To(Succeed())
	g.Expect(fleet.Sim.Offences()).To(BeEmpty())
	for name, found := range after {
		g.Expect(found.Connections).To(BeNumerically("<=", 2*len(hosts)), name)
		g.Expect(found.Goroutines).To(BeNumerically("<=", before[name].Goroutines+len(hosts)), name)
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
	NewWithT(t).Expect(t.Context().Err()).NotTo(HaveOccurred())
}

// taken is what a manager has, and takes of the machine.
type taken struct {
	bed.Gauges
	process.Usage
}

func gauge(t *testing.T, scraper *bed.Scraper) map[string]taken {
	t.Helper()
	g, found := NewWithT(t), map[string]taken{}
	for _, name := range world.Stack.Managers.Ours() {
		manager := world.Stack.Managers.Get(name)
		var gauges bed.Gauges
		g.Eventually(func() (err error) {
			gauges, err = scraper.Read(t.Context(), manager)
			return err
		}).WithTimeout(time.Minute).Should(Succeed()) // The API server grants the right in a moment.
		usage, err := process.UsageOf(manager.PID())
		g.Expect(err).NotTo(HaveOccurred())
		found[name] = taken{Gauges: gauges, Usage: usage}
	}
	return found
}

func printGauges(t *testing.T, machines int, before, after map[string]taken) {
	t.Helper()
	out := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%d MACHINES, %s AT REST\tGOROUTINES\tCONNECTIONS\tRESIDENT MiB\n", machines, *rest)
	for _, name := range world.Stack.Managers.Ours() {
		fmt.Fprintf(out, "%s\t%d, then %d\t%d, then %d\t%.0f, then %.0f\n", name, before[name].Goroutines, after[name].Goroutines,
			before[name].Connections, after[name].Connections, before[name].ResidentMiB, after[name].ResidentMiB)
	}
	_ = out.Flush()
}
