package talosclient

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// SameHost reports whether two hosts are one: the same address, which IPv6 writes in
// several ways, also of an IPv4 address; else the same text.
func SameHost(a, b string) bool {
	left, leftErr := netip.ParseAddr(a)
	right, rightErr := netip.ParseAddr(b)
	if leftErr != nil || rightErr != nil {
		return a == b
	}

	return left.Unmap() == right.Unmap()
}

// Addresses implements Node.
func (n *node) Addresses(ctx context.Context) (Addresses, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found := told{lists: map[string][]netip.Addr{}}
	// All at once, for the sake of slow machines; each fills fields of its own.
	reads := []func(context.Context, *told) error{n.readNodeIP, n.readNodeAddresses, n.readVirtual, n.readLinked}
	var (
		group sync.WaitGroup
		errs  = make([]error, len(reads))
	)
	for i, read := range reads {
		group.Go(func() { errs[i] = read(ctx, &found) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return Addresses{}, fmt.Errorf("reading the node addresses: %w", err)
	}

	return found.addresses(), nil
}

// told are the addresses that a node tells.
type told struct {
	// nodeIPs are those of the Node in Kubernetes.
	nodeIPs []netip.Addr
	// lists are the addresses by the name of the list: current ones, and routed ones,
	// which are those without external ones; with a suffix when they are filtered.
	lists map[string][]netip.Addr
	// virtual are those that wander, and linked those on links that are not the node's.
	virtual, linked []netip.Addr
}

func (n *node) readNodeIP(ctx context.Context, found *told) error {
	res, err := safe.StateGetByID[*k8s.NodeIP](ctx, n.COSI, k8s.KubeletID)
	if err == nil {
		found.nodeIPs = res.TypedSpec().Addresses
	}
	if state.IsNotFoundError(err) {
		return nil
	}

	return err
}

func (n *node) readNodeAddresses(ctx context.Context, found *told) error {
	return each(ctx, n.COSI, func(res *network.NodeAddress) {
		found.lists[res.Metadata().ID()] = res.TypedSpec().IPs()
	})
}

// readVirtual finds the virtual addresses that the node has now: only those are
// announced by ARP (internal/app/machined/pkg/controllers/network/operator/vip.go).
func (n *node) readVirtual(ctx context.Context, found *told) error {
	return each(ctx, n.COSI, func(res *network.AddressSpec) {
		if res.TypedSpec().AnnounceWithARP {
			found.virtual = append(found.virtual, res.TypedSpec().Address.Addr())
		}
	})
}

// foreignLinks are how the names of links begin on which kube-proxy, a CNI, KubeSpan
// and SideroLink put addresses. Those of kube-ipvs0 are the addresses of Services, and
// of load balancers.
func foreignLinks() []string {
	return []string{
		"kube-", "cilium_", "lxc", "flannel", "cni", "cali", "vxlan.calico", "tunl", "nodelocaldns", "docker", "kubespan", "siderolink",
	}
}

func (n *node) readLinked(ctx context.Context, found *told) error {
	return each(ctx, n.COSI, func(res *network.AddressStatus) {
		spec := res.TypedSpec()
		if slices.ContainsFunc(foreignLinks(), func(prefix string) bool { return strings.HasPrefix(spec.LinkName, prefix) }) {
			found.linked = append(found.linked, spec.Address.Addr())
		}
	})
}

// list is a list of addresses without those of Pods and Services, where the node knows
// their networks.
func (t told) list(id string) []netip.Addr {
	if filtered, found := t.lists[network.FilteredNodeAddressID(id, k8s.NodeAddressFilterNoK8s)]; found {
		return filtered
	}

	return t.lists[id]
}

// addresses sorts what a node tells.
func (t told) addresses() Addresses {
	var sorted Addresses
	routed := t.list(network.NodeAddressRoutedID)
	known := slices.Concat(t.nodeIPs, routed)
	for _, address := range t.nodeIPs {
		if !address.IsLinkLocalUnicast() {
			sorted.Node = append(sorted.Node, address.String())
		}
	}
	for _, address := range routed {
		if t.isOwn(address) && !slices.Contains(t.nodeIPs, address) {
			sorted.Internal = append(sorted.Internal, address.String())
		}
	}
	for _, address := range t.list(network.NodeAddressCurrentID) {
		if t.isOwn(address) && !slices.Contains(known, address) {
			sorted.External = append(sorted.External, address.String())
		}
	}

	return sorted
}

// isOwn reports whether an address is the node's own, and leads to it from elsewhere. Talos
// leaves out itself what is loopback (controllers/network/node_address.go).
func (t told) isOwn(address netip.Addr) bool {
	return !address.IsLinkLocalUnicast() && !slices.Contains(t.virtual, address) && !slices.Contains(t.linked, address)
}
