package backends

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// RunningFinding is what the stage of a machine says of whether it runs.
func RunningFinding(status talosclient.MachineStatus) condition.Finding {
	unmet := "waiting for: " + strings.Join(status.Unmet, "; ")
	switch {
	case status.Stage == talosclient.StageRunning && status.Ready:
		return condition.True(infrav1.RunningReason, "")
	case status.Stage == talosclient.StageRunning:
		return condition.True(infrav1.RunningReason, "The machine runs, "+unmet)
	case status.Stage == talosclient.StageBooting:
		return condition.False(infrav1.BootingReason, "The machine boots, "+unmet)
	}

	return condition.False(infrav1.UnexpectedStageReason, "The machine is in stage "+status.Stage)
}

// maxAddresses bounds the addresses of a machine: each of them may be tried when it
// does not answer. The kind takes 256.
const maxAddresses = 32

// AddressesOf are the present addresses of a node, and its host name: first that of the
// Node in Kubernetes, as an internal one, and last what others call it. inUse is where it
// answered; when the node does not know that address itself, something in between
// translates it. Those in avoid are left out unless they are of the Node, such as an
// endpoint that all control plane machines share: whoever approves certificates by these
// addresses must not take it for one of a machine.
func AddressesOf(ctx context.Context, node talosclient.Node, inUse string, avoid ...string) (clusterv1.MachineAddresses, error) {
	told, err := node.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	var addresses clusterv1.MachineAddresses
	add := func(kind clusterv1.MachineAddressType, avoid []string, hosts ...string) {
		for _, host := range hosts {
			same := func(other string) bool { return talosclient.SameHost(other, host) }
			known := func(address clusterv1.MachineAddress) bool { return same(address.Address) }
			if host != "" && len(addresses) < maxAddresses-1 && !slices.ContainsFunc(avoid, same) && !slices.ContainsFunc(addresses, known) {
				addresses = append(addresses, clusterv1.MachineAddress{Type: kind, Address: host})
			}
		}
	}
	add(clusterv1.MachineInternalIP, nil, told.Node...)
	add(clusterv1.MachineInternalIP, avoid, told.Internal...)
	if len(addresses) == 0 {
		return nil, nil
	}
	add(clusterv1.MachineExternalIP, avoid, told.External...)
	if _, err := netip.ParseAddr(inUse); err == nil {
		add(clusterv1.MachineExternalIP, avoid, inUse)
	} else {
		add(clusterv1.MachineExternalDNS, avoid, inUse)
	}
	if hostname, err := node.Hostname(ctx); err == nil && hostname != "" {
		addresses = append(addresses, clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: hostname})
	}

	return addresses, nil
}
