package talos

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

var _ = Describe("What a user says", func() {
	It("arrives on the node", func(ctx SpecContext) {
		const name = "arrival"
		host := addHosts(ctx, name, 1, "machine:\n  sysctls:\n    net.ipv4.tcp_keepalive_time: \"1234\"\n")[0]
		bundle := bringBundle(ctx, name)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1, Variables: map[string]string{
			"POD_CIDR": "10.60.0.0/16", "SERVICE_CIDR": "10.61.0.0/16", "SERVICE_DOMAIN": "example.test",
		}}, func(kind string, spec map[string]any) {
			if kind != "TalosControlPlane" {
				return
			}
			Expect(unstructured.SetNestedStringSlice(spec, []string{"machine:\n  nodeLabels:\n    from: a-strategic-patch\n"}, "talosConfigSpec", "strategicPatches")).To(Succeed())
			Expect(unstructured.SetNestedSlice(spec, []any{map[string]any{
				"op": "add", "path": "/cluster/apiServer/extraArgs", "value": map[string]any{"event-ttl": "2h"},
			}}, "talosConfigSpec", "configPatches")).To(Succeed())
		})
		machine := awaitMachine(ctx, name)

		By("reading the Node")
		workload := workloadClient(ctx, name)
		node := &corev1.Node{}
		// Talos puts its labels on a Node that the kubelet has registered before.
		Eventually(ctx, func(g Gomega) {
			g.Expect(workload.Get(ctx, ctrlclient.ObjectKey{Name: machine.Name}, node)).To(Succeed())
			g.Expect(node.Labels).To(HaveKeyWithValue("from", "a-strategic-patch"))
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		Expect(node.Spec.ProviderID).To(Equal(machine.Spec.ProviderID))
		Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(world.nodes.Fleet.KubernetesVersion()))
		Expect(node.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: host.Address}))
		service := &corev1.Service{}
		Expect(workload.Get(ctx, ctrlclient.ObjectKey{Namespace: "default", Name: "kubernetes"}, service)).To(Succeed())
		Expect(service.Spec.ClusterIP).To(Equal("10.61.0.1"))

		By("reading the configuration back from Talos")
		applied := readConfiguration(ctx, name, host)
		certificate, _ := bundle.KubernetesCA()
		Expect(applied.ClusterConfig.ClusterCA.Crt).To(Equal(certificate))
		Expect(applied.ClusterConfig.ClusterNetwork.PodSubnet).To(Equal([]string{"10.60.0.0/16"}))
		Expect(applied.ClusterConfig.ClusterNetwork.ServiceSubnet).To(Equal([]string{"10.61.0.0/16"}))
		Expect(applied.ClusterConfig.ClusterNetwork.DNSDomain).To(Equal("example.test"))
		Expect(applied.MachineConfig.MachineSysctls).To(HaveKeyWithValue("net.ipv4.tcp_keepalive_time", "1234"))
		Expect(fmt.Sprint(applied.ClusterConfig.APIServerConfig.ExtraArgsConfig)).To(ContainSubstring("2h"))
		Expect(applied.MachineConfig.MachineToken).To(Equal(bundle.Machinery().TrustdInfo.Token))

		By("giving the machine back")
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
		Expect(world.nodes.Fleet.Wiped(ctx, host)).To(Succeed())
	}, SpecTimeout(15*time.Minute))
})

// bringBundle stores a user's own secrets bundle before the cluster is there.
func bringBundle(ctx context.Context, name string) *secrets.Bundle {
	GinkgoHelper()
	bundle, err := secrets.NewBundle(time.Now(), "v1.13", nil)
	Expect(err).NotTo(HaveOccurred())
	Expect(world.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name, Name: secrets.BundleName(name), Labels: map[string]string{clusterv1.ClusterNameLabel: name},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{secrets.BundleKey: bundle.YAML()},
	})).To(Succeed())
	return bundle
}

// readConfiguration asks Talos for the configuration that it runs with.
func readConfiguration(ctx context.Context, name string, host fleet.Host) *v1alpha1.Config {
	GinkgoHelper()
	talos := talosOf(ctx, name, host.Address)
	defer func() { _ = talos.Close() }()
	active, err := safe.StateGetByID[*config.MachineConfig](ctx, talos.COSI, config.ActiveID)
	Expect(err).NotTo(HaveOccurred())
	return active.Provider().RawV1Alpha1()
}
