// Package idle looks at what our managers do when there is nothing to do.
package idle

import (
	"fmt"
	"maps"
	"os"
	"slices"
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
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

const (
	// namespace is where all is, and the name of the cluster.
	namespace = "idle"
	// controlPlanes, workers and free are the numbers of good hosts by what
	// becomes of them.
	controlPlanes, workers, free = 3, 3, 5
	// timeout is how long what takes seconds may take.
	timeout = 10 * time.Minute
	// quiet is how long our managers must have written nothing to have converged.
	quiet = time.Minute
	// window is how long they are watched then.
	window = 5 * time.Minute
	// maxReads is how often they may ask the API server in that time, all
	// together, and maxCalls how often a control plane node. A worker is not asked
	// at all: it is watched.
	maxReads, maxCalls = 5, 5
)

var world bed.World

func TestMain(m *testing.M) { bed.MainLong(m, bed.Options{Audit: true}, &world) }

// TestIdle: a cluster of 3 + 3 machines, 5 free hosts, one that is silent, one in
// Error, and a Machine without a host. Once all of that is as it will stay, our
// managers write nothing, and hardly read.
func TestIdle(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	machines, err := simfleet.New(ctx, simfleet.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = machines.Close(ctx) })
	addHosts(t, machines)
	addCluster(t, machines)
	start := time.Now()
	awaitStates(t)
	t.Logf("the cluster was there after %.0f s", time.Since(start).Seconds())
	awaitQuiet(t)
	t.Logf("nobody wrote for %s after %.0f s", quiet, time.Since(start).Seconds())

	scraper, err := bed.NewScraper(ctx, world.Client, namespace)
	g.Expect(err).NotTo(HaveOccurred())
	before := gauges(t, scraper)
	from, calls := time.Now(), callsOf(machines)
	select {
	case <-ctx.Done():
	case <-time.After(window):
	}
	g.Expect(ctx.Err()).NotTo(HaveOccurred())
	until := time.Now()
	asked := subtract(callsOf(machines), calls)
	g.Expect(world.Stack.Check()).To(Succeed())

	writes, reads := requests(t, from, until)
	names := roles(t)
	after := gauges(t, scraper)
	table(t, func(out *tabwriter.Writer) {
		fmt.Fprintf(out, "AT THE BEGINNING AND THE END OF %s\tGOROUTINES\tCONNECTIONS TO THE TALOS API\n", window)
		for _, name := range world.Stack.Managers.Ours() {
			fmt.Fprintf(out, "%s\t%d, %d\t%d, %d\n", name, before[name].Goroutines, after[name].Goroutines, before[name].Connections, after[name].Connections)
		}
	})
	g.Expect(machines.Sim.Offences()).To(BeEmpty())
	for name, found := range after {
		g.Expect(found.Connections).To(BeNumerically("<=", 2*len(machines.Hosts())), name)
	}
	table(t, func(out *tabwriter.Writer) {
		fmt.Fprintf(out, "REQUESTS TO THE API SERVER IN %s\tCOUNT\n", window)
		fmt.Fprintf(out, "writes\t%d\nreads\t%d\n", len(writes), len(reads))
		for _, request := range slices.Concat(writes, reads) {
			fmt.Fprintf(out, "  %s %s %s by %s\t\n", request.Verb, request.Resource, request.Name, request.User)
		}
	})
	tableOfCalls(t, asked, names)
	g.Expect(writes).To(BeEmpty())
	g.Expect(len(reads)).To(BeNumerically("<=", maxReads))
	for host, role := range names {
		unary := total(asked[host], false)
		switch role {
		case "control plane":
			g.Expect(unary).To(BeNumerically("<=", maxCalls), "%s: %v", host, asked[host])
		case "worker":
			g.Expect(unary).To(BeZero(), "%s: %v", host, asked[host])
		}
	}
}

// gauges are what each of our managers has now.
func gauges(t *testing.T, scraper *bed.Scraper) map[string]bed.Gauges {
	t.Helper()
	found := map[string]bed.Gauges{}
	for _, name := range world.Stack.Managers.Ours() {
		NewWithT(t).Eventually(func() (err error) {
			found[name], err = scraper.Read(t.Context(), world.Stack.Managers.Get(name))
			return err
		}).WithTimeout(time.Minute).Should(Succeed()) // The API server grants the right in a moment.
	}
	return found
}

// addHosts makes all hosts, and breaks two of them.
func addHosts(t *testing.T, machines *simfleet.Fleet) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	hosts, err := machines.Add(ctx, controlPlanes+workers+free+2)
	g.Expect(err).NotTo(HaveOccurred())
	silent, wrong := hosts[0], hosts[1]
	machines.Machine(silent).Break(talossim.Faults{Silent: true})
	for _, host := range hosts {
		if host.Name == wrong.Name {
			host.MACAddress = "52:54:00:00:00:01"
		}
		g.Expect(world.Client.Create(ctx, host.Manifest(namespace, nil))).To(Succeed())
	}
}

// addCluster makes the cluster, and one more worker that no host fits.
func addCluster(t *testing.T, machines fleet.Fleet) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	manifest, err := world.Stack.Generate(ctx, machines, management.Shape{Namespace: namespace, ControlPlanes: controlPlanes, Workers: workers})
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(manifest)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GetKind() == infrav1.TalosMachineTemplateKind && object.GetName() == namespace+"-workers" {
			picky := object.DeepCopy()
			picky.SetName("picky")
			g.Expect(unstructured.SetNestedStringMap(picky.Object, map[string]string{"there": "is-none"}, "spec", "template", "spec", "metal", "hostSelector", "matchLabels")).To(Succeed())
			g.Expect(world.Client.Create(ctx, picky)).To(Succeed())
		}
		if object.GetKind() == "MachineDeployment" {
			picky := object.DeepCopy()
			picky.SetName("picky")
			g.Expect(unstructured.SetNestedField(picky.Object, int64(1), "spec", "replicas")).To(Succeed())
			g.Expect(unstructured.SetNestedField(picky.Object, "picky", "spec", "template", "spec", "infrastructureRef", "name")).To(Succeed())
			g.Expect(world.Client.Create(ctx, picky)).To(Succeed())
		}
		g.Expect(world.Client.Create(ctx, object)).To(Succeed(), object.GetKind())
	}
}

// awaitStates waits until all is as it will stay.
func awaitStates(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		hosts := &infrav1.TalosHostList{}
		g.Expect(world.Client.List(t.Context(), hosts, client.InNamespace(namespace))).To(Succeed())
		states := map[infrav1.HostState]int{}
		for _, host := range hosts.Items {
			states[host.Status.State]++
		}
		g.Expect(states).To(Equal(map[infrav1.HostState]int{
			infrav1.HostProvisioned: controlPlanes + workers, infrav1.HostAvailable: free, infrav1.HostUnknown: 1, infrav1.HostError: 1,
		}))
		found := &clusterv1.MachineList{}
		g.Expect(world.Client.List(t.Context(), found, client.InNamespace(namespace))).To(Succeed())
		available := 0
		for i := range found.Items {
			if conditions.IsTrue(&found.Items[i], clusterv1.AvailableCondition) {
				available++
			}
		}
		g.Expect(found.Items).To(HaveLen(controlPlanes + workers + 1))
		g.Expect(available).To(Equal(controlPlanes + workers))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
}

// awaitQuiet waits until our managers have written nothing for a while.
func awaitQuiet(t *testing.T) {
	t.Helper()
	begin := time.Now()
	NewWithT(t).Eventually(func(g Gomega) {
		now := time.Now()
		g.Expect(now.Sub(begin)).To(BeNumerically(">", quiet))
		writes, _ := requests(t, now.Add(-quiet), now)
		g.Expect(writes).To(BeEmpty())
	}).WithTimeout(timeout).WithPolling(quiet / 10).Should(Succeed())
}

// requests are what our managers have asked the API server for in some time: but
// for watches, and Leases.
func requests(t *testing.T, from, until time.Time) (writes, reads []bed.Request) {
	t.Helper()
	g := NewWithT(t)
	users := map[string]bool{}
	for _, name := range world.Stack.Managers.Ours() {
		users[world.Stack.Managers.Get(name).User] = true
	}
	log, err := os.Open(world.Stack.AuditLog())
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = log.Close() }()
	all, err := bed.ReadAudit(log)
	g.Expect(err).NotTo(HaveOccurred())
	known := 0
	for _, request := range all {
		if !users[request.User] {
			continue
		}
		known++
		switch {
		case request.At.Before(from) || request.At.After(until) || request.Verb == "watch" || request.Resource == "leases":
		case request.Writes():
			writes = append(writes, request)
		default:
			reads = append(reads, request)
		}
	}
	g.Expect(known).NotTo(BeZero(), "our managers are known by these names")
	return writes, reads
}

// roles tells what has become of the hosts.
func roles(t *testing.T) map[string]string {
	t.Helper()
	g := NewWithT(t)
	hosts, machines := &infrav1.TalosHostList{}, &infrav1.TalosMachineList{}
	g.Expect(world.Client.List(t.Context(), hosts, client.InNamespace(namespace))).To(Succeed())
	g.Expect(world.Client.List(t.Context(), machines, client.InNamespace(namespace))).To(Succeed())
	found := map[string]string{}
	for _, host := range hosts.Items {
		found[host.Name] = string(host.Status.State)
	}
	for _, machine := range machines.Items {
		if machine.Spec.HostRef.Name == "" {
			continue
		}
		found[machine.Spec.HostRef.Name] = "worker"
		if _, is := machine.Labels[clusterv1.MachineControlPlaneLabel]; is {
			found[machine.Spec.HostRef.Name] = "control plane"
		}
	}
	return found
}

// calls are the calls of the Talos API by method, of each machine.
type calls map[string]map[string]int

func callsOf(machines *simfleet.Fleet) calls {
	found := calls{}
	for _, host := range machines.Hosts() {
		found[host.Name] = machines.Machine(host).Calls()
	}
	return found
}

func subtract(after, before calls) calls {
	found := calls{}
	for host, methods := range after {
		found[host] = map[string]int{}
		for method, count := range methods {
			if count -= before[host][method]; count > 0 {
				found[host][method] = count
			}
		}
	}
	return found
}

// watchMethod is the one method that stays open.
const watchMethod = "/cosi.resource.State/Watch"

// total counts the watches that were opened, or all other calls.
func total(methods map[string]int, watches bool) int {
	sum := 0
	for method, count := range methods {
		if (method == watchMethod) == watches {
			sum += count
		}
	}
	return sum
}

func tableOfCalls(t *testing.T, asked calls, names map[string]string) {
	t.Helper()
	table(t, func(out *tabwriter.Writer) {
		fmt.Fprintf(out, "TALOS API IN %s\tIS\tCALLS\tWATCHES OPENED\tMETHODS\n", window)
		for _, host := range slices.Sorted(maps.Keys(names)) {
			fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%v\n", host, names[host], total(asked[host], false), total(asked[host], true), asked[host])
		}
	})
}

func table(t *testing.T, write func(*tabwriter.Writer)) {
	t.Helper()
	out := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	write(out)
	_ = out.Flush()
}
