package vms

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestTheVirtualIPMoves: the endpoint of a cluster of flavor metal-vip is an address that the
// only control plane machine holds. A rollout replaces that machine, and its successor holds
// the address then; for no Machine it is one of its own. Three control plane machines that are
// emulated are too much for two processors, so nobody takes the power from a holder here.
func TestTheVirtualIPMoves(t *testing.T) {
	const (
		name = "virtual"
		// last is the last byte of the address, which DHCP gives to nobody.
		last = 210
	)
	g := NewWithT(t)
	machines := raise(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*StepTimeout)
	defer cancel()
	l := newLives(t, machines, name, nil)
	address := balancer.Address(machines.options.Subnet, last)
	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, management.Shape{
		Name: name, Flavor: "metal-vip", Variables: map[string]string{
			"CONTROL_PLANE_VIP": address, "CONTROL_PLANE_VIP_LINK": "eth0", "CONTROL_PLANE_SUBNET": machines.options.Subnet.String(),
		},
	})
	l.step(ctx, t, "to hold the address", func(ctx context.Context) error { return l.expectHolder(ctx, address, l.machine) })

	successor := l.add(t, nil)
	secret := &corev1.Secret{}
	g.Expect(l.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-kubeconfig"}, secret)).To(Succeed())
	readyz, err := demo.WatchReadyz(ctx, secret.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	controlPlane := &controlplanev1.TalosControlPlane{}
	g.Expect(l.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
	patch := client.MergeFrom(controlPlane.DeepCopy())
	controlPlane.Spec.Rollout.After = metav1.Now()
	g.Expect(l.client.Patch(ctx, controlPlane, patch)).To(Succeed())
	l.step(ctx, t, "to hand the address over", func(ctx context.Context) error { return l.expectHolder(ctx, address, successor) })
	l.step(ctx, t, "to be Available again", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) })
	longest, asked, failed := readyz.Stop()
	t.Logf("/readyz at the virtual IP: asked %d times, %d times not ready, longest time between two that were: %.0f s", asked, failed, longest.Seconds())
	g.Expect(l.expectHolder(ctx, address, successor)).To(Succeed())
}

// expectHolder wants the API server at an address to list one Node, that machine to have
// the address, and no TalosMachine to tell it as its own.
func (l *lives) expectHolder(ctx context.Context, address string, machine *Machine) error {
	workload, err := workloadClient(ctx, l.client, l.namespace)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes := &corev1.NodeList{}
	if err := workload.List(ctx, nodes); err != nil {
		return err
	}
	if len(nodes.Items) != 1 {
		return fmt.Errorf("there are %d Nodes", len(nodes.Items))
	}
	host := &infrav1.TalosHost{}
	if err := l.client.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: machine.Host.Name}, host); err != nil {
		return err
	}
	list := &infrav1.TalosMachineList{}
	if err := l.client.List(ctx, list, client.InNamespace(l.namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		told := list.Items[i].Status.Addresses
		if len(list.Items) != 1 || list.Items[i].Name != host.Spec.ConsumerRef.Name || len(told) == 0 {
			return fmt.Errorf("TalosMachine %s tells %v", list.Items[i].Name, told)
		}
		for _, own := range told {
			if own.Type != clusterv1.MachineHostName && own.Address == address {
				return fmt.Errorf("TalosMachine %s tells %s as its own", list.Items[i].Name, address)
			}
		}
	}
	return expectAnswers(ctx, address, machine)
}

// expectAnswers wants a machine to answer for an address, as this machine has learnt when it asked
// there.
func expectAnswers(ctx context.Context, address string, machine *Machine) error {
	neighbour, err := exec.CommandContext(ctx, "ip", "neighbour", "show", address).Output() //nolint:gosec // an address of ours
	if err != nil {
		return fmt.Errorf("looking for the holder of %s: %w", address, err)
	}
	if !strings.Contains(string(neighbour), machine.Host.MACAddress) {
		return fmt.Errorf("the holder is not %s: %s", machine.Host.Name, neighbour)
	}
	return nil
}
