package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

// Network is a network of containers. Docker itself gives away addresses of
// its upper quarter only; all others are free for fixed use.
type Network struct {
	// Name is its name in Docker, Bridge that of its device on this machine.
	Name, Bridge string
	// Subnet has 256 addresses.
	Subnet netip.Prefix
	// Gateway is this machine's address in it.
	Gateway netip.Addr
}

// labelRun marks what belongs to a run of the test bed.
const labelRun = "capi-talos.run"

// RunLabel marks a container as a part of a run. What carries it is removed at
// the end of the run.
func RunLabel(run string) string { return labelRun + "=" + run }

// NewNetwork makes a network of that name for a run, in a subnet that this machine
// does not use.
func (d *Daemon) NewNetwork(ctx context.Context, run, name, bridge string) (*Network, error) {
	used, err := machine.Networks()
	if err != nil {
		return nil, err
	}
	const candidates = 256
	for number := range byte(candidates - 1) {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, number, 0}), 24)
		if overlaps(subnet, used) {
			continue
		}
		network := &Network{Name: name, Bridge: bridge, Subnet: subnet, Gateway: netip.AddrFrom4([4]byte{172, 30, number, 1})}
		_, err := d.Docker(ctx, "network", "create", "--driver", "bridge", "--label", RunLabel(run),
			"--subnet", subnet.String(), "--gateway", network.Gateway.String(), "--ip-range", fmt.Sprintf("172.30.%d.192/26", number),
			"--opt", "com.docker.network.bridge.name="+bridge, network.Name)
		if err != nil {
			return nil, fmt.Errorf("making network %s: %w", name, err)
		}
		return network, nil
	}
	return nil, errors.New("looking for a free subnet: all of 172.30.0.0/16 are in use")
}

func overlaps(subnet netip.Prefix, used []*net.IPNet) bool {
	for _, network := range used {
		address, ok := netip.AddrFromSlice(network.IP)
		if !ok || !address.Unmap().Is4() {
			continue
		}
		ones, _ := network.Mask.Size()
		if subnet.Overlaps(netip.PrefixFrom(address.Unmap(), ones)) {
			return true
		}
	}
	return false
}
