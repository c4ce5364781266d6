package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestBadInputEvenOrZeroReplicasThroughKubectlScale: refused with the reason, and
// the odd numbers named; the same in every way of writing them.
func TestBadInputEvenOrZeroReplicasThroughKubectlScale(t *testing.T) {
	const name = "even"
	g, ctx := NewWithT(t), t.Context()
	createNamespace(t, name)
	object := objects(g, flavor(t, name, "", map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"}))
	for _, object := range object {
		if object.GetKind() == controlplanev1.TalosControlPlaneKind {
			g.Expect(world.Client.Create(ctx, object)).To(Succeed())
		}
	}
	controlPlane := controlPlanes(ctx, g, name)[0]
	for _, replicas := range []int32{0, 2, 4} {
		ways := map[string]func() error{
			"kubectl scale": func() error {
				_, err := world.Stack.Kubectl(ctx, "--namespace", name, "scale", "taloscontrolplane", controlPlane.Name, "--replicas="+strconv.Itoa(int(replicas)))
				return err
			},
			"scale subresource": func() error {
				scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
				return world.Client.SubResource("scale").Update(ctx, controlPlane.DeepCopy(), client.WithSubResourceBody(scale))
			},
			"update": func() error {
				changed := controlPlane.DeepCopy()
				changed.Spec.Replicas = &replicas
				return world.Client.Update(ctx, changed)
			},
		}
		for way, write := range ways {
			err := write()
			g.Expect(err).To(MatchError(ContainSubstring("must be an odd number (1, 3, 5, ...), because each control plane machine is an etcd member")), "%s to %d", way, replicas)
		}
	}
	g.Expect(controlPlanes(ctx, g, name)[0].Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
}

// TestBadInputVersionWithoutVThroughKubectl: refused with the field, and not mended, when
// it is created and when it is changed.
func TestBadInputVersionWithoutVThroughKubectl(t *testing.T) {
	const (
		name = "without-v"
		want = `spec.version: Invalid value: "1.36.3": must be a semantic version with the prefix v, for example v1.36.3`
	)
	g, ctx := NewWithT(t), t.Context()
	createNamespace(t, name)
	tried := 0
	for _, object := range objects(g, flavor(t, name, "", map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"})) {
		if object.GetKind() != controlplanev1.TalosControlPlaneKind {
			continue
		}
		g.Expect(world.Client.Create(ctx, object.DeepCopy())).To(Succeed())
		_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", object.GetName(), "--type=merge", "--patch", `{"spec":{"version":"1.36.3"}}`)
		g.Expect(err).To(MatchError(ContainSubstring(want)))

		setField(controlplanev1.TalosControlPlaneKind, "1.36.3", "spec", "version")(object)
		object.SetName("another")
		file := filepath.Join(t.TempDir(), "another.yaml")
		g.Expect(os.WriteFile(file, asManifest(g, object), 0o600)).To(Succeed())
		_, err = world.Stack.Kubectl(ctx, "create", "--dry-run=server", "--filename", file)
		g.Expect(err).To(MatchError(ContainSubstring(want)))
		tried++
	}
	g.Expect(tried).To(Equal(1))
}

// TestControlPlaneIsScaledByKubectl: from 1 to 3 and back as users do it. While an alarm
// CORRUPT is raised nobody leaves etcd: the way back waits, and so does a Machine that is
// deleted, and both say why.
func TestControlPlaneIsScaledByKubectl(t *testing.T) {
	t.Parallel()
	const name = "scaled"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 1)
	hosts = append(hosts, addHosts(t, machines, name, 2)...)
	scale := func(replicas int) error {
		_, err := world.Stack.Kubectl(ctx, "--namespace", name, "scale", "taloscontrolplane", name+"-control-plane", "--replicas="+strconv.Itoa(replicas))
		return err
	}
	g.Expect(scale(3)).To(Succeed())
	g.Eventually(func(g Gomega) {
		controlPlane := controlPlaneOf(ctx, g, name)
		g.Expect(controlPlane.Status.Replicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.AvailableReplicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.Versions).To(ConsistOf(HaveField("Replicas", HaveValue(BeEquivalentTo(3)))))
		g.Expect(told(controlPlane, controlplanev1.EtcdClusterHealthyCondition).Status).To(Equal(metav1.ConditionTrue))
		g.Expect(told(controlPlane, controlplanev1.ScalingUpCondition).Status).To(Equal(metav1.ConditionFalse))
	}).WithTimeout(timeout).Should(Succeed())
	awaitAvailable(t, name)

	// What the autoscaler and kubectl read of it.
	current := &autoscalingv1.Scale{}
	controlPlane := controlPlaneOf(ctx, g, name)
	g.Expect(world.Client.SubResource("scale").Get(ctx, controlPlane, current)).To(Succeed())
	g.Expect(current.Status.Replicas).To(BeEquivalentTo(3))
	selector, err := metav1.ParseToLabelSelector(current.Status.Selector)
	g.Expect(err).NotTo(HaveOccurred())
	selected, err := metav1.LabelSelectorAsSelector(selector)
	g.Expect(err).NotTo(HaveOccurred())
	found := &clusterv1.MachineList{}
	g.Expect(world.Client.List(ctx, found, client.InNamespace(name), client.MatchingLabelsSelector{Selector: selected})).To(Succeed())
	g.Expect(found.Items).To(HaveLen(3))

	g.Expect(scale(2)).To(MatchError(ContainSubstring("must be an odd number")))
	g.Expect(controlPlaneOf(ctx, g, name).Spec.Replicas).To(HaveValue(BeEquivalentTo(3)))

	controlPlanes := machinesOf(ctx, g, name, true)
	corrupt := machines.Machine(hostOf(ctx, g, hosts, controlPlanes[0]))
	corrupt.Break(talossim.Faults{Alarm: etcdmodel.Corrupt})
	g.Expect(scale(1)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.ScalingDownCondition)).To(And(
			HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring(etcdmodel.Corrupt))))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machinesOf(ctx, g, name, true)).To(HaveEach(HaveField("DeletionTimestamp", BeNil())))
	deleted := controlPlanes[1]
	_, err = world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", deleted.Name, "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&deleted), &deleted)).To(Succeed())
		g.Expect(told(&deleted, controlplanev1.MachineEtcdMemberHealthyCondition).Message).To(ContainSubstring(etcdmodel.Corrupt))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Sim.Voters(corrupt)).To(Equal(etcdmodel.Count{Voters: 3, Answering: 3}))

	corrupt.Break(talossim.Faults{})
	awaitControlPlane(t, name, 1)
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}
