package talos

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// busy is how many control planes are made while other work keeps the machine busy.
var busy = flag.Int("busy", 1, "bring up so many control planes on a machine that is kept busy by other work")

// A first pull of the image of etcd that takes a minute: Talos ends it when it is
// asked to bootstrap once more.
var _ = Describe("A registry that is slow for the image of etcd", func() {
	It("bootstraps etcd with one call", Label("slow"), func(ctx SpecContext) {
		const name, delay = "slow", time.Minute
		slow, err := world.nodes.SlowRegistry(ctx, "etcd", delay)
		Expect(err).NotTo(HaveOccurred())
		hosts, err := world.nodes.Fleet.Add(ctx, 1)
		Expect(err).NotTo(HaveOccurred())
		patches := strings.Join(hosts[0].StrategicPatches, "\n---\n")
		Expect(patches).To(ContainSubstring(world.nodes.Registry()))
		hosts[0].StrategicPatches = []string{strings.ReplaceAll(patches, world.nodes.Registry(), slow)}
		makeKnown(ctx, name, hosts)
		begin := time.Now()
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1}, nil)
		awaitControlPlane(ctx, name, 1)
		took := time.Since(begin)
		Expect(took).To(BeNumerically(">", delay), "the registry was not slow")
		Expect(bootstrapsAskedFor(ctx, hosts[0])).To(Equal(1))
		fmt.Fprintf(GinkgoWriter, "the control plane was there after %.0f s\n", took.Seconds())
		deleteCluster(ctx, name)
	}, SpecTimeout(longTimeout))
})

// bootstrapsAskedFor counts the calls that a machine has got, by what Talos writes on
// its console.
func bootstrapsAskedFor(ctx context.Context, host fleet.Host) int {
	GinkgoHelper()
	console, err := world.nodes.Fleet.Console(ctx, host)
	Expect(err).NotTo(HaveOccurred())
	return strings.Count(string(console), "bootstrap request received")
}

// While a machine has much else to do, the start of etcd takes long, and whatever
// happens in the middle of it has time to.
var _ = Describe("A machine with much else to do", func() {
	It("bootstraps etcd with one call each time", Label("busy"), func(ctx SpecContext) {
		const name, wanted = "busy", 20
		hosts := addHosts(ctx, name, 1)
		end := keepBusy(ctx, wanted+runtime.NumCPU())
		defer end()
		Eventually(ctx, load).WithTimeout(timeout).WithPolling(time.Second).Should(BeNumerically(">", wanted))
		before := bootstrapsAskedFor(ctx, hosts[0])
		for round := range *busy {
			begin := time.Now()
			createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1}, nil)
			awaitControlPlane(ctx, name, 1)
			asked := bootstrapsAskedFor(ctx, hosts[0])
			Expect(asked-before).To(Equal(1), "round %d", round+1)
			fmt.Fprintf(GinkgoWriter, "round %d: %.0f s at a load of %.0f\n", round+1, time.Since(begin).Seconds(), load())
			before = asked
			deleteCluster(ctx, name)
		}
	}, SpecTimeout(150*time.Minute))
})

// keepBusy has so many processes compute, until the returned function is called.
func keepBusy(ctx context.Context, count int) (end func()) {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(ctx)
	var started []*exec.Cmd
	for range count {
		command := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		Expect(command.Start()).To(Succeed())
		started = append(started, command)
	}
	return func() {
		cancel()
		for _, command := range started {
			_ = command.Wait() // It was killed.
		}
	}
}

// load is the mean number of processes that had something to do in the last minute.
func load() float64 {
	GinkgoHelper()
	content, err := os.ReadFile("/proc/loadavg")
	Expect(err).NotTo(HaveOccurred())
	var minute float64
	_, err = fmt.Sscanf(string(content), "%f", &minute)
	Expect(err).NotTo(HaveOccurred())
	return minute
}
