package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/kindstack"
)

// namespaces are those of our managers.
func namespaces() []string {
	return append(namespacesOfOlderReleases(), "capt-addon-system", "capt-backup-system")
}

// namespacesOfOlderReleases are without those of the add-on and the backup provider, which
// came later.
func namespacesOfOlderReleases() []string {
	return []string{"capt-bootstrap-system", "capt-control-plane-system", "capt-infrastructure-system"}
}

// installationSpecs look at the managers as clusterctl has installed them.
func installationSpecs() {
	It("run as restricted Pods, which were not started twice, and one of each leads", Label("installation"), func(ctx SpecContext) {
		for _, name := range namespaces() {
			namespace := &corev1.Namespace{}
			Expect(world.client.Get(ctx, client.ObjectKey{Name: name}, namespace)).To(Succeed())
			Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
			deployments := &appsv1.DeploymentList{}
			Expect(world.client.List(ctx, deployments, client.InNamespace(name))).To(Succeed())
			Expect(deployments.Items).To(HaveLen(1))
			container := deployments.Items[0].Spec.Template.Spec.Containers[0]
			Expect(container.Name).To(Equal("manager"))
			Expect(container.Resources.Requests).To(And(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)))
			Expect(container.LivenessProbe).NotTo(BeNil())
			Expect(container.ReadinessProbe).NotTo(BeNil())
			Expect(deployments.Items[0].Status.AvailableReplicas).To(BeEquivalentTo(1))
			Eventually(ctx, func(g Gomega) {
				leases := &coordinationv1.LeaseList{}
				g.Expect(world.client.List(ctx, leases, client.InNamespace(name))).To(Succeed())
				g.Expect(leases.Items).To(HaveExactElements(HaveField("Spec.HolderIdentity", HaveValue(Not(BeEmpty())))), "one leads in %s", name)
			}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
		}
		Expect(kindstack.CheckManagers(ctx, world.client)).To(Succeed())
	}, SpecTimeout(timeout))
	policySpecs()
}
