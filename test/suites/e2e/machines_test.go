package e2e

import (
	"context"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// machinesSpecs take the main job of "MODE=metal make demo" through kind.
func machinesSpecs() {
	const name = "machines"
	leaveNothing(name)
	It("goes from maintenance mode to a scaled cluster, to another version, and back", Label("machines"), func(ctx SpecContext) {
		scenario := &demo.Scenario{
			Management: managementCluster(ctx), Fleet: world.nodes.Fleet, Cluster: name, Output: GinkgoWriter, Dir: filepath.Join(world.artifacts, name),
		}
		results, err := scenario.Run(ctx)
		for _, result := range results {
			result.Step = name + ": " + result.Step
			note(result)
		}
		if err != nil {
			_ = scenario.Collect(context.WithoutCancel(ctx), filepath.Join(world.artifacts, name))
		}
		Expect(err).NotTo(HaveOccurred())
		play(name)
	}, SpecTimeout(longTimeout+longTimeout))
}
