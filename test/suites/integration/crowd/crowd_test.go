// Package crowd measures a fleet of a thousand hosts and hundreds of clusters with
// which there is nothing to do. `make bench-scale` copies this file into an older
// revision, too, to have the figures of both: it uses what that has.
package crowd

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/process"
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

var (
	hosts    = flag.Int("hosts", 1000, "how many hosts nobody needs")
	clusters = flag.Int("idle-clusters", 200, "how many clusters of one control plane machine there are")
	window   = flag.Duration("window", 5*time.Minute, "for how long the managers are looked at when there is nothing to do")
)

const (
	// A fleet has a subnet of loopback addresses: so many machines and endpoints.
	hostsOfAFleet, clustersOfAFleet = 199, 50
	// probing is how often the balancers of the fleets look at their API servers.
	probing = 5 * time.Second
	// timeout is how long all of it may take.
	timeout = 40 * time.Minute
	// polling is how exactly times are measured.
	polling = time.Second
	// quiet is how long the managers must have written nothing to be done, and patience
	// how long that is waited for.
	quiet, patience = 30 * time.Second, 15 * time.Minute
	// memberOf has the number of the fleet: the clusters of a fleet take its hosts only.
	memberOf = "crowd-%d"
)

// managers are those that are measured.
var managers = []string{"bootstrap", "control-plane", "infrastructure"}

var world bed.World

func TestMain(m *testing.M) { bed.MainLong(m, bed.Options{Audit: true}, &world) }

// TestAThousandHostsAndTwoHundredClusters prints how long it takes until all hosts and
// clusters are Available, and what the managers do and take when that is so.
func TestAThousandHostsAndTwoHundredClusters(t *testing.T) {
	g := NewWithT(t)
	fleets := newFleets(t)
	start := usage(t)
	objects := hostsOf(t, fleets)
	took := measure(func() {
		create(t, objects)
		g.Eventually(func() (int, error) { return availableHosts(t) }).WithTimeout(timeout).WithPolling(polling).Should(Equal(len(objects)))
	})
	t.Logf("%d hosts are Available after %.0f s", len(objects), took.Seconds())
	withHosts := usage(t)

	objects = clustersOf(t, fleets)
	took = measure(func() {
		create(t, objects)
		g.Eventually(func() (int, error) { return availableMachines(t) }).WithTimeout(timeout).WithPolling(polling).Should(Equal(*clusters))
	})
	t.Logf("%d control plane machines are Available after %.0f s", *clusters, took.Seconds())
	withClusters := usage(t)
	awaitQuiet(t)

	before, from := usage(t), time.Now()
	select {
	case <-t.Context().Done():
	case <-time.After(*window):
	}
	g.Expect(t.Context().Err()).NotTo(HaveOccurred())
	until, after := time.Now(), usage(t)
	g.Expect(world.Stack.Check()).To(Succeed())
	for _, machines := range fleets {
		g.Expect(machines.Sim.Offences()).To(BeEmpty())
	}
	table(t, func(out *tabwriter.Writer) {
		fmt.Fprint(out, "MANAGER\tCPU s UNTIL HOSTS\tCPU s UNTIL CLUSTERS\tMiB THEN\tPEAK MiB\tAT REST: MiB\tCPU %\tREADS/min\tWRITES/min\n")
		for _, name := range managers {
			reads, writes := requests(t, name, from, until)
			fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%.1f\t%.1f\t%.1f\n", name,
				withHosts[name].CPUSeconds-start[name].CPUSeconds, withClusters[name].CPUSeconds-withHosts[name].CPUSeconds,
				withClusters[name].ResidentMiB, after[name].PeakMiB, after[name].ResidentMiB,
				100*(after[name].CPUSeconds-before[name].CPUSeconds)/window.Seconds(),
				float64(reads)/window.Minutes(), float64(writes)/window.Minutes())
		}
	})
	now, err := availableHosts(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(now).To(Equal(*hosts), "nothing has happened to anybody")
}

// newFleets makes as many as the hosts and clusters need.
func newFleets(t *testing.T) []*simfleet.Fleet {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	var fleets []*simfleet.Fleet
	for machines, endpoints := *hosts+*clusters, *clusters; machines > 0 || endpoints > 0; machines, endpoints = machines-hostsOfAFleet, endpoints-clustersOfAFleet {
		made, err := simfleet.New(ctx, simfleet.Options{Personality: talossim.Metal, ProbeInterval: probing})
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = made.Close(ctx) })
		namespace := fmt.Sprintf(memberOf, len(fleets))
		g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		fleets = append(fleets, made)
		if machines > 0 {
			_, err = made.Add(ctx, min(machines, hostsOfAFleet))
			g.Expect(err).NotTo(HaveOccurred())
		}
	}

	return fleets
}

func hostsOf(t *testing.T, fleets []*simfleet.Fleet) []client.Object {
	t.Helper()
	var objects []client.Object
	for i, machines := range fleets {
		for _, host := range machines.Hosts() {
			objects = append(objects, host.Manifest(fmt.Sprintf(memberOf, i), nil))
		}
	}

	return objects
}

// clustersOf has the manifests made before their time is measured.
func clustersOf(t *testing.T, fleets []*simfleet.Fleet) []client.Object {
	t.Helper()
	g := NewWithT(t)
	var objects []client.Object
	for i := range *clusters {
		number := i / clustersOfAFleet
		var machines fleet.Fleet = fleets[number]
		manifest, err := world.Stack.Generate(t.Context(), machines, management.Shape{
			Namespace: fmt.Sprintf(memberOf, number), Name: fmt.Sprintf("idle-%d", i), ControlPlanes: 1, Workers: 0,
		})
		g.Expect(err).NotTo(HaveOccurred())
		found, err := management.Objects(manifest)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range found {
			objects = append(objects, object)
		}
	}

	return objects
}

func create(t *testing.T, objects []client.Object) {
	t.Helper()
	for _, object := range objects {
		NewWithT(t).Expect(world.Client.Create(t.Context(), object)).To(Succeed(), kindOf(object))
	}
}

func kindOf(object client.Object) string {
	if u, ok := object.(*unstructured.Unstructured); ok {
		return u.GetKind() + " " + u.GetName()
	}

	return object.GetName()
}

func measure(do func()) time.Duration {
	start := time.Now()
	do()

	return time.Since(start)
}

func availableHosts(t *testing.T) (int, error) {
	t.Helper()
	found, count := &infrav1.TalosHostList{}, 0
	if err := world.Client.List(t.Context(), found); err != nil {
		return 0, err
	}
	for i := range found.Items {
		if found.Items[i].Status.State == infrav1.HostAvailable {
			count++
		}
	}

	return count, nil
}

func availableMachines(t *testing.T) (int, error) {
	t.Helper()
	found, count := &clusterv1.MachineList{}, 0
	if err := world.Client.List(t.Context(), found); err != nil {
		return 0, err
	}
	for i := range found.Items {
		if conditions.IsTrue(&found.Items[i], clusterv1.AvailableCondition) {
			count++
		}
	}

	return count, nil
}

// awaitQuiet waits until our managers have written nothing for a while. Where they go
// on writing, that is what is measured.
func awaitQuiet(t *testing.T) {
	t.Helper()
	for begin := time.Now(); ; {
		now, written := time.Now(), 0
		for _, name := range managers {
			_, writes := requests(t, name, now.Add(-quiet), now)
			written += writes
		}
		switch {
		case written == 0 && now.Sub(begin) > quiet:
			t.Logf("the managers write nothing more after %.0f s", now.Sub(begin).Seconds())
			return
		case now.Sub(begin) > patience:
			t.Logf("the managers still write: %d times in %s", written, quiet)
			return
		}
		select {
		case <-t.Context().Done():
			return
		case <-time.After(quiet / 2):
		}
	}
}

// requests counts what a manager has asked the API server for in some time: but for
// watches, and Leases.
func requests(t *testing.T, manager string, from, until time.Time) (reads, writes int) {
	t.Helper()
	g := NewWithT(t)
	log, err := os.Open(world.Stack.AuditLog())
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	all, err := bed.ReadAudit(log)
	g.Expect(err).NotTo(HaveOccurred())
	user, known := world.Stack.Managers.Get(manager).User, false
	for _, request := range all {
		if request.User != user {
			continue
		}
		known = true
		switch {
		case request.At.Before(from) || request.At.After(until) || request.Verb == "watch" || request.Resource == "leases":
		case request.Writes():
			writes++
		default:
			reads++
		}
	}
	g.Expect(known).To(BeTrue(), "manager %s is known by its name", manager)

	return reads, writes
}

// usage is what each of our managers has taken of the machine so far.
func usage(t *testing.T) map[string]process.Usage {
	t.Helper()
	found := map[string]process.Usage{}
	for _, name := range managers {
		used, err := process.UsageOf(world.Stack.Managers.Get(name).PID())
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		found[name] = used
	}

	return found
}

func table(t *testing.T, write func(*tabwriter.Writer)) {
	t.Helper()
	out := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	write(out)
	_ = out.Flush()
}
