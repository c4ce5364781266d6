package integration

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// These make and watch the clusters of the tests that need one to look at.

// allowPods lets machines be Pods in a namespace.
func allowPods(t *testing.T, name string) {
	t.Helper()
	g, namespace := NewWithT(t), &corev1.Namespace{}
	g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Name: name}, namespace)).To(Succeed())
	before := namespace.DeepCopy()
	namespace.Labels[infrav1.PodSecurityLabel] = infrav1.PodSecurityPrivileged
	g.Expect(world.Client.Patch(t.Context(), namespace, client.MergeFrom(before))).To(Succeed())
}

func createNamespace(t *testing.T, name string, labels ...string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		namespace.Labels[label] = ""
	}
	NewWithT(t).Expect(world.Client.Create(t.Context(), namespace)).To(Succeed())
}

// newCluster generates a cluster, changes its objects and creates them.
func newCluster(t *testing.T, machines fleet.Fleet, cluster management.Shape, changes ...func(*unstructured.Unstructured)) {
	t.Helper()
	g := NewWithT(t)
	manifest, err := world.Stack.Generate(t.Context(), machines, cluster)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects(g, manifest) {
		for _, change := range changes {
			change(object)
		}
		g.Expect(world.Client.Create(t.Context(), object)).To(Succeed(), object.GetKind())
	}
}

// runCluster makes a namespace with as many hosts as are needed, and a cluster of
// its name; it returns once that is available. From then on it is an offence to leave
// fewer voters than control plane machines less one.
func runCluster(t *testing.T, machines *simfleet.Fleet, name string, controlPlanes, workers int, changes ...func(*unstructured.Unstructured)) []fleet.Host {
	t.Helper()
	createNamespace(t, name)
	hosts := addHosts(t, machines, name, controlPlanes+workers)
	newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: controlPlanes, Workers: workers}, changes...)
	awaitAvailable(t, name)
	machines.Sim.Expect(controlPlanes - 1)
	return hosts
}

// awaitAvailable waits until the cluster that is named like its namespace is
// available, and all Machines are that it is to have: with one of three it is available
// too.
func awaitAvailable(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		cluster := &clusterv1.Cluster{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
		g.Expect(told(cluster, clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue))
		machines := &clusterv1.MachineList{}
		g.Expect(world.Client.List(t.Context(), machines, client.InNamespace(name))).To(Succeed())
		g.Expect(len(machines.Items)).To(BeNumerically(">=", replicasOf(t.Context(), g, name)), "Machines")
		for i := range machines.Items {
			g.Expect(told(&machines.Items[i], clusterv1.AvailableCondition)).To(HaveField("Status", metav1.ConditionTrue), machines.Items[i].Name)
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// replicasOf is how many Machines the control planes and MachineDeployments of a namespace
// are to have.
func replicasOf(ctx context.Context, g Gomega, namespace string) int32 {
	var replicas int32
	for _, controlPlane := range controlPlanes(ctx, g, namespace) {
		replicas += ptr.Deref(controlPlane.Spec.Replicas, 1)
	}
	deployments := &clusterv1.MachineDeploymentList{}
	g.Expect(world.Client.List(ctx, deployments, client.InNamespace(namespace))).To(Succeed())
	for i := range deployments.Items {
		replicas += ptr.Deref(deployments.Items[i].Spec.Replicas, 1)
	}
	return replicas
}

// told is a condition of an object, or an empty one.
func told(object conditions.Getter, kind string) metav1.Condition {
	if found := conditions.Get(object, kind); found != nil {
		return *found
	}
	return metav1.Condition{}
}

// controlPlaneOf is the TalosControlPlane of the cluster that is named like its
// namespace.
func controlPlaneOf(ctx context.Context, g Gomega, name string) *controlplanev1.TalosControlPlane {
	found := &controlplanev1.TalosControlPlane{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, found)).To(Succeed())
	return found
}

// machinesOf are the Machines of a namespace: of the control plane, or workers.
func machinesOf(ctx context.Context, g Gomega, namespace string, controlPlane bool) []clusterv1.Machine {
	list := &clusterv1.MachineList{}
	g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	var found []clusterv1.Machine
	for _, machine := range list.Items {
		if _, is := machine.Labels[clusterv1.MachineControlPlaneLabel]; is == controlPlane {
			found = append(found, machine)
		}
	}
	return found
}

// setField changes a field of the objects of a kind.
func setField(kind string, value any, path ...string) func(*unstructured.Unstructured) {
	return func(object *unstructured.Unstructured) {
		if object.GetKind() != kind {
			return
		}
		if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

// ourLists are empty lists of the kinds that our controllers reconcile, and of the
// templates that they are made from.
func ourLists() []client.ObjectList {
	return []client.ObjectList{
		&infrav1.TalosClusterList{}, &infrav1.TalosMachineList{}, &infrav1.TalosMachineTemplateList{}, &infrav1.TalosHostList{},
		&bootstrapv1.TalosConfigList{}, &bootstrapv1.TalosConfigTemplateList{}, &controlplanev1.TalosControlPlaneList{},
	}
}

// awaitGone waits until nothing of a cluster is left in its namespace but hosts,
// and templates that it has never used.
func awaitGone(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		lists := append(ourLists(), &clusterv1.ClusterList{}, &clusterv1.MachineList{})
		for _, list := range lists {
			g.Expect(world.Client.List(t.Context(), list, client.InNamespace(name))).To(Succeed())
			for _, object := range items(g, list) {
				_, isHost := object.(*infrav1.TalosHost)
				_, isTemplate := object.(*infrav1.TalosMachineTemplate)
				g.Expect(isHost || isTemplate && object.GetOwnerReferences() == nil).To(BeTrue(), "%T %s is left", object, object.GetName())
			}
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// expectWiped asks the machines themselves.
func expectWiped(t *testing.T, machines fleet.Fleet, hosts ...fleet.Host) {
	t.Helper()
	for _, host := range hosts {
		NewWithT(t).Eventually(func() error { return machines.Wiped(t.Context(), host) }).WithTimeout(timeout).Should(Succeed(), host.Name)
	}
}

// controlPlanes are the TalosControlPlanes of a namespace.
func controlPlanes(ctx context.Context, g Gomega, namespace string) []controlplanev1.TalosControlPlane {
	list := &controlplanev1.TalosControlPlaneList{}
	g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	return list.Items
}

// contextAfter is for what is done at the end of a test, when its own context has
// ended.
func contextAfter(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}
