package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

var (
	controlPlanes = client.HasLabels{clusterv1.MachineControlPlaneLabel}
	workers       = client.HasLabels{clusterv1.MachineDeploymentNameLabel}
)

// managementCluster is kind as a scenario of the demo sees it.
func managementCluster(ctx context.Context) demo.Management {
	return demo.Management{
		Config: world.proxy.GetRESTConfig(), Kubeconfig: world.kind.GetKubeconfigPath(), Clusterctl: world.tool,
		Kubectl: world.built.Path("kubectl"), Check: func() error { return kindstack.CheckManagers(ctx, world.client) },
	}
}

// kubectl runs the real one in a namespace of kind, as users do.
func kubectl(ctx context.Context, namespace string, args ...string) string {
	GinkgoHelper()
	all := append([]string{"--kubeconfig", world.kind.GetKubeconfigPath(), "--namespace", namespace}, args...)
	output, err := exec.CommandContext(ctx, world.built.Path("kubectl"), all...).CombinedOutput() //nolint:gosec // the built tool
	Expect(err).NotTo(HaveOccurred(), "kubectl %s: %s", strings.Join(args, " "), output)
	return string(output)
}

// patch patches an object with kubectl.
func patch(ctx context.Context, namespace, kind, name, change string) {
	GinkgoHelper()
	kubectl(ctx, namespace, "patch", kind, name, "--type=merge", "--patch", change)
}

// scale scales with kubectl.
func scale(ctx context.Context, namespace, kind, name string, replicas int) {
	GinkgoHelper()
	kubectl(ctx, namespace, "scale", kind, name, "--replicas="+strconv.Itoa(replicas))
}

// createNamespace makes a namespace in which machines may be Pods.
func createNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	Expect(client.IgnoreAlreadyExists(world.client.Create(ctx, namespace))).To(Succeed())
}

// generate makes the manifests of a cluster in a namespace of its name, keeps them,
// and creates what is in them.
func generate(ctx context.Context, name, flavor, version string, controlPlanes, workers int, variables map[string]string) {
	GinkgoHelper()
	createNamespace(ctx, name)
	manifests, err := world.tool.Generate(ctx, name, variables, "--flavor", flavor, "--target-namespace", name, "--kubernetes-version", version,
		"--control-plane-machine-count", strconv.Itoa(controlPlanes), "--worker-machine-count", strconv.Itoa(workers))
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(filepath.Join(world.artifacts, name+".yaml"), manifests, 0o600)).To(Succeed())
	objects, err := management.Objects(manifests)
	Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		Eventually(ctx, func() error { return client.IgnoreAlreadyExists(world.client.Create(ctx, object)) }).
			WithTimeout(timeout).WithPolling(interval).Should(Succeed(), "%s %s", object.GetKind(), object.GetName())
	}
}

// generateMetal does so for machines of the fleet.
func generateMetal(ctx context.Context, name, version string, controlPlanes, workers int) {
	GinkgoHelper()
	endpoint, err := world.nodes.Fleet.Endpoint(ctx, name)
	Expect(err).NotTo(HaveOccurred())
	generate(ctx, name, "metal", version, controlPlanes, workers, map[string]string{
		"CONTROL_PLANE_ENDPOINT_HOST": endpoint.Host, "CONTROL_PLANE_ENDPOINT_PORT": strconv.Itoa(int(endpoint.Port)),
	})
}

// addHosts boots machines of the fleet and makes them known in a namespace.
func addHosts(ctx context.Context, namespace string, count int) {
	GinkgoHelper()
	createNamespace(ctx, namespace)
	hosts, err := world.nodes.Fleet.Add(ctx, count)
	Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		Expect(world.client.Create(ctx, host.Manifest(namespace, nil))).To(Succeed())
	}
}

// machinesOf are the Machines of a cluster that match, by age.
func machinesOf(ctx context.Context, name string, matching ...client.ListOption) []*clusterv1.Machine {
	GinkgoHelper()
	list := &clusterv1.MachineList{}
	Expect(world.client.List(ctx, list, append(matching, client.InNamespace(name))...)).To(Succeed())
	return collections.FromMachineList(list).SortedByCreationTimestamp()
}

// uids are those of Machines.
func uids(machines []*clusterv1.Machine) []string {
	found := make([]string, 0, len(machines))
	for _, machine := range machines {
		found = append(found, string(machine.UID))
	}
	slices.Sort(found)
	return found
}

// awaitWhole waits until a cluster has just that many Machines, all ready, the
// control plane is healthy, and nothing is under way.
func awaitWhole(ctx context.Context, name string, wantControlPlanes, wantWorkers int) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		for _, group := range []struct {
			matching client.ListOption
			want     int
		}{{controlPlanes, wantControlPlanes}, {workers, wantWorkers}} {
			list := &clusterv1.MachineList{}
			g.Expect(world.client.List(ctx, list, client.InNamespace(name), group.matching)).To(Succeed())
			g.Expect(list.Items).To(HaveLen(group.want))
			for i := range list.Items {
				machine := &list.Items[i]
				g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue(), "Machine %s is being deleted", machine.Name)
				g.Expect(conditions.IsTrue(machine, clusterv1.MachineReadyCondition)).To(BeTrue(),
					"Machine %s: %s", machine.Name, conditions.GetMessage(machine, clusterv1.MachineReadyCondition))
			}
		}
		expectControlPlane(ctx, g, name, wantControlPlanes)
		cluster := &clusterv1.Cluster{}
		g.Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
		g.Expect(conditions.IsTrue(cluster, clusterv1.AvailableCondition)).To(BeTrue(), conditions.GetMessage(cluster, clusterv1.AvailableCondition))
	}).WithTimeout(longTimeout).WithPolling(interval).Should(Succeed())
}

// expectControlPlane wants the control plane of a cluster to be complete, and at
// rest.
func expectControlPlane(ctx context.Context, g Gomega, name string, replicas int) {
	controlPlane := &controlplanev1.TalosControlPlane{}
	g.Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
	g.Expect(controlPlane.Status.ObservedGeneration).To(Equal(controlPlane.Generation))
	for _, count := range []*int32{controlPlane.Status.Replicas, controlPlane.Status.ReadyReplicas, controlPlane.Status.UpToDateReplicas} {
		g.Expect(count).To(HaveValue(BeEquivalentTo(replicas)))
	}
	for _, condition := range []string{controlplanev1.EtcdClusterHealthyCondition, controlplanev1.AvailableCondition} {
		g.Expect(conditions.IsTrue(controlPlane, condition)).To(BeTrue(), conditions.GetMessage(controlPlane, condition))
	}
	for _, condition := range []string{
		controlplanev1.ScalingUpCondition, controlplanev1.ScalingDownCondition, controlplanev1.RollingOutCondition, controlplanev1.RemediatingCondition,
	} {
		g.Expect(conditions.IsFalse(controlPlane, condition)).To(BeTrue(), conditions.GetMessage(controlPlane, condition))
	}
}

// awaitReplaced waits until a Machine is gone and the cluster whole without it.
func awaitReplaced(ctx context.Context, name string, victim *clusterv1.Machine, controlPlanes, workers int) {
	GinkgoHelper()
	Eventually(ctx, func() bool {
		return apierrors.IsNotFound(world.client.Get(ctx, client.ObjectKeyFromObject(victim), &clusterv1.Machine{}))
	}).WithTimeout(longTimeout).WithPolling(interval).Should(BeTrue(), "Machine %s is still there", victim.Name)
	awaitWhole(ctx, name, controlPlanes, workers)
}

// expectKubelets wants all Nodes of a cluster to run a version.
func expectKubelets(ctx context.Context, name, version string) {
	GinkgoHelper()
	nodes := &corev1.NodeList{}
	Expect(workloadClient(ctx, name).List(ctx, nodes)).To(Succeed())
	Expect(nodes.Items).To(And(Not(BeEmpty()), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", version))))
}

// kubeconfigOf is an administrator's of a cluster.
func kubeconfigOf(ctx context.Context, name string) []byte {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-kubeconfig"}, secret)).To(Succeed())
	Expect(secret.Data).To(HaveKey("value"))
	return secret.Data["value"]
}

// workloadClient is a client of a cluster, by its endpoint.
func workloadClient(ctx context.Context, name string) client.Client {
	GinkgoHelper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfigOf(ctx, name))
	Expect(err).NotTo(HaveOccurred())
	workload, err := client.New(config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
	return workload
}

// endpointOf is where the API servers of a cluster are reached.
func endpointOf(ctx context.Context, name string) clusterv1.APIEndpoint {
	GinkgoHelper()
	cluster := &infrav1.TalosCluster{}
	Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	Expect(cluster.Spec.ControlPlaneEndpoint.IsZero()).To(BeFalse())
	return cluster.Spec.ControlPlaneEndpoint
}

// podOf is the Pod that a Machine runs in.
func podOf(ctx context.Context, machine *clusterv1.Machine) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Expect(world.client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}, pod)).To(Succeed())
	return pod
}

// deleteCluster deletes a Cluster as users do, and waits until it is gone.
func deleteCluster(ctx context.Context, name string) {
	GinkgoHelper()
	kubectl(ctx, name, "delete", "cluster", name, "--wait=false")
	Eventually(ctx, func() bool {
		return apierrors.IsNotFound(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, &clusterv1.Cluster{}))
	}).WithTimeout(longTimeout).WithPolling(interval).Should(BeTrue(), "Cluster %s is still there", name)
}

// awaitNothingLeft waits until nothing of a deleted cluster in Pods is left.
func awaitNothingLeft(ctx context.Context, namespace string) {
	GinkgoHelper()
	Eventually(ctx, func() error { return demo.ExpectNothingLeft(ctx, world.client, namespace) }).
		WithTimeout(timeout).WithPolling(interval).Should(Succeed())
}

// awaitFreeHosts waits until all hosts of a namespace are available, and looks at
// the machines themselves.
func awaitFreeHosts(ctx context.Context, namespace string) {
	GinkgoHelper()
	hosts := &infrav1.TalosHostList{}
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.List(ctx, hosts, client.InNamespace(namespace))).To(Succeed())
		g.Expect(hosts.Items).To(And(Not(BeEmpty()), HaveEach(HaveField("Status.State", infrav1.HostAvailable))))
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
	for _, machine := range world.nodes.Fleet.Hosts() {
		if slices.ContainsFunc(hosts.Items, func(host infrav1.TalosHost) bool { return host.Name == machine.Name }) {
			Expect(world.nodes.Fleet.Wiped(ctx, machine)).To(Succeed())
		}
	}
}

// podNames are those of Machines' Pods.
func podNames(machines []*clusterv1.Machine) []string {
	names := make([]string, 0, len(machines))
	for _, machine := range machines {
		names = append(names, machine.Spec.InfrastructureRef.Name)
	}
	return names
}

// describe is what a failure shows of a cluster.
func describe(ctx context.Context, name string) string {
	out, err := world.tool.Run(ctx, nil, "describe", "cluster", name, "--namespace", name, "--show-conditions", "all")
	if err != nil {
		return fmt.Sprintf("clusterctl describe: %v", err)
	}
	return string(out)
}

// describeFailure keeps what a cluster is like when its spec has failed.
func describeFailure(names ...string) {
	JustAfterEach(func(ctx SpecContext) {
		if !CurrentSpecReport().Failed() {
			return
		}
		for _, name := range names {
			AddReportEntry("cluster "+name, describe(ctx, name))
			scenario := &demo.Scenario{Management: managementCluster(ctx), Cluster: name}
			if err := scenario.Collect(ctx, filepath.Join(world.artifacts, "objects", name)); err != nil {
				AddReportEntry("objects of "+name, err.Error())
			}
			machines := machinesOf(ctx, name)
			for _, pod := range podNames(machines) {
				if err := collectPod(ctx, name, pod, filepath.Join(world.artifacts, "pods", name)); err != nil {
					AddReportEntry("Pod "+pod, err.Error())
				}
			}
		}
	})
}
