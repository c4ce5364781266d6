package talossim

import (
	"context"
	"slices"
)

// learnEndpoints has a node that is to join etcd hear where that is from an API server, at
// the endpoint of the cluster. What it has heard it knows for the rest of the boot
// (internal/app/machined/pkg/controllers/k8s/endpoint.go). With the discovery service it
// knows that anyway.
func (b *boot) learnEndpoints(ctx context.Context) {
	for ctx.Err() == nil && !b.settings.discovery {
		var asks bool
		b.sim.look(func() { asks = !b.machine.faults.Parted })
		if asks && answers(ctx, b.settings.endpoint, b.settings.kubernetesCA.Crt) {
			b.sim.update(func() { b.endpoints = true })
			return
		}
		b.sim.pause(ctx, retryInterval)
	}
}

// knowsEndpoints reports whether the node knows where etcd is: from an API server, from the
// discovery service, or because the endpoint of the cluster leads to a member, where it
// looks for etcd as well (internal/pkg/etcd/endpoints.go, and EndpointController and
// StaticEndpointController in internal/app/machined/pkg/controllers/{cluster,k8s}). It is
// taken for granted that the discovery service, which is outside of the cluster, answers.
// That an endpoint is a name, and which addresses that has, is not looked at. The lock is
// held.
func (b *boot) knowsEndpoints() bool {
	return b.endpoints || b.settings.discovery || slices.ContainsFunc(b.sim.machines, func(other *Machine) bool {
		data, _ := b.sim.etcd.Data(other.spec.Name)
		return data.Group == b.settings.etcd && other.etcd == etcdRunning && !other.faults.Parted && other.hears(b.settings.endpoint.Hostname(), clientPort)
	})
}
