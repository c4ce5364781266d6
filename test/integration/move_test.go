package integration

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// place is a management cluster that holds a cluster for a time.
type place struct {
	stack  *management.Stack
	client client.Client
}

// TestAClusterIsMovedThereAndBack (§14.4): "clusterctl move" to a second
// management cluster and back, with a live cluster of three control plane
// machines. Status does not come along, and all UIDs differ: nothing is
// bootstrapped, released, replaced or booted, and all Secrets are what they were.
func TestAClusterIsMovedThereAndBack(t *testing.T) {
	t.Parallel()
	const name = "moved"
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 3, 1)
	here, there := place{world.Stack, world.Client}, newPlace(t)
	boots := func() (found []int) {
		for _, host := range hosts {
			found = append(found, machines.Machine(host).Boots())
		}
		return found
	}
	booted := boots()
	for _, move := range []struct{ from, to place }{{here, there}, {there, here}} {
		before, secrets := move.from.identities(t, g, name), move.from.secrets(t, g, name)
		_, err := move.from.stack.Clusterctl.Run(t.Context(), nil, "move", "--namespace", name, "--to-kubeconfig", move.to.stack.Kubeconfig)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(move.from.identities(t, g, name)).To(BeEmpty(), "nothing is left behind")
		move.to.awaitAvailable(t, name)

		same := func(g Gomega) {
			after := move.to.identities(t, g, name)
			g.Expect(slices.Sorted(maps.Keys(after))).To(Equal(slices.Sorted(maps.Keys(before))))
			for object, uid := range after {
				g.Expect(uid).NotTo(Equal(before[object]), object)
			}
			g.Expect(move.to.secrets(t, g, name)).To(Equal(secrets))
			g.Expect(boots()).To(Equal(booted))
			g.Expect(machines.Bootstraps()).To(Equal(1))
		}
		const watched = 10 * time.Second
		g.Consistently(same, watched, time.Second).Should(Succeed())
	}
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// newPlace starts a second management cluster that ends with the test.
func newPlace(t *testing.T) place {
	t.Helper()
	g := NewWithT(t)
	stack, err := management.Up(t.Context(), management.StackOptions{Dir: t.TempDir(), Repository: filepath.Join(world.Source, "out", "repository")})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(stack.Stop(contextAfter(t))).To(Succeed()) })
	scheme, err := demo.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := client.New(stack.Config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return place{stack, reader}
}

// identities are the UIDs of all objects that a move takes along.
func (p place) identities(t *testing.T, g Gomega, namespace string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, list := range append(ourLists(), &corev1.SecretList{}, &clusterv1.ClusterList{}, &clusterv1.MachineList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineDeploymentList{}) {
		g.Expect(p.client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
		for _, object := range items(g, list) {
			found[fmt.Sprintf("%T %s", object, object.GetName())] = string(object.GetUID())
		}
	}
	return found
}

// secrets are the contents of all Secrets.
func (p place) secrets(t *testing.T, g Gomega, namespace string) map[string]map[string][]byte {
	t.Helper()
	list, found := &corev1.SecretList{}, map[string]map[string][]byte{}
	g.Expect(p.client.List(t.Context(), list, client.InNamespace(namespace))).To(Succeed())
	for _, secret := range list.Items {
		found[secret.Name] = secret.Data
	}
	return found
}

// awaitAvailable waits until all that is told of the cluster is true again.
func (p place) awaitAvailable(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		p.expectAvailable(t.Context(), g, name)
	}).WithTimeout(2 * timeout).Should(Succeed())
}

func (p place) expectAvailable(ctx context.Context, g Gomega, name string) {
	cluster, controlPlane := &clusterv1.Cluster{}, &controlplanev1.TalosControlPlane{}
	g.Expect(p.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	g.Expect(told(cluster, clusterv1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
	g.Expect(p.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
	g.Expect(controlPlane.Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
	g.Expect(controlPlane.Status.UpToDateReplicas).To(Equal(controlPlane.Spec.Replicas))
	g.Expect(controlPlane.Status.AvailableReplicas).To(Equal(controlPlane.Spec.Replicas))
	list := &clusterv1.MachineList{}
	g.Expect(p.client.List(ctx, list, client.InNamespace(name))).To(Succeed())
	for i := range list.Items {
		g.Expect(conditions.IsTrue(&list.Items[i], clusterv1.AvailableCondition)).To(BeTrue(), list.Items[i].Name)
	}
	hosts := &infrav1.TalosHostList{}
	g.Expect(p.client.List(ctx, hosts, client.InNamespace(name))).To(Succeed())
	g.Expect(hosts.Items).To(And(Not(BeEmpty()), HaveEach(HaveField("Status.State", infrav1.HostProvisioned))))
}
