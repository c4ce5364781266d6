package controllers

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

// observer asks the nodes, and remembers.
func (r *Reconciler) observer() nodes.Observer {
	return nodes.Observer{Dialer: r.Dialer, Watcher: r.Watcher, Memory: r.memory}
}

// gatherNodes finds out how the nodes of the control plane are: from memory
// when all of them were healthy a while ago and none has changed since, else by
// asking all of them.
func (r *Reconciler) gatherNodes(ctx context.Context, s *scope) error {
	s.recalled = false
	if s.bundle == nil {
		s.nodes = nodes.NotAsked(s.machines)
		return nil
	}
	if s.nodes = r.observer().Recall(s.machines); s.nodes != nil {
		s.recalled = true
		return nil
	}
	credentials, err := r.certificates.For(s.clusterKey(), s.bundle, secrets.RoleReader)
	if err != nil {
		s.nodes = nodes.NotAsked(s.machines)
		return err
	}
	s.nodes = r.observer().Ask(ctx, s.machines, credentials)

	return nil
}

// unfollow drops what is kept about the nodes of a control plane that is being deleted.
func (r *Reconciler) unfollow(s *scope) {
	r.observer().Drop(s.machines)
	for _, machine := range s.machines {
		r.bootstraps.Forget(nodes.KeyOf(machine))
		r.restarts.Forget(nodes.KeyOf(machine))
	}
	r.memory.Answered(client.ObjectKeyFromObject(s.controlPlane), health.APIServerUnknown)
}

// nodeToControlPlane maps the Machine of a node that has changed to its
// TalosControlPlane.
func (r *Reconciler) nodeToControlPlane(ctx context.Context, object client.Object) []ctrl.Request {
	r.memory.Forget(client.ObjectKeyFromObject(object))
	machine := &clusterv1.Machine{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), machine); err != nil {
		r.Watcher.Stop(client.ObjectKeyFromObject(object))
		r.memory.Reach(client.ObjectKeyFromObject(object), "")
		return nil
	}

	return r.clusterNameToControlPlane(ctx, machine)
}

// gatherEndpoint asks what answers at the control plane endpoint, unless that has no say
// in the decision: it may be the API server of a machine that has left etcd, which hangs.
// What answered there last is told then.
func (r *Reconciler) gatherEndpoint(ctx context.Context, s *scope) error {
	s.apiServer = health.APIServerUnknown
	switch {
	case !s.facts.NeedsEndpoint():
		s.apiServer = r.memory.Endpoint(client.ObjectKeyFromObject(s.controlPlane))
		return nil
	case len(s.kubeconfig) == 0:
		return nil
	}
	state, err := r.Prober.Probe(ctx, s.kubeconfig)
	if err != nil {
		return causeError{fmt.Errorf("asking the API server by Secret %s: %w; correct it", clientconfig.KubeconfigName(s.cluster.Name), err)}
	}
	s.apiServer, s.facts.APIServer = state, state
	r.memory.Answered(client.ObjectKeyFromObject(s.controlPlane), state)

	return nil
}
