package vms

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestStaticAddressesAndAVLAN: a machine that has got its address by DHCP in maintenance mode
// has a static one on that link with its configuration, and another one in a VLAN on its
// second link, as docs/network.md says. It is reached at both, and, wiped, by DHCP again.
func TestStaticAddressesAndAVLAN(t *testing.T) {
	const (
		vlan = 100
		name = "static"
		// last is the last byte of the static addresses, which DHCP gives to nobody.
		last = 200
	)
	g := NewWithT(t)
	machines := raise(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	tagged := netip.MustParsePrefix("10.79.0.0/24")
	g.Expect(machines.network.addVLAN(ctx, vlan, netip.PrefixFrom(netip.MustParseAddr(balancer.Address(tagged, 1)), tagged.Bits()))).To(Succeed())
	static, inVLAN := balancer.Address(machines.options.Subnet, last), balancer.Address(tagged, last)
	l := newLives(t, machines, name, func(host *infrav1.TalosHost) {
		host.Spec.Addresses = append(host.Spec.Addresses, inVLAN)
		host.Spec.Network = infrav1.HostNetwork{
			MACAddress: hardwareAddress(0, 1), Addresses: []string{static + "/24"}, Gateway: machines.network.gateway(),
		}
		const document = "apiVersion: v1alpha1\nkind: VLANConfig\nname: eth1.%[1]d\nparent: eth1\nvlanID: %[1]d\naddresses: [{address: %[2]s/24}]\n"
		host.Spec.StrategicPatches = append(host.Spec.StrategicPatches, fmt.Sprintf(document, vlan, inVLAN))
	})
	available := func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) }
	l.step(ctx, t, "to be Available", available)

	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, management.Shape{Name: name})
	l.step(ctx, t, "to tell its static addresses", func(ctx context.Context) error {
		machine, err := l.talosMachine(ctx)
		if err != nil {
			return err
		}
		told := map[string]bool{}
		for _, address := range machine.Status.Addresses {
			told[address.Address] = address.Type == clusterv1.MachineInternalIP
		}
		if !told[static] || !told[inVLAN] || told[l.machine.Host.Address] {
			return fmt.Errorf("TalosMachine %s tells %v", machine.Name, machine.Status.Addresses)
		}
		return nil
	})
	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: name, Name: name})
	g.Expect(err).NotTo(HaveOccurred())
	for _, address := range []string{static, inVLAN} {
		g.Expect(call(ctx, bundle, address, func(node talosclient.Node) error {
			_, err := node.Version(ctx)
			return err
		})).To(Succeed())
	}

	l.deleteCluster(ctx, t, name)
	l.step(ctx, t, "to be Available by DHCP again", available)
	g.Expect(l.machine.AwaitMaintenance(ctx)).To(Succeed())
}
