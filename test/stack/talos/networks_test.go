package talos

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// The members of etcd speak to each other on another network than the one that
// kubelets and managers use.
var _ = Describe("Machines with two networks", func() {
	It("have their etcd on the second, and lose no member that joins", Label("networks"), func(ctx SpecContext) {
		const name = "links"
		offerPrevious(ctx)
		hosts, storage, err := world.nodes.AddWithStorage(ctx, 4)
		Expect(err).NotTo(HaveOccurred())
		makeKnown(ctx, name, hosts)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1, Version: parts.PreviousKubernetesVersion}, func(kind string, spec map[string]any) {
			if kind == "TalosControlPlane" {
				setField(spec, []any{twoNetworks(hosts[0].Address, storage)}, "talosConfigSpec", "strategicPatches")
			}
		})
		for _, step := range []struct {
			change   string
			replicas int
		}{
			{`{}`, 1},
			{`{"spec":{"replicas":3}}`, 3},
			{fmt.Sprintf(`{"spec":{"version":%q}}`, parts.KubernetesVersion), 3},
			{`{"spec":{"replicas":1}}`, 1},
		} {
			begin := time.Now()
			patch(ctx, name, "taloscontrolplane", name+"-control-plane", step.change)
			awaitControlPlane(ctx, name, step.replicas)
			expectPeersIn(ctx, name, storage)
			fmt.Fprintf(GinkgoWriter, "%s: %.0f s\n", step.change, time.Since(begin).Seconds())
		}
		expectNoEvent(ctx, name, "EtcdMemberRemoved")
		deleteCluster(ctx, name)
	}, SpecTimeout(2*longTimeout))
})

// twoNetworks is the patch with which kubelets are in the network of an address, and
// etcd in the network for storage. etcd must listen in both: Talos looks for etcd at the
// addresses of the API servers (internal/pkg/etcd/endpoints.go), and has it listen where
// it advertises, unless it is told otherwise.
func twoNetworks(address string, storage netip.Prefix) string {
	first := netip.PrefixFrom(netip.MustParseAddr(address), storage.Bits()).Masked()
	return fmt.Sprintf("machine: {kubelet: {nodeIP: {validSubnets: [%s]}}}\ncluster: {etcd: {advertisedSubnets: [%s], listenSubnets: [%s, %s]}}\n", first, storage, first, storage)
}

// makeKnown makes TalosHosts of machines in a namespace of their own.
func makeKnown(ctx context.Context, namespace string, hosts []fleet.Host) {
	GinkgoHelper()
	makeNamespace(ctx, namespace)
	for _, host := range hosts {
		Expect(world.client.Create(ctx, host.Manifest(namespace, nil))).To(Succeed())
	}
}

// expectPeersIn asks etcd for the addresses of its members.
func expectPeersIn(ctx context.Context, name string, subnet netip.Prefix) {
	GinkgoHelper()
	for _, machine := range machinesOf(ctx, name, controlPlanes) {
		members, err := membersAt(ctx, name, addressOf(machine))
		Expect(err).NotTo(HaveOccurred())
		for _, member := range members {
			Expect(member.GetPeerUrls()).To(HaveLen(1))
			peer, err := url.Parse(member.GetPeerUrls()[0])
			Expect(err).NotTo(HaveOccurred())
			Expect(subnet.Contains(netip.MustParseAddr(peer.Hostname()))).To(BeTrue(), peer.String())
		}
	}
}

// expectNoEvent looks at the events of a namespace.
func expectNoEvent(ctx context.Context, namespace, reason string) {
	GinkgoHelper()
	events := &corev1.EventList{}
	Expect(world.client.List(ctx, events, ctrlclient.InNamespace(namespace))).To(Succeed())
	Expect(events.Items).NotTo(BeEmpty())
	Expect(events.Items).NotTo(ContainElement(HaveField("Reason", reason)))
}
