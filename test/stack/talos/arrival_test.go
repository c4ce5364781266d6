package talos

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/fleet"
)

var _ = Describe("What a user says", func() {
	It("arrives on the node", func(ctx SpecContext) {
		const name = "arrival"
		host := addHost(ctx, name, "machine:\n  sysctls:\n    net.ipv4.tcp_keepalive_time: \"1234\"\n")
		bundle := bringBundle(ctx, name)
		createCluster(ctx, name, map[string]string{
			"POD_CIDR": "10.60.0.0/16", "SERVICE_CIDR": "10.61.0.0/16", "SERVICE_DOMAIN": "example.test",
		}, func(spec map[string]any) {
			Expect(unstructured.SetNestedStringSlice(spec, []string{"machine:\n  nodeLabels:\n    from: a-strategic-patch\n"}, "talosConfigSpec", "strategicPatches")).To(Succeed())
			Expect(unstructured.SetNestedSlice(spec, []any{map[string]any{
				"op": "add", "path": "/cluster/apiServer/extraArgs", "value": map[string]any{"event-ttl": "2h"},
			}}, "talosConfigSpec", "configPatches")).To(Succeed())
		})
		machine := awaitMachine(ctx, name)

		By("reading the Node")
		workload := workloadClient(ctx, name)
		node := &corev1.Node{}
		Expect(workload.Get(ctx, ctrlclient.ObjectKey{Name: machine.Name}, node)).To(Succeed())
		Expect(node.Spec.ProviderID).To(Equal(machine.Spec.ProviderID))
		Expect(node.Labels).To(HaveKeyWithValue("from", "a-strategic-patch"))
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

// addHost boots one more machine and makes it known, with a patch of the user's.
func addHost(ctx context.Context, namespace string, patches ...string) fleet.Host {
	GinkgoHelper()
	Expect(world.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	hosts, err := world.nodes.Fleet.Add(ctx, 1)
	Expect(err).NotTo(HaveOccurred())
	manifest := hosts[0].Manifest(namespace, nil)
	manifest.Spec.StrategicPatches = append(manifest.Spec.StrategicPatches, patches...)
	Expect(world.client.Create(ctx, manifest)).To(Succeed())
	return hosts[0]
}

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

// createCluster generates a cluster of one machine from the template, changes
// the spec of its control plane, and applies it.
func createCluster(ctx context.Context, name string, variables map[string]string, change func(spec map[string]any)) {
	GinkgoHelper()
	endpoint, err := world.nodes.Fleet.Endpoint(ctx, name)
	Expect(err).NotTo(HaveOccurred())
	variables["CONTROL_PLANE_ENDPOINT_HOST"] = endpoint.Host
	variables["CONTROL_PLANE_ENDPOINT_PORT"] = strconv.Itoa(int(endpoint.Port))
	manifest, err := world.stack.Clusterctl.Generate(ctx, name, variables,
		"--infrastructure", "talos", "--flavor", "metal", "--target-namespace", name, "--kubernetes-version", world.nodes.Fleet.KubernetesVersion(),
		"--control-plane-machine-count", "1", "--worker-machine-count", "0")
	Expect(err).NotTo(HaveOccurred())
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest))
	for {
		object := &unstructured.Unstructured{}
		if decoder.Decode(object) != nil {
			return
		}
		if object.GetKind() == "TalosControlPlane" && change != nil {
			spec, ok := object.Object["spec"].(map[string]any)
			Expect(ok).To(BeTrue())
			change(spec)
		}
		Expect(world.client.Create(ctx, object)).To(Succeed())
	}
}

// awaitMachine waits until the cluster's only Machine is ready.
func awaitMachine(ctx context.Context, namespace string) *clusterv1.Machine {
	GinkgoHelper()
	machines := &clusterv1.MachineList{}
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.List(ctx, machines, ctrlclient.InNamespace(namespace))).To(Succeed())
		g.Expect(machines.Items).To(HaveLen(1))
		g.Expect(machines.Items[0].Status.Conditions).To(ContainElement(And(
			HaveField("Type", clusterv1.MachineReadyCondition), HaveField("Status", metav1.ConditionTrue))))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	return &machines.Items[0]
}

// secretValue reads a key of a Secret.
func secretValue(ctx context.Context, namespace, name, key string) []byte {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(world.client.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: name}, secret)).To(Succeed())
	Expect(secret.Data).To(HaveKey(key))
	return secret.Data[key]
}

func workloadClient(ctx context.Context, name string) ctrlclient.Client {
	GinkgoHelper()
	access, err := clientcmd.RESTConfigFromKubeConfig(secretValue(ctx, name, name+"-kubeconfig", "value"))
	Expect(err).NotTo(HaveOccurred())
	workload, err := ctrlclient.New(access, ctrlclient.Options{})
	Expect(err).NotTo(HaveOccurred())
	return workload
}

// readConfiguration asks Talos for the configuration that it runs with.
func readConfiguration(ctx context.Context, name string, host fleet.Host) *v1alpha1.Config {
	GinkgoHelper()
	access, err := clientconfig.FromBytes(secretValue(ctx, name, name+"-talosconfig", "talosconfig"))
	Expect(err).NotTo(HaveOccurred())
	talos, err := client.New(ctx, client.WithConfig(access), client.WithEndpoints(host.Address))
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = talos.Close() }()
	active, err := safe.StateGetByID[*config.MachineConfig](ctx, talos.COSI, config.ActiveID)
	Expect(err).NotTo(HaveOccurred())
	return active.Provider().RawV1Alpha1()
}

func deleteCluster(ctx context.Context, name string) {
	GinkgoHelper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}}
	Expect(world.client.Delete(ctx, cluster)).To(Succeed())
	Eventually(ctx, func() error {
		return world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(cluster), &clusterv1.Cluster{})
	}).WithTimeout(timeout).WithPolling(time.Second).Should(MatchError(ContainSubstring("not found")))
}

// awaitState waits until all hosts of a namespace are in a state.
func awaitState(ctx context.Context, namespace string, state infrav1.HostState) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		hosts := &infrav1.TalosHostList{}
		g.Expect(world.client.List(ctx, hosts, ctrlclient.InNamespace(namespace))).To(Succeed())
		g.Expect(hosts.Items).To(HaveEach(HaveField("Status.State", state)))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed(), "logs are in "+filepath.Join(world.dir, "stack"))
}

// annotate puts an annotation on all hosts of a namespace.
func annotate(ctx context.Context, namespace, annotation string) {
	GinkgoHelper()
	hosts := &infrav1.TalosHostList{}
	Expect(world.client.List(ctx, hosts, ctrlclient.InNamespace(namespace))).To(Succeed())
	for i := range hosts.Items {
		host := &hosts.Items[i]
		before := ctrlclient.MergeFrom(host.DeepCopy())
		metav1.SetMetaDataAnnotation(&host.ObjectMeta, annotation, "")
		Expect(world.client.Patch(ctx, host, before)).To(Succeed())
	}
}
