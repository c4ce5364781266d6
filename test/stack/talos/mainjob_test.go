package talos

import (
	"context"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// newScenario is the main job in a namespace of its own.
func newScenario(name string) *demo.Scenario {
	return &demo.Scenario{
		Management: demo.Management{
			Config: world.stack.Config, Kubeconfig: world.stack.Kubeconfig, Clusterctl: world.stack.Clusterctl,
			Kubectl: world.stack.Built.Path("kubectl"), Check: world.stack.Check,
		},
		Fleet: world.nodes.Fleet, Cluster: name, Output: GinkgoWriter, Dir: filepath.Join(world.dir, name),
	}
}

// play runs a scenario; its objects are written down when it fails.
func play(ctx context.Context, scenario *demo.Scenario) {
	GinkgoHelper()
	results, err := scenario.Run(ctx)
	demo.Table(GinkgoWriter, results)
	if err != nil {
		_ = scenario.Collect(context.WithoutCancel(ctx), filepath.Join(world.dir, scenario.Cluster))
	}
	Expect(err).NotTo(HaveOccurred())
}

var _ = Describe("The main job", func() {
	It("takes one machine from maintenance mode to a Ready Node and back", Label("smoke"), func(ctx SpecContext) {
		scenario := newScenario("one")
		scenario.Hosts, scenario.Workers = 1, []int{0}
		play(ctx, scenario)

		dropped, err := world.nodes.Dropped(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(dropped).To(BeZero(), "a container has tried to reach what is outside of this machine")
	}, SpecTimeout(10*time.Minute))
})
