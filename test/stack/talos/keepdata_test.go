package talos

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

var _ = Describe("A machine that does not wipe itself", func() {
	It("ends in Error, and comes back once it does", func(ctx SpecContext) {
		const name = "unwiped"
		host := addHosts(ctx, name, 1)[0]
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1}, nil)
		awaitMachine(ctx, name)

		Expect(world.nodes.Fleet.KeepDataOnReset(ctx, true)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(world.nodes.Fleet.KeepDataOnReset(ctx, false)).To(Succeed()) })
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostError)
		Expect(world.nodes.Fleet.Wiped(ctx, host)).NotTo(Succeed())

		By("wiping on reset again, and asking for another try")
		Expect(world.nodes.Fleet.KeepDataOnReset(ctx, false)).To(Succeed())
		annotate(ctx, name, infrav1.HostRetryAnnotation)
		awaitState(ctx, name, infrav1.HostAvailable)
		Expect(world.nodes.Fleet.Wiped(ctx, host)).To(Succeed())
	}, SpecTimeout(15*time.Minute))
})
