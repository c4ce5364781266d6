package secrets

import (
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// TalosEndpoints are the endpoints of the Talos API of a cluster: the addresses
// of those control plane Machines that are not being deleted, sorted. The
// control plane endpoint is never among them, even if a Machine calls it its
// own: it may be a load balancer that does not know the Talos API, or a virtual
// address that goes with the quorum.
func TalosEndpoints(cluster *clusterv1.Cluster, machines []*clusterv1.Machine) []string {
	endpoint := cluster.Spec.ControlPlaneEndpoint.Host
	var found []string
	for _, machine := range machines {
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		for _, address := range capimachine.IPs(machine) {
			if !talosclient.SameHost(address, endpoint) && !slices.Contains(found, address) {
				found = append(found, address)
			}
		}
	}
	slices.Sort(found)

	return found
}
