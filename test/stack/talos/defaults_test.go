package talos

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// reachImage is that of cmd/reach.
const reachImage = "ghcr.io/capi-talos/reach:v1"

// What the flavor for metal renders, untouched but for where images come from and what the
// kubelet needs on this machine: other specs have the network of Pods of the test bed, and neither Services nor names.
var _ = Describe("A cluster with what Talos brings by default", func() {
	It("has Pods that reach each other by the name of a Service, from one node to another", Label("defaults"), func(ctx SpecContext) {
		const name, count = "defaults", 2
		built, err := parts.Ensure(ctx, parts.Print(GinkgoWriter), parts.TalosDefaultImages)
		Expect(err).NotTo(HaveOccurred())
		hosts, err := world.nodes.AddWithDefaults(ctx, built, 1+count)
		Expect(err).NotTo(HaveOccurred())
		offerProgram(ctx, "reach", reachImage)
		makeKnown(ctx, name, hosts)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 1, Workers: count}, nil)
		awaitControlPlane(ctx, name, 1)
		awaitWorkers(ctx, name, count)
		workload := workloadClient(ctx, name)

		By("running what Talos brings")
		for _, daemon := range []string{"kube-flannel", "kube-proxy"} {
			Eventually(ctx, func(g Gomega) {
				found := &appsv1.DaemonSet{}
				g.Expect(workload.Get(ctx, ctrlclient.ObjectKey{Namespace: metav1.NamespaceSystem, Name: daemon}, found)).To(Succeed())
				g.Expect(found.Status.NumberReady).To(BeEquivalentTo(1+count), daemon)
			}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
		}
		Eventually(ctx, func(g Gomega) {
			found := &appsv1.Deployment{}
			g.Expect(workload.Get(ctx, ctrlclient.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "coredns"}, found)).To(Succeed())
			g.Expect(found.Status.AvailableReplicas).To(BeEquivalentTo(2))
		}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())

		By("asking from one node to the other, both ways")
		machines := machinesOf(ctx, name, workers)
		first, second := machines[0].Name, machines[1].Name
		for node, other := range map[string]string{first: second, second: first} {
			expectReached(ctx, workload, node, other)
		}
		deleteCluster(ctx, name)
	}, SpecTimeout(longTimeout))
})

// expectReached has a Pod on a node answer what one on another node asks its Service.
func expectReached(ctx context.Context, workload ctrlclient.Client, node, other string) {
	GinkgoHelper()
	const port = 80
	server := reachPod("server-on-"+node, node)
	server.Labels = map[string]string{"server": node}
	Expect(workload.Create(ctx, server)).To(Succeed())
	Expect(workload.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: server.Namespace, Name: server.Name},
		Spec:       corev1.ServiceSpec{Selector: server.Labels, Ports: []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt32(8080)}}},
	})).To(Succeed())
	asker := reachPod("asker-on-"+other, other)
	asker.Spec.Containers[0].Args = []string{"http://" + server.Name + "." + server.Namespace + ".svc.cluster.local"}
	Expect(workload.Create(ctx, asker)).To(Succeed())
	Eventually(ctx, func(g Gomega) {
		g.Expect(workload.Get(ctx, ctrlclient.ObjectKeyFromObject(asker), asker)).To(Succeed())
		g.Expect(asker.Status.Phase).To(Equal(corev1.PodSucceeded))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
}

func reachPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "reach", Image: reachImage}},
		},
	}
}
