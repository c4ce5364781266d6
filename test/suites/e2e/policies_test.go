package e2e

import (
	"context"
	"path/filepath"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// reachImage is the image of cmd/reach of the stack, and reachPort is where it serves.
	reachImage = "registry.local/reach:v1"
	reachPort  = 8080
	// reachLabel has the name of such a Pod, and managerLabel is by what the policies know a
	// manager.
	reachLabel, managerLabel = "reach", "control-plane"
)

// holdToPolicies applies the network policies that are there for users, so that all that comes
// after it is done under them.
func holdToPolicies(ctx context.Context) string {
	GinkgoHelper()
	kubectl(ctx, metav1.NamespaceNone, "apply", "--kustomize", filepath.Join(world.source, "config", "network-policy"))
	return "applied"
}

// policySpecs show that the policies are enforced here: without that, managers that work under
// them would prove nothing.
func policySpecs() {
	It("reach no port that the network policies do not name", Label("installation"), func(ctx SpecContext) {
		const namespace = "capt-bootstrap-system"
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "server"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{reachLabel: "server"}, Ports: []corev1.ServicePort{{Port: reachPort}},
				PublishNotReadyAddresses: true,
			},
		}
		Expect(world.client.Create(ctx, service)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(world.client.Delete(ctx, service)).To(Succeed()) })
		url := "http://" + service.Spec.ClusterIP + ":" + strconv.Itoa(reachPort)

		// What is to be held comes first: rules for a new Pod come a little later than its address.
		held := reachPod(ctx, namespace, "held", "capt-bootstrap-controller-manager", url)
		awaitPhase(ctx, held, corev1.PodRunning)
		server := reachPod(ctx, namespace, "server", "")
		awaitPhase(ctx, server, corev1.PodRunning)
		free := reachPod(ctx, namespace, "free", "", url)
		awaitPhase(ctx, free, corev1.PodSucceeded)
		Expect(world.client.Get(ctx, client.ObjectKeyFromObject(held), held)).To(Succeed())
		Expect(held.Status.Phase).To(Equal(corev1.PodRunning), "it still tries")
		allow(ctx, namespace, reachPort)
		awaitPhase(ctx, held, corev1.PodSucceeded)
	}, SpecTimeout(timeout))
}

// reachPod makes a Pod that serves, or asks at a URL until it is answered, under the label of a
// manager or none. It is never ready, so that nobody takes it for that manager.
func reachPod(ctx context.Context, namespace, name, manager string, args ...string) *corev1.Pod {
	GinkgoHelper()
	const nobody = 65532
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{reachLabel: name}}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](nobody), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/never"}},
		Containers: []corev1.Container{{
			Name: "reach", Image: reachImage, ImagePullPolicy: corev1.PullNever, Args: args,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}}
	if manager != "" {
		pod.Labels[managerLabel] = manager
	}
	Expect(world.client.Create(ctx, pod)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(world.client.Delete(ctx, pod)).To(Succeed()) })
	return pod
}

// awaitPhase waits until a Pod is in a phase.
func awaitPhase(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		g.Expect(pod.Status.Phase).To(Equal(phase))
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
}

// allow lets the manager of a namespace out to a port that is none of those that most people
// have, as the page on policies says.
func allow(ctx context.Context, namespace string, port int) {
	GinkgoHelper()
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "port-" + strconv.Itoa(port)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: managerLabel, Operator: metav1.LabelSelectorOpExists}}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(port))}}}},
		},
	}
	Expect(world.client.Create(ctx, policy)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(world.client.Delete(ctx, policy)).To(Succeed()) })
}
