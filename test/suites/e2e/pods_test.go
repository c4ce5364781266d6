package e2e

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// survivor is a ConfigMap of the workload cluster that nothing may take away.
const survivor = "survivor"

// podsSpecs take a cluster whose machines are Pods of kind through its life. The
// steps need each other, so they are one spec.
func podsSpecs() {
	const name = "pods"
	describeFailure(name)
	leaveNothing(name, writerNamespace)
	It("grows, is brought to another version while a client writes, heals, outlives all of its sandboxes, gets an add-on, and leaves nothing", Label("pods"), func(ctx SpecContext) {
		step(ctx, "pods: create", func(ctx context.Context) string {
			generate(ctx, name, "container", parts.PreviousKubernetesVersion, 1, 1, nil)
			awaitWhole(ctx, name, 1, 1)
			return "1 control plane and 1 worker Ready"
		})
		endpoint := endpointOf(ctx, name)
		growInPods(ctx, name)
		rollInPods(ctx, name)
		healInPods(ctx, name)
		outliveSandboxes(ctx, name)
		installAddon(ctx, name)
		backUp(ctx, name)
		Expect(endpointOf(ctx, name)).To(Equal(endpoint), "the endpoint stays over all of it")
		step(ctx, "pods: delete", func(ctx context.Context) string {
			deleteCluster(ctx, name)
			awaitNothingLeft(ctx, name)
			return "no Pod, Service, Secret, claim, budget left"
		})
		play(name)
	}, SpecTimeout(longTimeout*6))
}

// growInPods scales up, and looks at how much memory the nodes use.
func growInPods(ctx context.Context, name string) {
	GinkgoHelper()
	step(ctx, "pods: control plane to 3", func(ctx context.Context) string {
		scale(ctx, name, "taloscontrolplane", name+"-control-plane", 3)
		awaitWhole(ctx, name, 3, 1)
		return "3 control plane machines healthy"
	})
	step(ctx, "pods: workers to 3", func(ctx context.Context) string {
		scale(ctx, name, "machinedeployment", name+"-workers", 3)
		awaitWhole(ctx, name, 3, 3)
		return "3 workers Ready"
	})
	printed, err := kindNode(ctx, "crictl", "stats", "--output", "json")
	Expect(err).NotTo(HaveOccurred())
	memory, err := readMemory([]byte(printed), name)
	Expect(err).NotTo(HaveOccurred())
	Expect(memory).To(HaveLen(6))
	world.memory = append(world.memory, memory...)
}

// rollInPods brings the control plane and then the workers to another version of
// Kubernetes, by replacement.
func rollInPods(ctx context.Context, name string) {
	GinkgoHelper()
	before := uids(machinesOf(ctx, name))
	writes := startWriter(ctx, name)
	step(ctx, "pods: rollout of the control plane", func(ctx context.Context) string {
		patch(ctx, name, "taloscontrolplane", name+"-control-plane", fmt.Sprintf(`{"spec":{"version":%q}}`, parts.KubernetesVersion))
		awaitVersion(ctx, name, controlPlanes, parts.KubernetesVersion)
		awaitWhole(ctx, name, 3, 3)
		return "3 Machines replaced"
	})
	step(ctx, "pods: rollout of the workers", func(ctx context.Context) string {
		patch(ctx, name, "machinedeployment", name+"-workers", fmt.Sprintf(`{"spec":{"template":{"spec":{"version":%q}}}}`, parts.KubernetesVersion))
		awaitVersion(ctx, name, workers, parts.KubernetesVersion)
		awaitWhole(ctx, name, 3, 3)
		return "3 Machines replaced"
	})
	step(ctx, "pods: writes during the rollouts", writes.stop)
	Expect(uids(machinesOf(ctx, name))).NotTo(ContainElement(BeElementOf(before)))
	expectKubelets(ctx, name, parts.KubernetesVersion)
}

// awaitVersion waits until all Machines that match are for a version.
func awaitVersion(ctx context.Context, name string, matching client.ListOption, version string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		list := &clusterv1.MachineList{}
		g.Expect(world.client.List(ctx, list, client.InNamespace(name), matching)).To(Succeed())
		g.Expect(list.Items).To(HaveEach(HaveField("Spec.Version", version)))
	}).WithTimeout(longTimeout).WithPolling(interval).Should(Succeed())
}

// healInPods kills a container, which comes back as the same machine, and deletes a
// Pod, whose machine the MachineHealthCheck of the template has replaced.
func healInPods(ctx context.Context, name string) {
	GinkgoHelper()
	step(ctx, "pods: a control plane container killed", func(ctx context.Context) string {
		before := machinesOf(ctx, name)
		pod := podOf(ctx, machinesOf(ctx, name, controlPlanes)[0])
		restarts := pod.Status.ContainerStatuses[0].RestartCount
		_, id, found := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		Expect(found).To(BeTrue(), pod.Status.ContainerStatuses[0].ContainerID)
		_, err := kindNode(ctx, "crictl", "--timeout", "1m", "stop", "--timeout", "0", id)
		Expect(err).NotTo(HaveOccurred())
		Eventually(ctx, func(g Gomega) {
			now := &corev1.Pod{}
			g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(pod), now)).To(Succeed())
			g.Expect(now.UID).To(Equal(pod.UID))
			g.Expect(now.Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", restarts))
			g.Expect(now.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))
		}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
		awaitWhole(ctx, name, 3, 3)
		Expect(uids(machinesOf(ctx, name))).To(Equal(uids(before)))
		return "the same Machines, healthy"
	})
	step(ctx, "pods: a control plane Pod deleted", func(ctx context.Context) string {
		victim := machinesOf(ctx, name, controlPlanes)[0]
		kubectl(ctx, name, "delete", "pod", victim.Spec.InfrastructureRef.Name, "--wait=false")
		awaitReplaced(ctx, name, victim, 3, 3)
		return "its Machine replaced"
	})
}

// outliveSandboxes does to all Pods at once what a restart of the hosting nodes
// does: they get other addresses.
func outliveSandboxes(ctx context.Context, name string) {
	GinkgoHelper()
	step(ctx, "pods: all sandboxes killed at once", func(ctx context.Context) string {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: survivor}, Data: map[string]string{"is": "there"}}
		Expect(workloadClient(ctx, name).Create(ctx, object)).To(Succeed())
		machines := machinesOf(ctx, name)
		addresses := map[string]string{}
		for _, machine := range machines {
			addresses[machine.Name] = podOf(ctx, machine).Status.PodIP
		}
		// By itself crictl gives up after two seconds, which a busy machine may need.
		_, err := kindNode(ctx, "sh", "-ec", `
			for id in $(crictl pods --namespace "$0" --state ready --quiet); do crictl --timeout 2m stopp "$id" & all="$all $!"; done
			for each in $all; do wait "$each"; done`, name)
		Expect(err).NotTo(HaveOccurred())
		for _, machine := range machines {
			Eventually(ctx, func() string { return podOf(ctx, machine).Status.PodIP }).
				WithTimeout(timeout).WithPolling(interval).ShouldNot(BeElementOf("", addresses[machine.Name]), "the Pod of %s has another address", machine.Name)
		}
		awaitWhole(ctx, name, 3, 3)
		Expect(uids(machinesOf(ctx, name))).To(Equal(uids(machines)))
		found := &corev1.ConfigMap{}
		Expect(workloadClient(ctx, name).Get(ctx, client.ObjectKeyFromObject(object), found)).To(Succeed())
		Expect(found.Data).To(Equal(object.Data))
		return "the same Machines with their data"
	})
}
