package talos

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// newScenario is the main job in a namespace of its own.
func newScenario(name string) *demo.Scenario {
	return &demo.Scenario{
		Management: demo.ManagementOf(world.stack),
		Fleet:      world.nodes.Fleet, Cluster: name, Output: GinkgoWriter, Dir: filepath.Join(world.dir, name),
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
		scenario.Around = func(ctx context.Context, step string, do func(context.Context) error) error {
			if err := do(ctx); err != nil || step != "nodes" {
				return err
			}
			expectNoAnonymousAnswer(ctx, "one")
			return nil
		}
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

// expectNoAnonymousAnswer asks a ready API server as a load balancer does, which has no
// client certificate: docs/endpoint.md tells what answer to take for healthy.
func expectNoAnonymousAnswer(ctx context.Context, name string) {
	GinkgoHelper()
	access, err := clientcmd.RESTConfigFromKubeConfig(secretValue(ctx, name, name+"-kubeconfig", "value"))
	Expect(err).NotTo(HaveOccurred())
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(access))
	Expect(err).NotTo(HaveOccurred())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, access.Host+"/readyz", http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	response, err := anonymous.Do(request)
	Expect(err).NotTo(HaveOccurred())
	Expect(response.Body.Close()).To(Succeed())
	Expect(response.StatusCode).To(Equal(http.StatusUnauthorized))
}

// maxUnready is for how long the API server may be silent at its endpoint while
// members join etcd.
const maxUnready = 5 * time.Second
