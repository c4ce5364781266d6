// Package scale measures a cluster of many machines.
package scale

import (
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

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/process"
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

const (
	// namespace is where all is, and the name of the cluster.
	namespace              = "scale"
	controlPlanes, workers = 3, 20
	timeout                = 15 * time.Minute
)

var world bed.World

func TestMain(m *testing.M) { bed.MainLong(m, bed.Options{}, &world) }

// TestThreeControlPlanesAndTwentyWorkers prints how long each step takes, and what
// the managers take of the machine for it.
func TestThreeControlPlanesAndTwentyWorkers(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	machines, err := simfleet.New(ctx, simfleet.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = machines.Close(ctx) })
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())

	m := &measurement{}
	m.step(t, "nothing yet", func() {})
	var hosts []fleet.Host
	m.step(t, fmt.Sprintf("%d hosts Available", controlPlanes+workers), func() {
		hosts, err = machines.Add(ctx, controlPlanes+workers)
		g.Expect(err).NotTo(HaveOccurred())
		for _, host := range hosts {
			g.Expect(world.Client.Create(ctx, host.Manifest(namespace, nil))).To(Succeed())
		}
		expectHosts(t, infrav1.HostAvailable)
	})
	m.step(t, "first control plane machine Available", func() {
		manifest, err := world.Stack.Generate(ctx, machines, management.Shape{Namespace: namespace, ControlPlanes: controlPlanes, Workers: workers})
		g.Expect(err).NotTo(HaveOccurred())
		objects, err := management.Objects(manifest)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			g.Expect(world.Client.Create(ctx, object)).To(Succeed(), object.GetKind())
		}
		awaitAvailable(t, 1, 0)
	})
	m.step(t, fmt.Sprintf("%d control plane machines Available", controlPlanes), func() { awaitAvailable(t, controlPlanes, 0) })
	m.step(t, fmt.Sprintf("%d workers Available", workers), func() {
		awaitAvailable(t, controlPlanes, workers)
		expectHosts(t, infrav1.HostProvisioned)
	})
	g.Expect(machines.Bootstraps()).To(Equal(1))
	g.Expect(machines.Sim.Offences()).To(BeEmpty())
	m.step(t, "deleted, and all hosts wiped", func() {
		g.Expect(world.Client.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: namespace}})).To(Succeed())
		g.Eventually(func(g Gomega) {
			clusters := &clusterv1.ClusterList{}
			g.Expect(world.Client.List(ctx, clusters, client.InNamespace(namespace))).To(Succeed())
			g.Expect(clusters.Items).To(BeEmpty())
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		expectHosts(t, infrav1.HostAvailable)
		for _, host := range hosts {
			g.Expect(machines.Wiped(ctx, host)).To(Succeed())
		}
	})
	g.Expect(world.Stack.Check()).To(Succeed())
	m.print(t)
}

// polling is how exactly times are measured.
const polling = 200 * time.Millisecond

// measurement is what was measured after each step.
type measurement struct{ steps []step }

type step struct {
	name  string
	took  time.Duration
	usage []process.Usage
}

func (m *measurement) step(t *testing.T, name string, do func()) {
	t.Helper()
	start := time.Now()
	do()
	done := step{name: name, took: time.Since(start)}
	for _, manager := range world.Stack.Managers.All() {
		usage, err := process.UsageOf(manager.PID())
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		done.usage = append(done.usage, usage)
	}
	m.steps = append(m.steps, done)
	t.Logf("%s after %.1f s", name, done.took.Seconds())
}

// print tells the time of each step, and the usage of each manager up to then.
func (m *measurement) print(t *testing.T) {
	t.Helper()
	out := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "STEP\tSECONDS")
	for _, manager := range world.Stack.Managers.All() {
		fmt.Fprintf(out, "\t%s: PEAK MiB\tCPU s", manager.Name)
	}
	fmt.Fprintln(out)
	var total time.Duration
	for _, step := range m.steps {
		total += step.took
		fmt.Fprintf(out, "%s\t%.1f", step.name, step.took.Seconds())
		for _, usage := range step.usage {
			fmt.Fprintf(out, "\t%.0f\t%.1f", usage.PeakMiB, usage.CPUSeconds)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "total\t%.1f\n", total.Seconds())
	_ = out.Flush()
}

// awaitAvailable waits until at least so many Machines are available.
func awaitAvailable(t *testing.T, controlPlanes, workers int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		found := &clusterv1.MachineList{}
		g.Expect(world.Client.List(t.Context(), found, client.InNamespace(namespace))).To(Succeed())
		available := map[bool]int{}
		for i := range found.Items {
			if conditions.IsTrue(&found.Items[i], clusterv1.AvailableCondition) {
				_, is := found.Items[i].Labels[clusterv1.MachineControlPlaneLabel]
				available[is]++
			}
		}
		g.Expect(available[true]).To(BeNumerically(">=", controlPlanes))
		g.Expect(available[false]).To(BeNumerically(">=", workers))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

func expectHosts(t *testing.T, state infrav1.HostState) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		hosts := &infrav1.TalosHostList{}
		g.Expect(world.Client.List(t.Context(), hosts, client.InNamespace(namespace))).To(Succeed())
		g.Expect(hosts.Items).To(HaveEach(HaveField("Status.State", state)))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}
