// Package quorum asks the control plane machines of a Cluster about their etcd, so
// that no machine is wiped that etcd needs.
package quorum

import (
	"context"
	"fmt"
	"sync"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Without is etcd as the control plane machines of a Cluster tell it that have another
// provider ID. All are asked at the same time; one that does not answer tells nothing.
func Without(
	ctx context.Context, reader client.Reader, dialer talosclient.Dialer, credentials talosclient.Credentials, cluster client.ObjectKey, providerID string,
) (etcd.Health, error) {
	machines := &infrav1.TalosMachineList{}
	err := reader.List(ctx, machines, client.InNamespace(cluster.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel})
	if err != nil {
		return etcd.Health{}, fmt.Errorf("listing TalosMachines: %w", err)
	}

	var group sync.WaitGroup
	views := make([]*etcd.View, len(machines.Items))
	for i := range machines.Items {
		if machines.Items[i].Spec.ProviderID == providerID {
			continue
		}
		group.Go(func() { views[i] = look(ctx, dialer, credentials, machines.Items[i].Status.Addresses) })
	}
	group.Wait()

	var told []etcd.View
	for _, view := range views {
		if view != nil {
			told = append(told, *view)
		}
	}

	return etcd.Judge(told), nil
}

// look is what a machine says at that of its addresses at which it answers first; nil
// when it does at none.
func look(ctx context.Context, dialer talosclient.Dialer, credentials talosclient.Credentials, addresses clusterv1.MachineAddresses) *etcd.View {
	hostname, hosts := "", []string(nil)
	for _, address := range addresses {
		if address.Type == clusterv1.MachineHostName {
			hostname = address.Address
		} else {
			hosts = append(hosts, address.Address)
		}
	}
	node, err := talosclient.Reach(ctx, dialer, credentials, talosclient.Target{Addresses: hosts, Hostname: hostname})
	if err != nil {
		return nil
	}
	defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
	view, err := etcd.Look(ctx, node)
	if err != nil {
		return nil
	}

	return view
}
