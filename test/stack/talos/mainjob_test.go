package talos

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

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

	It("grows the control plane to 3 and 5 while the API server answers", func(ctx SpecContext) {
		scenario := newScenario("five")
		scenario.ControlPlanes, scenario.Workers = []int{1, 3, 5}, []int{0}
		scenario.Around = func(ctx context.Context, step string, do func(context.Context) error) error {
			if err := do(ctx); err != nil || step != "5 control planes" {
				return err
			}
			expectVoters(ctx, "five", 5)
			return nil
		}
		play(ctx, scenario)
		Expect(scenario.Unready).To(BeNumerically("<=", maxUnready))
	}, SpecTimeout(30*time.Minute))
})

// maxUnready is for how long the API server may be silent at its endpoint while
// members join etcd.
const maxUnready = 5 * time.Second

// expectVoters asks etcd itself, on each control plane node, for its members.
func expectVoters(ctx context.Context, name string, count int) {
	GinkgoHelper()
	access, err := clientconfig.FromBytes(secretValue(ctx, name, name+"-talosconfig", "talosconfig"))
	Expect(err).NotTo(HaveOccurred())
	machines := &clusterv1.MachineList{}
	Expect(world.client.List(ctx, machines, ctrlclient.InNamespace(name))).To(Succeed())
	Expect(machines.Items).To(HaveLen(count))
	for _, machine := range machines.Items {
		var address string
		for _, known := range machine.Status.Addresses {
			if known.Type == clusterv1.MachineInternalIP {
				address = known.Address
			}
		}
		talos, err := client.New(ctx, client.WithConfig(access), client.WithEndpoints(address))
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = talos.Close() }()
		list, err := talos.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
		Expect(err).NotTo(HaveOccurred())
		Expect(list.GetMessages()).To(HaveLen(1))
		Expect(list.GetMessages()[0].GetMembers()).To(And(HaveLen(count), HaveEach(HaveField("IsLearner", BeFalse()))))
		status, err := talos.EtcdStatus(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(status.GetMessages()[0].GetMemberStatus().GetErrors()).To(BeEmpty())
		Expect(status.GetMessages()[0].GetMemberStatus().GetLeader()).NotTo(BeZero())
		fmt.Fprintf(GinkgoWriter, "etcd on %s: %d voting members, leader %x\n", machine.Name, count, status.GetMessages()[0].GetMemberStatus().GetLeader())
	}
}
