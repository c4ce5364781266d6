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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// addHosts boots more machines and makes them known, with patches of the user's.
func addHosts(ctx context.Context, namespace string, count int, patches ...string) []fleet.Host {
	GinkgoHelper()
	makeNamespace(ctx, namespace)
	hosts, err := world.nodes.Fleet.Add(ctx, count)
	Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		manifest := host.Manifest(namespace, nil)
		manifest.Spec.StrategicPatches = append(manifest.Spec.StrategicPatches, patches...)
		Expect(world.client.Create(ctx, manifest)).To(Succeed())
	}
	return hosts
}

// makeNamespace makes a namespace, unless it is there.
func makeNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(ctrlclient.IgnoreAlreadyExists(world.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))).To(Succeed())
}

// createCluster generates a cluster from the template, changes the specs of its
// objects, and applies it.
func createCluster(ctx context.Context, shape management.Shape, change func(kind string, spec map[string]any)) {
	GinkgoHelper()
	manifests, err := world.stack.Generate(ctx, world.nodes.Fleet, shape)
	Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(manifests)
	Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if change != nil {
			spec, ok := object.Object["spec"].(map[string]any)
			Expect(ok).To(BeTrue())
			change(object.GetKind(), spec)
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
	return clientOf(string(secretValue(ctx, name, name+"-kubeconfig", "value")))
}

// clientOf is a client of the cluster of a kubeconfig.
func clientOf(kubeconfig string) ctrlclient.Client {
	GinkgoHelper()
	access, err := clientcmd.RESTConfigFromKubeConfig([]byte(kubeconfig))
	Expect(err).NotTo(HaveOccurred())
	workload, err := ctrlclient.New(access, ctrlclient.Options{})
	Expect(err).NotTo(HaveOccurred())
	return workload
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

// talosOf opens a connection to the Talos API of a node of a cluster. Who asks for
// it closes it.
func talosOf(ctx context.Context, name, address string) *client.Client {
	GinkgoHelper()
	access, err := clientconfig.FromBytes(secretValue(ctx, name, name+"-talosconfig", "talosconfig"))
	Expect(err).NotTo(HaveOccurred())
	talos, err := client.New(ctx, client.WithConfig(access), client.WithEndpoints(address))
	Expect(err).NotTo(HaveOccurred())
	return talos
}

// addressOf is where the Talos of a Machine answers.
func addressOf(machine *clusterv1.Machine) string {
	for _, known := range machine.Status.Addresses {
		if known.Type == clusterv1.MachineInternalIP {
			return known.Address
		}
	}
	return ""
}

// hostOf is the machine of the fleet that a Machine stands for.
func hostOf(machine *clusterv1.Machine) fleet.Host {
	GinkgoHelper()
	for _, host := range world.nodes.Fleet.Hosts() {
		if host.Address == addressOf(machine) {
			return host
		}
	}
	Fail("no machine of the fleet is at the address of Machine " + machine.Name)
	return fleet.Host{}
}

// machinesOf are the Machines of a cluster that match, by age.
func machinesOf(ctx context.Context, name string, matching ...ctrlclient.ListOption) []*clusterv1.Machine {
	GinkgoHelper()
	list := &clusterv1.MachineList{}
	Expect(world.client.List(ctx, list, append(matching, ctrlclient.InNamespace(name))...)).To(Succeed())
	return collections.FromMachineList(list).SortedByCreationTimestamp()
}

var (
	controlPlanes = ctrlclient.HasLabels{clusterv1.MachineControlPlaneLabel}
	workers       = ctrlclient.HasLabels{clusterv1.MachineDeploymentNameLabel}
)

// awaitControlPlane waits until the control plane has just that many Machines, all
// healthy, up to date and voters of etcd, and nothing is under way.
func awaitControlPlane(ctx context.Context, name string, replicas int) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		controlPlane := &controlplanev1.TalosControlPlane{}
		g.Expect(world.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
		g.Expect(controlPlane.Status.ObservedGeneration).To(Equal(controlPlane.Generation))
		for _, count := range []*int32{controlPlane.Status.Replicas, controlPlane.Status.ReadyReplicas, controlPlane.Status.UpToDateReplicas} {
			g.Expect(count).To(HaveValue(BeEquivalentTo(replicas)))
		}
		for _, machine := range machinesOf(ctx, name, controlPlanes) {
			g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue(), machine.Name)
		}
		for _, condition := range []string{controlplanev1.EtcdClusterHealthyCondition, controlplanev1.AvailableCondition} {
			g.Expect(conditions.IsTrue(controlPlane, condition)).To(BeTrue(), conditions.GetMessage(controlPlane, condition))
		}
		for _, condition := range []string{
			controlplanev1.ScalingUpCondition, controlplanev1.ScalingDownCondition, controlplanev1.RollingOutCondition, controlplanev1.RemediatingCondition,
		} {
			g.Expect(conditions.IsFalse(controlPlane, condition)).To(BeTrue(), conditions.GetMessage(controlPlane, condition))
		}
	}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
	expectVoters(ctx, name, replicas)
}

// membersAt asks etcd of one node for its members.
func membersAt(ctx context.Context, name, address string) ([]*machineapi.EtcdMember, error) {
	GinkgoHelper()
	talos := talosOf(ctx, name, address)
	defer func() { _ = talos.Close() }()
	list, err := talos.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{})
	if err != nil {
		return nil, err
	}
	if len(list.GetMessages()) != 1 {
		return nil, fmt.Errorf("%d nodes have answered", len(list.GetMessages()))
	}
	return list.GetMessages()[0].GetMembers(), nil
}

// expectVoters asks etcd itself, on each control plane node, for its members.
func expectVoters(ctx context.Context, name string, count int) {
	GinkgoHelper()
	machines := machinesOf(ctx, name, controlPlanes)
	Expect(machines).To(HaveLen(count))
	for _, machine := range machines {
		members, err := membersAt(ctx, name, addressOf(machine))
		Expect(err).NotTo(HaveOccurred())
		Expect(members).To(And(HaveLen(count), HaveEach(HaveField("IsLearner", BeFalse()))))
		talos := talosOf(ctx, name, addressOf(machine))
		status, err := talos.EtcdStatus(ctx)
		_ = talos.Close()
		Expect(err).NotTo(HaveOccurred())
		Expect(status.GetMessages()[0].GetMemberStatus().GetErrors()).To(BeEmpty())
		Expect(status.GetMessages()[0].GetMemberStatus().GetLeader()).NotTo(BeZero())
		fmt.Fprintf(GinkgoWriter, "etcd on %s: %d voting members, leader %x\n", machine.Name, count, status.GetMessages()[0].GetMemberStatus().GetLeader())
	}
}

// awaitWorkers waits until a cluster has just that many workers, all ready.
func awaitWorkers(ctx context.Context, name string, count int) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		found := machinesOf(ctx, name, workers)
		g.Expect(found).To(HaveLen(count))
		for _, machine := range found {
			g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue(), machine.Name)
			g.Expect(conditions.IsTrue(machine, clusterv1.MachineReadyCondition)).To(BeTrue(), conditions.GetMessage(machine, clusterv1.MachineReadyCondition))
		}
	}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
}

// uids are those of Machines.
func uids(machines []*clusterv1.Machine) []string {
	found := make([]string, 0, len(machines))
	for _, machine := range machines {
		found = append(found, string(machine.UID))
	}
	return found
}

// freeHosts are the names of the TalosHosts of a namespace that a Machine could
// have, but for their being unschedulable.
func freeHosts(ctx context.Context, namespace string) []string {
	GinkgoHelper()
	hosts := &infrav1.TalosHostList{}
	Expect(world.client.List(ctx, hosts, ctrlclient.InNamespace(namespace))).To(Succeed())
	var free []string
	for i := range hosts.Items {
		if hosts.Items[i].Status.State == infrav1.HostAvailable {
			free = append(free, hosts.Items[i].Name)
		}
	}
	return free
}

// expectKubelets compares what the kubelets of Machines tell of their version.
func expectKubelets(ctx context.Context, name, version string, machines ...*clusterv1.Machine) {
	GinkgoHelper()
	for _, machine := range machines {
		node := nodeOf(ctx, Default, name, machine)
		Expect(node.Status.NodeInfo.KubeletVersion).To(Equal(version), node.Name)
	}
}

// nodeOf is the Node of a Machine.
func nodeOf(ctx context.Context, g Gomega, name string, machine *clusterv1.Machine) *corev1.Node {
	GinkgoHelper()
	node := &corev1.Node{}
	g.Expect(workloadClient(ctx, name).Get(ctx, ctrlclient.ObjectKey{Name: machine.Status.NodeRef.Name}, node)).To(Succeed())
	return node
}

// setField sets a field of a manifest.
func setField(spec map[string]any, value any, fields ...string) {
	GinkgoHelper()
	Expect(unstructured.SetNestedField(spec, value, fields...)).To(Succeed())
}

// kubectl runs the real kubectl in a namespace of the management cluster.
func kubectl(ctx context.Context, namespace string, args ...string) {
	GinkgoHelper()
	_, err := world.stack.Kubectl(ctx, append([]string{"--namespace", namespace}, args...)...)
	Expect(err).NotTo(HaveOccurred())
}

// patch changes an object as a user does.
func patch(ctx context.Context, namespace, kind, name, change string) {
	GinkgoHelper()
	kubectl(ctx, namespace, "patch", kind, name, "--type=merge", "--patch", change)
}
