package containers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// workload is a client of a cluster, by the kubeconfig that its user gets: through
// the Service.
func workload(t *testing.T, name string) client.Client {
	t.Helper()
	g := NewWithT(t)
	secret := &corev1.Secret{}
	g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name + "-kubeconfig"}, secret)).To(Succeed())
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	made, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	return made
}

func keepsake() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "keepsake"}, Data: map[string]string{"key": "value"}}
}

// etcdAddresses are the etcd addresses of the control plane machines by name.
func etcdAddresses(t *testing.T, name string) map[string]string {
	t.Helper()
	g, found := NewWithT(t), map[string]string{}
	for _, machine := range machinesOf(t.Context(), g, name, ofControlPlane()) {
		address := talosMachine(t.Context(), g, &machine).Spec.Pod.EtcdAddress
		service := &corev1.Service{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: machine.Name + infrav1.EtcdServiceSuffix}, service)).To(Succeed())
		g.Expect(service.Spec.ClusterIP).To(Equal(address))
		found[machine.Name] = address
	}
	return found
}

// TestAllSandboxesAreLostAtOnce takes a cluster from 1 + 1 to 3 + 1, and then every
// Pod's address from it: it is back with its data. Nothing of it is left at the end.
func TestAllSandboxesAreLostAtOnce(t *testing.T) {
	t.Parallel()
	const name = "sandboxes"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 1)
	awaitCluster(t, name, 1, 1)
	expectEndpoint(t, name)
	inside := workload(t, name)
	g.Expect(inside.Create(ctx, keepsake())).To(Succeed())

	scale(t, name, "taloscontrolplane", name+"-control-plane", 3)
	awaitCluster(t, name, 3, 1)
	expectSpread(t, name)

	var keys []client.ObjectKey
	before, addresses := map[string]string{}, etcdAddresses(t, name)
	for _, machine := range machinesOf(ctx, g, name) {
		keys = append(keys, podKey(&machine))
		before[machine.Name] = podOf(ctx, g, &machine).Status.PodIP
	}
	g.Expect(world.Pods.LoseSandboxes(ctx, keys...)).To(Succeed())
	g.Eventually(func(g Gomega) {
		for _, machine := range machinesOf(ctx, g, name) {
			pod := podOf(ctx, g, &machine)
			g.Expect(pod.Status.PodIP).NotTo(BeElementOf("", before[machine.Name]))
			g.Expect(talosMachine(ctx, g, &machine).Status.Addresses).To(ContainElement(HaveField("Address", pod.Status.PodIP)), "what is told of the machine follows")
		}
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	awaitCluster(t, name, 3, 1)
	g.Eventually(func() error { return inside.Get(ctx, client.ObjectKeyFromObject(keepsake()), &corev1.ConfigMap{}) }).WithTimeout(timeout).Should(Succeed())
	g.Expect(etcdAddresses(t, name)).To(Equal(addresses), "etcd keeps its addresses")
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
}

// TestAControlPlaneInPodsIsReplaced: all of it by a rollout, and then the machine of a
// Pod that was deleted; the data stays.
func TestAControlPlaneInPodsIsReplaced(t *testing.T) {
	t.Parallel()
	const name = "replaced"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 3, 1)
	awaitCluster(t, name, 3, 1)
	inside, addresses := workload(t, name), etcdAddresses(t, name)
	g.Expect(inside.Create(ctx, keepsake())).To(Succeed())

	kubectl(t, name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch", `{"spec":{"version":"v1.36.4"}}`)
	g.Eventually(func(g Gomega) {
		for _, machine := range machinesOf(ctx, g, name, ofControlPlane()) {
			g.Expect(machine.Spec.Version).To(Equal("v1.36.4"))
			g.Expect(addresses).NotTo(HaveKey(machine.Name))
		}
	}).WithTimeout(2 * timeout).WithPolling(polling).Should(Succeed())
	awaitCluster(t, name, 3, 1)
	expectNoOffence(t, name, 2)

	waitForNodes(t, name, name+"-control-plane", impatient)
	lost := machinesOf(ctx, g, name, ofControlPlane())[0]
	g.Expect(world.Client.Delete(ctx, podOf(ctx, g, &lost))).To(Succeed())
	expectReplaced(t, &lost)
	awaitCluster(t, name, 3, 1)
	expectNoOffence(t, name, 2)
	g.Eventually(func() error { return inside.Get(ctx, client.ObjectKeyFromObject(keepsake()), &corev1.ConfigMap{}) }).WithTimeout(timeout).Should(Succeed())
	deleteCluster(t, name)
}

// expectReplaced waits until a Machine whose Pod is gone was found out, and is gone;
// its Pod is never made again.
func expectReplaced(t *testing.T, lost *clusterv1.Machine) {
	t.Helper()
	g, ctx, seen := NewWithT(t), t.Context(), false
	g.Eventually(func(g Gomega) {
		found := &infrav1.TalosMachine{}
		err := world.Client.Get(ctx, client.ObjectKeyFromObject(lost), found)
		seen = seen || err == nil && found.Spec.Pod.Progress == infrav1.PodLost && told(found, infrav1.AllocatedCondition).Reason == infrav1.PodLostReason
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%s is still there", lost.Name)
	}).WithTimeout(timeout).WithPolling(polling / 2).Should(Succeed())
	g.Expect(seen).To(BeTrue(), "it was told that the machine is lost")
	g.Expect(world.Pods.Created(podKey(lost))).To(HaveLen(1))
}

// expectEndpoint looks at the Service of a cluster and its disruption budget.
func expectEndpoint(t *testing.T, name string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	cluster, service := &infrav1.TalosCluster{}, &corev1.Service{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + infrav1.EndpointServiceSuffix}, service)).To(Succeed())
	g.Expect(service.Status.LoadBalancer.Ingress).To(ConsistOf(HaveField("IP", cluster.Spec.ControlPlaneEndpoint.Host)))
	g.Expect(cluster.Spec.ControlPlaneEndpoint.Port).To(BeEquivalentTo(6443))
	g.Expect(cluster.Status.FailureDomains).To(HaveLen(3), "the zones of the nodes")
	// The only control plane machine is not to be evicted.
	machine := machinesOf(ctx, g, name, ofControlPlane())[0]
	g.Expect(evict(t, &machine)).To(MatchError(ContainSubstring("disruption budget")))
}

// expectSpread wants three control plane machines on three nodes.
func expectSpread(t *testing.T, name string) {
	t.Helper()
	g, nodes := NewWithT(t), map[string]bool{}
	for _, machine := range machinesOf(t.Context(), g, name, ofControlPlane()) {
		nodes[podOf(t.Context(), g, &machine).Spec.NodeName] = true
	}
	g.Expect(nodes).To(HaveLen(3))
}
