package talos

import (
	"context"
	"fmt"
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
		scenario.ControlPlanes, scenario.Workers = []int{1}, []int{0}
		play(ctx, scenario)

		dropped, err := world.nodes.Dropped(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(dropped).To(BeZero(), "a container has tried to reach what is outside of this machine")
	}, SpecTimeout(10*time.Minute))

	It("grows the control plane to 3 and 5 and shrinks it again, while the API server answers", func(ctx SpecContext) {
		scenario := newScenario("five")
		scenario.ControlPlanes, scenario.Workers = []int{1, 3, 5, 3, 1}, []int{0}
		scenario.Around = func(ctx context.Context, step string, do func(context.Context) error) error {
			if err := do(ctx); err != nil {
				return err
			}
			var count int
			if _, err := fmt.Sscanf(step, "%d control plane", &count); err == nil {
				expectVoters(ctx, "five", count)
			}
			return nil
		}
		play(ctx, scenario)
		Expect(scenario.Unready).To(BeNumerically("<=", maxUnready))
	}, SpecTimeout(30*time.Minute))
})

// maxUnready is for how long the API server may be silent at its endpoint while
// members join etcd.
const maxUnready = 5 * time.Second
