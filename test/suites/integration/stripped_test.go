package integration

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// TestOwnersAndFinalizersComeBack: what "clusterctl move" and garbage collection
// live on is put back after somebody has taken it away. The cluster is paused
// meanwhile, as after a restored backup.
func TestOwnersAndFinalizersComeBack(t *testing.T) {
	t.Parallel()
	const name = "stripped"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 1)
	bonds := func(g Gomega) map[string][]string { return bondsOf(t, g, name) }
	var before map[string][]string
	g.Eventually(func(g Gomega) {
		before = bonds(g)
		for _, object := range everything(t, g, name) {
			if _, isSecret := object.(*corev1.Secret); isSecret || object.GetOwnerReferences() != nil {
				continue
			}
			_, isHost := object.(*infrav1.TalosHost)
			g.Expect(isHost).To(BeTrue(), "%T %s belongs to nobody", object, object.GetName())
		}
	}).WithTimeout(timeout).Should(Succeed())

	setPaused(t, name, true)
	for _, object := range everything(t, g, name) {
		stripped, _ := object.DeepCopyObject().(client.Object)
		stripped.SetOwnerReferences(nil)
		stripped.SetFinalizers(nil)
		g.Expect(world.Client.Patch(ctx, stripped, client.MergeFrom(object))).To(Succeed(), "%T %s", object, object.GetName())
	}
	setPaused(t, name, false)
	g.Eventually(func(g Gomega) {
		now := bonds(g)
		for _, object := range slices.Sorted(maps.Keys(before)) {
			g.Expect(now[object]).To(Equal(before[object]), object)
		}
	}).WithTimeout(timeout).Should(Succeed())

	// Nothing was taken for lost or left over meanwhile.
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// everything is all objects of ours in a namespace: also the Machines and Secrets
// that we make.
func everything(t *testing.T, g Gomega, namespace string) []client.Object {
	t.Helper()
	var found []client.Object
	for _, list := range append(ourLists(), &corev1.SecretList{}, &clusterv1.MachineList{}) {
		g.Expect(world.Client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		found = append(found, items(g, list)...)
	}
	return found
}

// bondsOf are the owners and finalizers of all objects, in words.
func bondsOf(t *testing.T, g Gomega, namespace string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, object := range everything(t, g, namespace) {
		bonds := slices.Clone(object.GetFinalizers())
		for _, owner := range object.GetOwnerReferences() {
			bonds = append(bonds, fmt.Sprintf("%s %s %s controller=%t", owner.APIVersion, owner.Kind, owner.Name, owner.Controller != nil && *owner.Controller))
		}
		slices.Sort(bonds)
		found[fmt.Sprintf("%T %s", object, object.GetName())] = bonds
	}
	return found
}

// setPaused pauses a cluster, or lets it go on, and waits until our controllers
// have heard of it.
func setPaused(t *testing.T, name string, paused bool) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
		cluster.Spec.Paused = &paused
		g.Expect(world.Client.Update(ctx, cluster)).To(Succeed())
	}).WithTimeout(timeout).Should(Succeed())
	g.Eventually(func(g Gomega) {
		for _, object := range everything(t, g, name) {
			getter, reports := object.(conditions.Getter)
			if host, isHost := object.(*infrav1.TalosHost); !reports || isHost && host.Spec.ConsumerRef.Name == "" {
				continue
			}
			g.Expect(conditions.IsTrue(getter, clusterv1.PausedCondition)).To(Equal(paused), "%T %s", object, object.GetName())
		}
	}).WithTimeout(timeout).Should(Succeed())
}
