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

// endpointKey is the name of the Service of a cluster.
func endpointKey(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: name, Name: name + infrav1.EndpointServiceSuffix}
}

func service(t *testing.T, g Gomega, key client.ObjectKey) *corev1.Service {
	t.Helper()
	found := &corev1.Service{}
	g.Expect(world.Client.Get(t.Context(), key, found)).To(Succeed())
	return found
}

// awaitEndpoint waits until a cluster has an endpoint, and is the Service.
func awaitEndpoint(t *testing.T, name string) *infrav1.TalosCluster {
	t.Helper()
	found := &infrav1.TalosCluster{}
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name}, found)).To(Succeed())
		g.Expect(told(found, infrav1.ReadyCondition)).To(HaveField("Status", metav1.ConditionTrue))
		g.Expect(found.Spec.ControlPlaneEndpoint.Host).NotTo(BeEmpty())
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	return found
}

// expectClusterTold waits for condition Ready of a TalosCluster, with words of the
// cause and of the way out.
func expectClusterTold(t *testing.T, name, reason string, words ...string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		found := &infrav1.TalosCluster{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name}, found)).To(Succeed())
		condition := told(found, infrav1.ReadyCondition)
		g.Expect(condition).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
		for _, word := range words {
			g.Expect(condition.Message).To(ContainSubstring(word))
		}
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

// deleteService deletes one, and waits until there is another one of its name.
func deleteService(t *testing.T, key client.ObjectKey) (before, after *corev1.Service) {
	t.Helper()
	g := NewWithT(t)
	before = service(t, g, key)
	g.Expect(world.Client.Delete(t.Context(), before.DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega) {
		after = service(t, g, key)
		g.Expect(after.UID).NotTo(Equal(before.UID))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	return before, after
}

// TestBadInputClusterIPServiceDeletedOrChanged: the Service of a cluster keeps its
// cluster IP, for nobody can change what knows it.
func TestBadInputClusterIPServiceDeletedOrChanged(t *testing.T) {
	t.Parallel()
	const name = "cluster-ip"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 0, set(infrav1.TalosClusterKind, "", map[string]any{}, "spec", "container"))
	cluster := awaitEndpoint(t, name)
	g.Expect(service(t, g, endpointKey(name)).Spec).To(And(HaveField("Type", corev1.ServiceTypeClusterIP), HaveField("ClusterIP", cluster.Spec.ControlPlaneEndpoint.Host)))

	t.Run("deleted", func(t *testing.T) {
		g := NewWithT(t)
		before, _ := deleteService(t, endpointKey(name))
		g.Eventually(func(g Gomega) {
			after := service(t, g, endpointKey(name))
			g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
			g.Expect(after.Spec.Selector).To(Equal(before.Spec.Selector))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed(), "two managers may make it at once: one of them takes its own back")
		awaitEndpoint(t, name)
	})
	t.Run("type changed", func(t *testing.T) {
		g := NewWithT(t)
		before := service(t, g, endpointKey(name))
		changed := before.DeepCopy()
		changed.Spec.Type = corev1.ServiceTypeNodePort
		g.Expect(world.Client.Patch(ctx, changed, client.MergeFrom(before))).To(Succeed())
		g.Eventually(func(g Gomega) {
			after := service(t, g, endpointKey(name))
			g.Expect(after.UID).To(Equal(before.UID))
			g.Expect(after.Spec).To(And(HaveField("Type", corev1.ServiceTypeClusterIP), HaveField("ClusterIP", before.Spec.ClusterIP)))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	})
	t.Run("refused", func(t *testing.T) {
		g := NewWithT(t)
		before := service(t, g, endpointKey(name))
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "services"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourceServices: resource.MustParse("0")},
		}}
		g.Expect(world.Client.Create(ctx, quota)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Used).NotTo(BeEmpty())
		}).WithTimeout(timeout).Should(Succeed())
		g.Expect(world.Client.Delete(ctx, before.DeepCopy())).To(Succeed())
		expectClusterTold(t, name, infrav1.ServiceRefusedReason, "exceeded quota", "tried again")
		g.Expect(world.Client.Delete(ctx, quota)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(service(t, g, endpointKey(name)).Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		awaitEndpoint(t, name)
	})
	t.Run("address taken by another one", func(t *testing.T) {
		g := NewWithT(t)
		before := service(t, g, endpointKey(name))
		kubectl(t, name, "patch", "cluster", name, "--type=merge", "--patch", `{"spec":{"paused":true}}`)
		g.Eventually(func(g Gomega) {
			found := &infrav1.TalosCluster{}
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, found)).To(Succeed())
			g.Expect(told(found, "Paused")).To(HaveField("Status", metav1.ConditionTrue))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		g.Expect(world.Client.Delete(ctx, before.DeepCopy())).To(Succeed())
		thief := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "thief"}, Spec: corev1.ServiceSpec{
			ClusterIP: before.Spec.ClusterIP, Ports: []corev1.ServicePort{{Port: 80}},
		}}
		g.Eventually(func() error { return world.Client.Create(ctx, thief.DeepCopy()) }).WithTimeout(timeout).Should(Succeed())
		kubectl(t, name, "patch", "cluster", name, "--type=merge", "--patch", `{"spec":{"paused":false}}`)
		expectClusterTold(t, name, infrav1.ServiceRefusedReason, "in use by another Service", before.Spec.ClusterIP)
		g.Expect(world.Client.Delete(ctx, thief)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(service(t, g, endpointKey(name)).Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
		}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
		awaitEndpoint(t, name)
	})
	deleteCluster(t, name)
}

// TestBadInputLoadBalancerServiceDeletedOrMoved: a Service whose balancer gets its
// address again is mended; with another address nothing can be, and a condition says
// so until it is back. That of etcd keeps its address always.
func TestBadInputLoadBalancerServiceDeletedOrMoved(t *testing.T) {
	t.Parallel()
	const name = "balanced"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 0)
	awaitCluster(t, name, 1, 0)
	machine := machinesOf(ctx, g, name, ofControlPlane())[0]
	was := awaitEndpoint(t, name).Spec.ControlPlaneEndpoint.Host

	before, after := deleteService(t, client.ObjectKey{Namespace: name, Name: machine.Name + infrav1.EtcdServiceSuffix})
	g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	g.Expect(after.Spec.Selector).To(Equal(before.Spec.Selector))
	changed := after.DeepCopy()
	changed.Spec.Type, changed.Spec.Selector = corev1.ServiceTypeNodePort, map[string]string{"app": "theirs"}
	g.Expect(world.Client.Patch(ctx, changed, client.MergeFrom(after))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(service(t, g, client.ObjectKeyFromObject(after)).Spec).To(Equal(after.Spec))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
	mended := service(t, g, client.ObjectKeyFromObject(after)).ResourceVersion
	deleteService(t, endpointKey(name))
	awaitCluster(t, name, 1, 0)
	g.Expect(service(t, g, client.ObjectKeyFromObject(after)).ResourceVersion).To(Equal(mended), "what is as it is to be is left alone")

	world.Pods.MoveBalancer(endpointKey(name))
	deleteService(t, endpointKey(name))
	expectClusterTold(t, name, infrav1.ServiceAddressLostReason, was, "give the Service that address back")
	moved := service(t, g, endpointKey(name))
	back := moved.DeepCopy()
	back.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: was}}
	g.Expect(world.Client.Status().Patch(ctx, back, client.MergeFrom(moved))).To(Succeed())
	awaitEndpoint(t, name)
	awaitCluster(t, name, 1, 0)
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
}
