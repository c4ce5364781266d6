package integration

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestExternallyManagedTalosClusterIsLeftAlone: no finalizer, no status, no
// write at all; who manages it writes the status, and the cluster comes up.
func TestExternallyManagedTalosClusterIsLeftAlone(t *testing.T) {
	t.Parallel()
	const name = "external"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	createNamespace(t, name)
	hosts := addHosts(t, machines, name, 1)
	newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: 1}, func(object *unstructured.Unstructured) {
		if object.GetKind() == infrav1.TalosClusterKind {
			object.SetAnnotations(map[string]string{clusterv1.ManagedByAnnotation: "somebody"})
		}
	})
	talosCluster := &infrav1.TalosCluster{}
	untouched := func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, talosCluster)).To(Succeed())
		g.Expect(talosCluster.OwnerReferences).NotTo(BeEmpty(), "Cluster API owns it")
		g.Expect(talosCluster.Finalizers).To(BeEmpty())
		for _, entry := range talosCluster.ManagedFields {
			g.Expect(entry.Manager).NotTo(HavePrefix(ourPrefix))
		}
	}
	g.Eventually(untouched).WithTimeout(timeout).Should(Succeed())
	const silence = 3 * time.Second
	g.Consistently(untouched, silence).Should(Succeed())
	g.Expect(talosCluster.Status.Conditions).To(BeEmpty())
	g.Expect(talosMachines(g, ctx, name)).To(BeEmpty(), "nothing is made before the infrastructure is said to be there")

	before := talosCluster.DeepCopy()
	talosCluster.Status.Initialization.Provisioned = ptr.To(true)
	g.Expect(world.Client.Status().Patch(ctx, talosCluster, client.MergeFrom(before))).To(Succeed())
	awaitAvailable(t, name)
	untouched(g)

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, 1)
	expectWiped(t, machines, hosts...)
}

// ourPrefix begins the names that our managers write under.
const ourPrefix = "capt-"

// isOurs reports whether a field manager is one of ours.
func isOurs(manager string) bool { return strings.HasPrefix(manager, ourPrefix) }
