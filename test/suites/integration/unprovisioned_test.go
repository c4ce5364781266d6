package integration

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// stuck is a stage at which a cluster does not go on.
type stuck struct {
	// hosts is how many there are.
	hosts int
	// faults are those of all machines, from before the cluster is made.
	faults talossim.Faults
	// change changes the objects of the cluster.
	change func(*unstructured.Unstructured)
	// reached reports whether the cluster is there.
	reached func(ctx context.Context, g Gomega, name string)
	// then is what breaks at that moment, if anything.
	then *talossim.Faults
}

// TestDeletedBeforeProvisioned (§14.9): at whatever stage a cluster is given up,
// it goes, and its hosts come back wiped.
func TestDeletedBeforeProvisioned(t *testing.T) {
	t.Parallel()
	for name, stage := range map[string]stuck{
		"no-endpoint": {
			hosts: 2,
			change: func(object *unstructured.Unstructured) {
				if object.GetKind() == infrav1.TalosClusterKind {
					unstructured.RemoveNestedField(object.Object, "spec", "controlPlaneEndpoint")
				}
			},
			reached: func(ctx context.Context, g Gomega, name string) {
				cluster := &infrav1.TalosCluster{}
				g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
				g.Expect(told(cluster, infrav1.ReadyCondition).Reason).To(Equal(infrav1.WaitingForControlPlaneEndpointReason))
			},
		},
		"no-infrastructure-template": {
			hosts: 2, change: setField("TalosControlPlane", "missing", "spec", "machineTemplate", "spec", "infrastructureRef", "name"),
			reached: func(ctx context.Context, g Gomega, name string) {
				g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.InitializedCondition).Status).To(Equal(metav1.ConditionFalse))
			},
		},
		"no-host":       {reached: everyMachine(infrav1.AllocatedCondition, infrav1.NoHostFitsReason)},
		"refused":       {hosts: 2, faults: talossim.Faults{RefusesConfiguration: "no thanks"}, reached: anyMachine(infrav1.ConfigurationAppliedCondition, infrav1.ConfigurationRefusedReason)},
		"slow":          {hosts: 2, faults: talossim.Faults{RefusesConfiguration: "no thanks"}, reached: anyMachine(infrav1.ConfigurationAppliedCondition, infrav1.ConfigurationRefusedReason), then: &talossim.Faults{Slow: slowness}},
		"does-not-boot": {hosts: 2, faults: talossim.Faults{StuckBooting: true}, reached: anyMachine(infrav1.RunningCondition, infrav1.BootingReason)},
		"silent": {
			hosts: 2, faults: talossim.Faults{StuckBooting: true},
			change:  setField("TalosMachineTemplate", int64(shortRelease.Seconds()), "spec", "template", "spec", "metal", "releaseTimeoutSeconds"),
			reached: anyMachine(infrav1.RunningCondition, infrav1.BootingReason), then: &talossim.Faults{Silent: true},
		},
		"no-etcd": {
			hosts: 2, faults: talossim.Faults{DeadEtcd: true},
			reached: func(ctx context.Context, g Gomega, name string) {
				g.Expect(controlPlaneOf(ctx, g, name).Annotations).To(HaveKey(controlplanev1.BootstrapIntentAnnotation))
			},
		},
		"no-worker": {
			// The control plane gets it.
			hosts: 1,
			reached: func(ctx context.Context, g Gomega, name string) {
				cluster := &clusterv1.Cluster{}
				g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
				g.Expect(conditions.IsTrue(cluster, clusterv1.ClusterControlPlaneAvailableCondition)).To(BeTrue())
			},
		},
		"api-server-down": {
			hosts: 2, then: &talossim.Faults{DeadEtcd: true},
			reached: func(ctx context.Context, g Gomega, name string) {
				cluster := &clusterv1.Cluster{}
				g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
				g.Expect(conditions.IsTrue(cluster, clusterv1.AvailableCondition)).To(BeTrue())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := "stuck-" + name
			machines := newFleet(t, simfleet.Options{})
			createNamespace(t, name)
			hosts := addHosts(t, machines, name, stage.hosts)
			expectFree(t, name, stage.hosts)
			breakAll(machines, stage.faults)
			changes := []func(*unstructured.Unstructured){}
			if stage.change != nil {
				changes = append(changes, stage.change)
			}
			newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: 1, Workers: 1}, changes...)
			NewWithT(t).Eventually(func(g Gomega) { stage.reached(t.Context(), g, name) }).WithTimeout(timeout).Should(Succeed())
			if stage.then != nil {
				breakAll(machines, *stage.then)
			}

			deleteClusters(t, name, name)
			awaitGone(t, name)
			// Whatever was wrong with the machines is mended, and they are as before.
			breakAll(machines, talossim.Faults{})
			expectFree(t, name, stage.hosts)
			expectWiped(t, machines, hosts...)
		})
	}
}

// slowness is how long a call takes of a machine that hangs, but does not drop
// packets.
const slowness = 2 * time.Second

// expectFree waits until so many hosts, if any, are available.
func expectFree(t *testing.T, name string, hosts int) {
	t.Helper()
	if hosts > 0 {
		expectStates(t, name, infrav1.HostAvailable, hosts)
	}
}

func breakAll(machines *simfleet.Fleet, faults talossim.Faults) {
	for _, host := range machines.Hosts() {
		machines.Machine(host).Break(faults)
	}
}

// everyMachine says that all TalosMachines are where a condition says so, and that
// there are some.
func everyMachine(condition, reason string) func(context.Context, Gomega, string) {
	return func(ctx context.Context, g Gomega, name string) {
		g.Expect(reasons(ctx, g, name, condition)).To(And(Not(BeEmpty()), HaveEach(reason)))
	}
}

// anyMachine says that of one TalosMachine.
func anyMachine(condition, reason string) func(context.Context, Gomega, string) {
	return func(ctx context.Context, g Gomega, name string) {
		g.Expect(reasons(ctx, g, name, condition)).To(ContainElement(reason))
	}
}

func reasons(ctx context.Context, g Gomega, name, condition string) []string {
	var found []string
	for _, machine := range talosMachines(g, ctx, name) {
		found = append(found, told(&machine, condition).Reason)
	}
	return found
}
