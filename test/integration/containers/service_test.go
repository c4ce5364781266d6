package containers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestBadInputServiceDeletedOrChanged: the Services of a cluster keep their
// addresses, for nobody can change what knows them.
func TestBadInputServiceDeletedOrChanged(t *testing.T) {
	t.Parallel()
	const name = "service"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 0)
	awaitCluster(t, name, 1, 0)
	machine := machinesOf(ctx, g, name, ofControlPlane())[0]
	endpoint, etcd := client.ObjectKey{Namespace: name, Name: name + infrav1.EndpointServiceSuffix}, client.ObjectKey{Namespace: name, Name: machine.Name + infrav1.EtcdServiceSuffix}
	get := func(g Gomega, key client.ObjectKey) *corev1.Service {
		service := &corev1.Service{}
		g.Expect(world.Client.Get(ctx, key, service)).To(Succeed())
		return service
	}
	for _, key := range []client.ObjectKey{endpoint, etcd} {
		t.Run("deleted "+key.Name, func(t *testing.T) {
			before := get(g, key)
			g.Expect(world.Client.Delete(ctx, before)).To(Succeed())
			NewWithT(t).Eventually(func(g Gomega) {
				after := get(g, key)
				g.Expect(after.UID).NotTo(Equal(before.UID))
				g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
				g.Expect(after.Spec.Selector).To(Equal(before.Spec.Selector))
			}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		})
	}
	t.Run("type changed", func(t *testing.T) {
		g := NewWithT(t)
		before := get(g, endpoint)
		changed := before.DeepCopy()
		changed.Spec.Type = corev1.ServiceTypeNodePort
		g.Expect(world.Client.Patch(ctx, changed, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			after := get(g, endpoint)
			g.Expect(after.UID).To(Equal(before.UID))
			g.Expect(after.Spec).To(And(HaveField("Type", corev1.ServiceTypeClusterIP), HaveField("ClusterIP", before.Spec.ClusterIP)))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	})
	t.Run("refused", func(t *testing.T) {
		g := NewWithT(t)
		before := get(g, endpoint)
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "services"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourceServices: resource.MustParse("1")},
		}}
		g.Expect(world.Client.Create(ctx, quota)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Used).NotTo(BeEmpty())
		}).WithTimeout(timeout).Should(Succeed())
		g.Expect(world.Client.Delete(ctx, before)).To(Succeed())
		cluster := &infrav1.TalosCluster{}
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
			g.Expect(told(cluster, infrav1.ReadyCondition)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", infrav1.ServiceRefusedReason),
				HaveField("Message", ContainSubstring("exceeded quota"))))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		g.Expect(world.Client.Delete(ctx, quota)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(get(g, endpoint).Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	})
	awaitCluster(t, name, 1, 0)
	expectNoOffence(t, name)
	deleteCluster(t, name)
}
