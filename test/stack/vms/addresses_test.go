package vms

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	talos "github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/protobuf/types/known/emptypb"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

const (
	// vlan is the number of the VLAN, and vlanNetwork its network.
	vlan        = 100
	vlanNetwork = "10.79.0.0/24"
	// beforeStatic is the last byte before those of static addresses, which DHCP gives to nobody.
	beforeStatic = 199
)

// TestStaticAddressesAndAVLAN: two machines that have got their addresses by DHCP in maintenance
// mode have static ones on that link with their configuration, and others in a VLAN on their
// second link, as docs/network.md says. They are Nodes at the first ones, where they are reached;
// in the VLAN, which this machine has no part in, one asks the other. Wiped, they are reached by
// DHCP again.
func TestStaticAddressesAndAVLAN(t *testing.T) {
	const name = "static"
	g := NewWithT(t)
	machines := raise(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*StepTimeout)
	defer cancel()
	g.Expect(machines.network.refuse(ctx, netip.MustParsePrefix(vlanNetwork))).To(Succeed())
	l := newLives(t, machines, name, wire)
	l.add(t, wire)
	available := func(ctx context.Context) error {
		return l.ofAll(func(m *Machine) error { return l.expectStateOf(ctx, m, infrav1.HostAvailable) })
	}
	l.step(ctx, t, "to be Available", available)

	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, management.Shape{Name: name, Workers: 1})
	l.step(ctx, t, "to tell static addresses", func(ctx context.Context) error {
		return l.ofAll(func(m *Machine) error { return l.expectAddresses(ctx, m) })
	})
	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: name, Name: name})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.ofAll(func(m *Machine) error {
		return call(ctx, bundle, staticAddress(m), func(node talosclient.Node) error {
			_, err := node.Version(ctx)
			return err
		})
	})).To(Succeed())
	l.step(ctx, t, "to be Nodes", func(ctx context.Context) error { return expectNodes(ctx, l.client, name, infrav1.ProviderIDPrefix, 2) })
	l.step(ctx, t, "to be asked over the VLAN", func(ctx context.Context) error { return l.askOverVLAN(ctx, name) })

	l.deleteCluster(ctx, t, name)
	l.step(ctx, t, "to be Available by DHCP again", available)
	g.Expect(l.ofAll(func(m *Machine) error { return m.AwaitMaintenance(ctx) })).To(Succeed())
}

func staticAddress(m *Machine) string {
	return balancer.Address(m.fleet.options.Subnet, beforeStatic+m.number)
}

func vlanAddress(m *Machine) string {
	return balancer.Address(netip.MustParsePrefix(vlanNetwork), beforeStatic+m.number)
}

// wire gives a machine its static address, at which its API server may be, and that in the VLAN.
// The latter is no address of the host: only machines reach it.
func wire(m *Machine, host *infrav1.TalosHost) {
	m.fleet.balanceTo(staticAddress(m))
	gateway := m.fleet.network.gateway()
	host.Spec.Network = infrav1.HostNetwork{
		MACAddress: m.Host.MACAddress, Addresses: []string{staticAddress(m) + "/24"}, Gateway: gateway, Nameservers: []string{gateway},
	}
	const parent = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\n"
	const document = "apiVersion: v1alpha1\nkind: VLANConfig\nname: eth1.%[1]d\nparent: eth1\nvlanID: %[1]d\naddresses: [{address: %[2]s/24}]\n"
	host.Spec.StrategicPatches = append(host.Spec.StrategicPatches, parent, fmt.Sprintf(document, vlan, vlanAddress(m)))
}

// ofAll wants something of all machines.
func (l *lives) ofAll(want func(*Machine) error) error {
	var failures []error
	for _, m := range l.fleet.Machines() {
		failures = append(failures, want(m))
	}
	return errors.Join(failures...)
}

// talosMachineOf is the one that has claimed the host of a machine.
func (l *lives) talosMachineOf(ctx context.Context, m *Machine) (*infrav1.TalosMachine, error) {
	host, err := l.hostOf(ctx, m)
	if err != nil {
		return nil, err
	}
	if host.Spec.ConsumerRef.Name == "" {
		return nil, fmt.Errorf("host %s is claimed by nobody", host.Name)
	}
	found := &infrav1.TalosMachine{}
	return found, l.client.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: host.Spec.ConsumerRef.Name}, found)
}

// expectAddresses wants the TalosMachine of a machine to tell both of its addresses, and not that
// by DHCP.
func (l *lives) expectAddresses(ctx context.Context, m *Machine) error {
	machine, err := l.talosMachineOf(ctx, m)
	if err != nil {
		return err
	}
	told := map[string]bool{}
	for _, address := range machine.Status.Addresses {
		told[address.Address] = address.Type == clusterv1.MachineInternalIP
	}
	if !told[staticAddress(m)] || !told[vlanAddress(m)] || told[m.Host.Address] {
		return fmt.Errorf("TalosMachine %s tells %v", machine.Name, machine.Status.Addresses)
	}
	return nil
}

// askOverVLAN has the Talos API of the control plane machine ask that of the worker for its host
// name, at its address in the VLAN.
func (l *lives) askOverVLAN(ctx context.Context, cluster string) error {
	var from, to *Machine
	var hostname string
	for _, m := range l.fleet.Machines() {
		machine, err := l.talosMachineOf(ctx, m)
		if err != nil {
			return err
		}
		if _, controlPlane := machine.Labels[clusterv1.MachineControlPlaneLabel]; controlPlane {
			from = m
			continue
		}
		to = m
		for _, address := range machine.Status.Addresses {
			if address.Type == clusterv1.MachineHostName {
				hostname = address.Address
			}
		}
	}
	if from == nil || to == nil || hostname == "" {
		return errors.New("a control plane machine and a worker with a host name are not there")
	}
	node, err := l.dial(ctx, cluster, staticAddress(from))
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := node.MachineClient.Hostname(talos.WithNode(ctx, vlanAddress(to)), &emptypb.Empty{})
	if err != nil {
		return fmt.Errorf("asking %s at %s: %w", to.Host.Name, vlanAddress(to), err)
	}
	if found := answer.GetMessages()[0].GetHostname(); found != hostname {
		return fmt.Errorf("at %s answers %q instead of %q", vlanAddress(to), found, hostname)
	}
	return nil
}
