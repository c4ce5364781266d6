package backends

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// RunningFinding is what the stage of a machine says of whether it runs.
func RunningFinding(status talosclient.MachineStatus) Finding {
	unmet := "waiting for: " + strings.Join(status.Unmet, "; ")
	switch {
	case status.Stage == talosclient.StageRunning && status.Ready:
		return True(infrav1.HostRunningReason, "")
	case status.Stage == talosclient.StageRunning:
		return True(infrav1.HostRunningReason, "The machine runs, "+unmet)
	case status.Stage == talosclient.StageBooting:
		return False(infrav1.HostBootingReason, "The machine boots, "+unmet)
	}

	return False(infrav1.HostInOtherStageReason, "The machine is in stage "+status.Stage)
}

// AddressesOf are the addresses of the node, and its host name. Talos knows of
// no addresses that are external.
func AddressesOf(ctx context.Context, node talosclient.Node) (clusterv1.MachineAddresses, error) {
	ips, err := node.Addresses(ctx)
	if err != nil {
		return nil, err
	}
	var addresses clusterv1.MachineAddresses
	for _, ip := range ips {
		if _, err := netip.ParseAddr(ip); err != nil {
			continue
		}
		address := clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip}
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	if hostname, err := node.Hostname(ctx); err == nil && hostname != "" && len(addresses) > 0 {
		addresses = append(addresses, clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: hostname})
	}

	return addresses, nil
}
