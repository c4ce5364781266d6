package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestManagersBehindTheAPIServer: the caches of the control plane manager are three seconds
// behind, and Machines change each half second, so that each reconcile has a status to
// write. What is recorded with an optimistic lock is recorded all the same, and the cluster
// comes up.
func TestManagersBehindTheAPIServer(t *testing.T) {
	const (
		name, gate    = "behind", "Restless"
		lag, interval = 3 * time.Second, 500 * time.Millisecond
	)
	g, ctx := NewWithT(t), t.Context()
	manager := world.Stack.Managers.Get(management.ControlPlane)
	kubeconfig, err := world.Stack.Behind(ctx, manager, lag)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(manager.RestartWith(ctx, "--kubeconfig="+kubeconfig)).To(Succeed())
	t.Cleanup(func() { g.Expect(manager.Restart(contextAfter(t))).To(Succeed()) })

	machines := newFleet(t, simfleet.Options{})
	createNamespace(t, name)
	hosts := addHosts(t, machines, name, 1)
	newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: 1},
		setField(controlplanev1.TalosControlPlaneKind, []any{map[string]any{"conditionType": gate}}, "spec", "machineTemplate", "spec", "readinessGates"))

	// It is false while etcd is brought up. What is under way when that ends is carried through.
	restless, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() {
		change := 0
		wait.UntilWithContext(restless, func(context.Context) {
			change++
			for _, machine := range machinesOf(ctx, g, name, true) {
				tell(t, &machine, gate, "False", fmt.Sprintf("change %d", change))
			}
		}, interval)
	})
	g.Eventually(func(g Gomega) {
		g.Expect(controlPlaneOf(ctx, g, name).Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
	}).WithTimeout(timeout).Should(Succeed())
	stop()
	running.Wait()
	for _, machine := range machinesOf(ctx, g, name, true) {
		tell(t, &machine, gate, "True", "")
	}
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))
	expectNoOffence(t)
	deleteClusters(t, name, name)
	expectWiped(t, machines, hosts...)
}

// tell sets a condition of a Machine.
func tell(t *testing.T, machine *clusterv1.Machine, condition, status, message string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": condition, "status": status, "reason": "Test", "message": message, "lastTransitionTime": machine.CreationTimestamp.UTC().Format(time.RFC3339),
	}}}}}
	object.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	object.SetNamespace(machine.Namespace)
	object.SetName(machine.Name)
	if err := world.Client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test")); err != nil {
		t.Error(err)
	}
}
