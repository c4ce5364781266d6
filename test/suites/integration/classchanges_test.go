package integration

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestChangesOfTheClusterClass, in the manner of upstream's ClusterClassChanges: a
// field that the class does not give stays the user's, one that it gives comes
// back, another class that says the same replaces nothing, and a variable of the
// workers replaces workers alone.
func TestChangesOfTheClusterClass(t *testing.T) {
	t.Parallel()
	const name = "class-changes"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runTopology(t, machines, name, 1, 1, 1)

	t.Run("fields are owned by who gives them", func(t *testing.T) { expectFieldsOwned(t, name) })
	t.Run("another class that says the same replaces nothing", func(t *testing.T) { expectRebased(t, name) })
	t.Run("a variable of the workers replaces workers", func(t *testing.T) { expectWorkersReplaced(t, name) })
	t.Run("a template that does not change is not made again", func(t *testing.T) {
		g, ctx := NewWithT(t), t.Context()
		before := partsOf(ctx, g, name)
		changeCluster(t, name, func(cluster *clusterv1.Cluster) {
			cluster.Spec.Topology.Variables = reversed(cluster.Spec.Topology.Variables)
		})
		// What the workers were made of before may go meanwhile.
		after := partsOf(ctx, g, name)
		g.Expect(after).NotTo(BeEmpty())
		for object, uid := range after {
			g.Expect(before).To(HaveKeyWithValue(object, uid))
		}
	})

	g.Expect(machines.Bootstraps()).To(Equal(1))
	deleteClusters(t, name, name)
	awaitTopologyGone(ctx, g, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

func reversed(variables []clusterv1.ClusterVariable) []clusterv1.ClusterVariable {
	found := slices.Clone(variables)
	slices.Reverse(found)
	return found
}

// expectFieldsOwned changes by hand a label that the topology gives, and fields
// that it does not give.
func expectFieldsOwned(t *testing.T, name string) {
	t.Helper()
	const label = "example.com/by-topology"
	g, ctx := NewWithT(t), t.Context()
	before := partsOf(ctx, g, name)
	changeCluster(t, name, func(cluster *clusterv1.Cluster) {
		cluster.Spec.Topology.ControlPlane.Metadata.Labels = map[string]string{label: "kept"}
		cluster.Spec.Topology.Workers.MachineDeployments[0].Metadata.Labels = map[string]string{label: "kept"}
	})
	patch := func(object client.Object, spec string) {
		content := `{"metadata":{"labels":{"` + label + `":"stolen"}},"spec":` + spec + `}`
		g.Expect(world.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(content)), client.FieldOwner("somebody"))).To(Succeed())
	}
	patch(controlPlaneOf(ctx, g, name), `{"remediation":{"maxRetry":3},"machineTemplate":{"metadata":{"labels":{"example.com/by-hand":"yes"}}}}`)
	patch(workersOf(ctx, g, name), `{"rollout":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":1}}}}`)
	g.Eventually(func(g Gomega) {
		controlPlane := controlPlaneOf(ctx, g, name)
		g.Expect(controlPlane.Labels).To(HaveKeyWithValue(label, "kept"))
		g.Expect(controlPlane.Spec.Remediation.MaxRetry).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Spec.MachineTemplate.ObjectMeta.Labels).To(HaveKeyWithValue("example.com/by-hand", "yes"))
		workers := workersOf(ctx, g, name)
		g.Expect(workers.Labels).To(HaveKeyWithValue(label, "kept"))
		g.Expect(workers.Spec.Rollout.Strategy.RollingUpdate.MaxUnavailable).To(HaveValue(Equal(intstr.FromInt32(1))))
		for _, machine := range machinesOf(ctx, g, name, true) {
			g.Expect(machine.Labels).To(HaveKeyWithValue("example.com/by-hand", "yes"))
		}
	}).WithTimeout(timeout).Should(Succeed())
	awaitTopology(t, name)
	g.Expect(partsOf(ctx, g, name)).To(Equal(before))
}

// workersOf is the MachineDeployment of the topology that is named like its
// namespace.
func workersOf(ctx context.Context, g Gomega, name string) *clusterv1.MachineDeployment {
	found := &clusterv1.MachineDeployment{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-workers"}, found)).To(Succeed())
	return found
}

// expectRebased makes a copy of the class with copies of its templates, and has
// the cluster use that.
func expectRebased(t *testing.T, name string) {
	t.Helper()
	const suffix = "-2"
	g, ctx := NewWithT(t), t.Context()
	for _, list := range []client.ObjectList{
		&infrav1.TalosClusterTemplateList{}, &infrav1.TalosMachineTemplateList{}, &bootstrapv1.TalosConfigTemplateList{}, &controlplanev1.TalosControlPlaneTemplateList{},
	} {
		g.Expect(world.Client.List(ctx, list, client.InNamespace(name))).To(Succeed())
		for _, object := range items(g, list) {
			if strings.HasPrefix(object.GetName(), className) {
				g.Expect(world.Client.Create(ctx, copied(g, object, suffix))).To(Succeed())
			}
		}
	}
	class := &clusterv1.ClusterClass{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: className}, class)).To(Succeed())
	class = class.DeepCopy()
	class.ObjectMeta = metav1.ObjectMeta{Namespace: name, Name: className + suffix}
	class.Status = clusterv1.ClusterClassStatus{}
	refs := []*clusterv1.ClusterClassTemplateReference{
		&class.Spec.Infrastructure.TemplateRef, &class.Spec.ControlPlane.TemplateRef, &class.Spec.ControlPlane.MachineInfrastructure.TemplateRef,
		&class.Spec.Workers.MachineDeployments[0].Bootstrap.TemplateRef, &class.Spec.Workers.MachineDeployments[0].Infrastructure.TemplateRef,
	}
	for _, ref := range refs {
		ref.Name += suffix
	}
	g.Expect(world.Client.Create(ctx, class)).To(Succeed())
	before := partsOf(ctx, g, name)
	changeCluster(t, name, func(cluster *clusterv1.Cluster) { cluster.Spec.Topology.ClassRef.Name = className + suffix })
	awaitAvailable(t, name)
	g.Expect(partsOf(ctx, g, name)).To(Equal(before))
}

// copied is a template under another name.
func copied(g Gomega, object client.Object, suffix string) client.Object {
	raw, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	copied := &unstructured.Unstructured{}
	g.Expect(json.Unmarshal(raw, &copied.Object)).To(Succeed())
	gvk, err := world.Client.GroupVersionKindFor(object)
	g.Expect(err).NotTo(HaveOccurred())
	copied.SetGroupVersionKind(gvk)
	copied.Object["metadata"] = map[string]any{"namespace": object.GetNamespace(), "name": object.GetName() + suffix}
	return copied
}

// expectWorkersReplaced sets a patch of the workers' configuration: each worker
// gets a successor with it, the control plane stays as it is.
func expectWorkersReplaced(t *testing.T, name string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	before := machinesOf(ctx, g, name, false)
	controlPlane := machinesOf(ctx, g, name, true)
	changeCluster(t, name, func(cluster *clusterv1.Cluster) {
		setVariable(g, cluster, "workerPatches", []string{"machine:\n  sysctls:\n    vm.max_map_count: \"262144\"\n"})
	})
	g.Eventually(func(g Gomega) {
		now := machinesOf(ctx, g, name, false)
		g.Expect(now).To(HaveLen(len(before)))
		for _, machine := range now {
			g.Expect(before).NotTo(ContainElement(HaveField("Name", machine.Name)))
			config := &bootstrapv1.TalosConfig{}
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)).To(Succeed())
			g.Expect(config.Spec.StrategicPatches).To(ConsistOf(ContainSubstring("vm.max_map_count")))
		}
	}).WithTimeout(timeout).Should(Succeed())
	awaitAvailable(t, name)
	after := machinesOf(ctx, g, name, true)
	g.Expect(after).To(HaveLen(len(controlPlane)))
	g.Expect(after[0].UID).To(Equal(controlPlane[0].UID))
}

// awaitTopologyGone waits until nothing is left of a cluster but hosts, the class
// and its templates.
func awaitTopologyGone(ctx context.Context, g Gomega, name string) {
	g.Eventually(func(g Gomega) {
		for _, list := range append(ourLists(), &clusterv1.ClusterList{}, &clusterv1.MachineList{}, &clusterv1.MachineDeploymentList{}) {
			g.Expect(world.Client.List(ctx, list, client.InNamespace(name))).To(Succeed())
			for _, object := range items(g, list) {
				_, isHost := object.(*infrav1.TalosHost)
				ofTheClass := slices.ContainsFunc(object.GetOwnerReferences(), func(owner metav1.OwnerReference) bool { return owner.Kind == "ClusterClass" })
				g.Expect(isHost || ofTheClass).To(BeTrue(), "%T %s is left", object, object.GetName())
			}
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// TestWorkersOfATopologyAreReplacedWhenUnhealthy, in the manner of upstream's
// MachineDeploymentRemediation: the MachineHealthCheck that the class makes finds
// a worker that has lost its network, and another host takes its place.
func TestWorkersOfATopologyAreReplacedWhenUnhealthy(t *testing.T) {
	t.Parallel()
	const name = "classy-remedy"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runTopology(t, machines, name, 1, 1, 1)
	check := &clusterv1.MachineHealthCheck{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-workers"}, check)).To(Succeed(), "the class checks the workers")
	changeCluster(t, name, func(cluster *clusterv1.Cluster) {
		health := &cluster.Spec.Topology.Workers.MachineDeployments[0].HealthCheck
		health.Checks.UnhealthyNodeConditions = []clusterv1.UnhealthyNodeCondition{{Type: "Ready", Status: "Unknown", TimeoutSeconds: ptr.To[int32](5)}}
		health.Remediation.TriggerIf.UnhealthyLessThanOrEqualTo = ptr.To(intstr.FromString("100%"))
	})
	bad := machinesOf(ctx, g, name, false)[0]
	var lost string
	for _, machine := range talosMachines(g, ctx, name) {
		if machine.Name == bad.Spec.InfrastructureRef.Name {
			lost = machine.Spec.HostRef.Name
		}
	}
	g.Expect(lost).NotTo(BeEmpty())
	for _, host := range hosts {
		if host.Name == lost {
			machines.Machine(host).Break(talossim.Faults{Parted: true})
		}
	}
	g.Eventually(func(g Gomega) {
		now := machinesOf(ctx, g, name, false)
		g.Expect(now).To(HaveLen(1))
		g.Expect(now[0].Name).NotTo(Equal(bad.Name))
		g.Expect(now[0].Status.NodeRef.IsDefined()).To(BeTrue())
	}).WithTimeout(timeout).Should(Succeed())
	awaitAvailable(t, name)
	breakAll(machines, talossim.Faults{})
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}
