package containers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/podhost"
)

func eviction(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

// the only Machine of a MachineDeployment.
func only(t *testing.T, name, deployment string) *clusterv1.Machine {
	t.Helper()
	var found []clusterv1.Machine
	NewWithT(t).Eventually(func(g Gomega) {
		found = machinesOf(t.Context(), g, name, ofDeployment(deployment))
		g.Expect(found).To(HaveLen(1))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	return &found[0]
}

// awaitRunning waits until the machine of a Machine runs, with a Pod that is ready.
func awaitRunning(t *testing.T, machine *clusterv1.Machine, podIs ...any) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	NewWithT(t).Eventually(func(g Gomega) {
		pod = podOf(t.Context(), g, machine)
		g.Expect(pod.DeletionTimestamp.IsZero()).To(BeTrue())
		g.Expect(pod.Status.ContainerStatuses).To(ConsistOf(HaveField("Ready", BeTrue())))
		found := talosMachine(t.Context(), g, machine)
		g.Expect(found.Spec.Pod).To(And(HaveField("UID", string(pod.UID)), HaveField("Progress", infrav1.PodRan)))
		g.Expect(told(found, infrav1.RunningCondition)).To(HaveField("Status", metav1.ConditionTrue))
		g.Expect(found.Status.Addresses).To(ContainElement(HaveField("Address", pod.Status.PodIP)))
		for _, is := range podIs {
			g.Expect(pod).To(is.(OmegaMatcher)) //nolint:forcetypeassert // Matchers, by their callers.
		}
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	return pod
}

// TestBadInputContainersAndPodsThatEnd: a container that ends is the kubelet's; a
// Pod that goes is the machine, or is made again on its volume (design D11).
func TestBadInputContainersAndPodsThatEnd(t *testing.T) {
	t.Parallel()
	const name = "ends"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 1, onVolumes("-control-plane"))
	addWorkers(t, name, "-kept", onVolumes("-kept"))
	awaitCluster(t, name, 1, 2)
	waitForNodes(t, name, name+"-workers", patient)
	controlPlane := machinesOf(ctx, g, name, ofControlPlane())[0]

	t.Run("container killed", func(t *testing.T) {
		worker := only(t, name, name+"-workers")
		before := awaitRunning(t, worker)
		g.Expect(world.Pods.KillContainer(podKey(worker))).To(Succeed())
		after := awaitRunning(t, worker, HaveField("Status.ContainerStatuses", ConsistOf(HaveField("RestartCount", BeEquivalentTo(1)))))
		g.Expect(after.UID).To(Equal(before.UID))
	})
	t.Run("out of memory", func(t *testing.T) {
		before := awaitRunning(t, &controlPlane)
		g.Expect(world.Pods.OOMKill(podKey(&controlPlane))).To(Succeed())
		after := awaitRunning(t, &controlPlane, HaveField("Status.ContainerStatuses", ConsistOf(HaveField("LastTerminationState.Terminated.Reason", "OOMKilled"))))
		g.Expect(after.UID).To(Equal(before.UID))
	})
	t.Run("Pod on a volume deleted", func(t *testing.T) {
		before, was := awaitRunning(t, &controlPlane), talosMachine(ctx, g, &controlPlane)
		g.Expect(world.Client.Delete(ctx, before)).To(Succeed())
		after := awaitRunning(t, &controlPlane, HaveField("UID", Not(Equal(before.UID))))
		is := talosMachine(ctx, g, &controlPlane)
		g.Expect(after.Status.PodIP).NotTo(Equal(before.Status.PodIP))
		g.Expect(is.Spec.ProviderID).To(Equal(was.Spec.ProviderID))
		g.Expect(is.Spec.Pod.EtcdAddress).To(Equal(was.Spec.Pod.EtcdAddress))
		awaitCluster(t, name, 1, 2)
		expectNoOffence(t, name, 0)
	})
	t.Run("Pod on a volume evicted", func(t *testing.T) {
		worker := only(t, name, name+"-kept")
		before := awaitRunning(t, worker)
		g.Expect(world.Pods.Evict(ctx, podKey(worker))).To(Succeed())
		awaitRunning(t, worker, HaveField("UID", Not(Equal(before.UID))))
	})
	t.Run("ephemeral Pod evicted", func(t *testing.T) {
		waitForNodes(t, name, name+"-workers", impatient)
		worker := only(t, name, name+"-workers")
		g.Expect(world.Pods.Evict(ctx, podKey(worker))).To(Succeed())
		expectReplaced(t, worker)
		awaitCluster(t, name, 1, 2)
	})
	t.Run("ephemeral Pod deleted", func(t *testing.T) {
		worker := only(t, name, name+"-workers")
		g.Expect(world.Client.Delete(ctx, podOf(ctx, g, worker))).To(Succeed())
		expectReplaced(t, worker)
		awaitCluster(t, name, 1, 2)
	})
	t.Run("node drained", func(t *testing.T) {
		g.Expect(evict(t, &controlPlane)).To(MatchError(ContainSubstring("disruption budget")))
		worker := only(t, name, name+"-workers")
		g.Expect(evict(t, worker)).To(Succeed())
		expectReplaced(t, worker)
		awaitCluster(t, name, 1, 2)
	})
	t.Run("node rebooted", func(t *testing.T) {
		waitForNodes(t, name, name+"-workers", patient)
		worker := only(t, name, name+"-workers")
		before := awaitRunning(t, worker)
		g.Expect(world.Pods.LoseSandboxes(ctx, podKey(worker), podKey(&controlPlane))).To(Succeed())
		after := awaitRunning(t, worker, HaveField("Status.PodIP", Not(Equal(before.Status.PodIP))))
		g.Expect(after.UID).To(Equal(before.UID))
		awaitRunning(t, &controlPlane)
		awaitCluster(t, name, 1, 2)
		expectNoOffence(t, name, 0)
	})
	deleteCluster(t, name)
}

// TestBadInputNodeThatIsGone: a Pod on a volume is made again on another node.
func TestBadInputNodeThatIsGone(t *testing.T) {
	t.Parallel()
	const name, node = "node-gone", podhost.SpareNode
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 1, onVolumes("-workers"), container("-workers", map[string]any{"role": "goes"}, "nodeSelector"),
		container("-workers", []any{map[string]any{"key": podhost.SpareTaint, "operator": "Exists"}}, "tolerations"))
	mark := func(node, role string) {
		found := &corev1.Node{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Name: node}, found)).To(Succeed())
		before := found.DeepCopy()
		found.Labels["role"] = role
		g.Expect(world.Client.Patch(ctx, found, client.MergeFrom(before))).To(Succeed())
	}
	mark(node, "goes")
	awaitCluster(t, name, 1, 1)
	worker := only(t, name, name+"-workers")
	before := awaitRunning(t, worker, HaveField("Spec.NodeName", node))
	g.Expect(world.Pods.RemoveNode(ctx, node)).To(Succeed())
	mark("node-2", "goes")
	after := awaitRunning(t, worker, HaveField("UID", Not(Equal(before.UID))))
	g.Expect(after.Spec.NodeName).To(Equal("node-2"))
	awaitCluster(t, name, 1, 1)
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
}

// TestALongConfigurationIsGzipped: the environment of a container could not carry it
// else, and nothing but the environment gives a Pod its configuration.
func TestALongConfigurationIsGzipped(t *testing.T) {
	t.Parallel()
	const name, length = "long", 200_000
	g, ctx := NewWithT(t), t.Context()
	content := make([]byte, length)
	for i := range content {
		content[i] = byte('a' + i%26)
	}
	patch := []any{"machine:\n  files:\n  - path: /var/long\n    op: create\n    permissions: 0o644\n    content: " + string(content) + "\n"}
	create(t, name, 1, 1, set("TalosControlPlane", "", patch, "spec", "talosConfigSpec", "strategicPatches"))
	awaitCluster(t, name, 1, 1)
	machine := machinesOf(ctx, g, name, ofControlPlane())[0]
	pod := awaitRunning(t, &machine)
	g.Expect(pod.Spec.Containers[0].Env).To(ContainElement(HaveField("Name", "USERDATA")))
	g.Expect(len(world.Pods.Machine(podKey(&machine)).Configuration())).To(BeNumerically(">", length))

	// It is on the machine's volume: a container that ends comes back with it.
	g.Expect(world.Pods.KillContainer(podKey(&machine))).To(Succeed())
	awaitRunning(t, &machine, HaveField("Status.ContainerStatuses", ConsistOf(HaveField("RestartCount", BeEquivalentTo(1)))))
	awaitCluster(t, name, 1, 1)
	g.Consistently(func() []string { return world.Pods.Created(podKey(&machine)) }).WithTimeout(time.Second).Should(HaveLen(1))
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
}
