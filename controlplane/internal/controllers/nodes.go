package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// gatherNodes finds out how the nodes of the control plane are: from memory
// when all of them were healthy a while ago and none has changed since, else by
// asking all of them.
func (r *Reconciler) gatherNodes(ctx context.Context, s *scope) error {
	s.nodes = r.recallNodes(s)
	s.recalled = s.nodes != nil
	if s.recalled {
		return nil
	}

	return r.askNodes(ctx, s)
}

// recallNodes are the facts about all nodes from memory; nil when of any node
// they are not known, or may have changed.
func (r *Reconciler) recallNodes(s *scope) map[string]health.Facts {
	nodes := map[string]health.Facts{}
	for _, machine := range s.machines {
		key := keyOf(machine)
		facts, known := r.memory.recall(key)
		if !known || !r.Watcher.Watching(key) {
			return nil
		}
		nodes[machine.Name] = facts
	}
	if len(nodes) == 0 || s.bundle == nil {
		return nil
	}

	return nodes
}

// askNodes asks all nodes at the same time. A node that cannot be asked stays
// unknown; that is no error.
func (r *Reconciler) askNodes(ctx context.Context, s *scope) error {
	s.nodes = map[string]health.Facts{}
	for _, machine := range s.machines {
		s.nodes[machine.Name] = health.Facts{Err: errNotAsked}
	}
	if s.bundle == nil {
		return nil
	}
	credentials, err := r.certificates.For(s.clusterKey(), s.bundle, secrets.RoleReader)
	if err != nil {
		return err
	}

	var (
		mu        sync.Mutex
		group     sync.WaitGroup
		inspector = health.Inspector{Dialer: r.Dialer}
	)
	for _, machine := range s.machines {
		if !isProvisioned(machine) {
			continue
		}
		group.Go(func() {
			facts := inspector.Inspect(ctx, credentials, r.target(machine))
			mu.Lock()
			defer mu.Unlock()
			s.nodes[machine.Name] = facts
		})
	}
	group.Wait()

	for _, machine := range s.machines {
		r.follow(ctx, machine, s.nodes[machine.Name], credentials)
	}

	return nil
}

// follow remembers what a healthy node said, and watches a node that answers, so
// that its changes start a pass.
func (r *Reconciler) follow(ctx context.Context, machine *clusterv1.Machine, facts health.Facts, credentials talosclient.Credentials) {
	key := keyOf(machine)
	r.memory.forget(key)
	if facts.Err != nil {
		ctrl.LoggerFrom(ctx).V(3).Info("Node does not answer", "Machine", machine.Name, "reason", facts.Err.Error())
		r.Watcher.Stop(key)
		return
	}
	// Nobody tells when an alarm is disarmed.
	if isHealthyNode(facts) && (facts.Etcd == nil || len(facts.Etcd.Alarms) == 0) {
		r.memory.remember(key, facts)
	}
	r.memory.reach(key, facts.Address)
	r.Watcher.Watch(key, facts.Address, credentials, talosclient.MachineStatus{})
}

// forgetNodes drops what is remembered about the nodes.
func (r *Reconciler) forgetNodes(s *scope) {
	for _, machine := range s.machines {
		r.memory.forget(keyOf(machine))
	}
}

// unfollow drops what is kept about the nodes of a control plane that goes.
func (r *Reconciler) unfollow(s *scope) {
	for _, machine := range s.machines {
		r.Watcher.Stop(keyOf(machine))
		r.memory.forget(keyOf(machine))
		r.memory.reach(keyOf(machine), "")
		r.bootstraps.forget(keyOf(machine))
		r.restarts.forget(keyOf(machine))
	}
	r.memory.answered(client.ObjectKeyFromObject(s.controlPlane), health.APIServerUnknown)
}

// nodeToControlPlane maps the Machine of a node that has changed to its
// TalosControlPlane.
func (r *Reconciler) nodeToControlPlane(ctx context.Context, object client.Object) []ctrl.Request {
	r.memory.forget(client.ObjectKeyFromObject(object))
	machine := &clusterv1.Machine{}
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(object), machine); err != nil {
		r.Watcher.Stop(client.ObjectKeyFromObject(object))
		r.memory.reach(client.ObjectKeyFromObject(object), "")
		return nil
	}

	return r.clusterNameToControlPlane(ctx, machine)
}

// keyOf is the key of a Machine.
func keyOf(machine *clusterv1.Machine) client.ObjectKey {
	return client.ObjectKeyFromObject(machine)
}

// MachineOf is the Machine of a key, for the events of a Watcher.
func MachineOf(key client.ObjectKey) client.Object {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

// errNotAsked says that a node was not asked, because its Machine is not
// provisioned or the secrets of the cluster are missing.
var errNotAsked = errors.New("the node cannot be asked yet")

// gatherEndpoint asks what answers at the control plane endpoint, unless that has no say
// in the decision: it may be the API server of a machine that has left etcd, which hangs.
// What answered there last is told then.
func (r *Reconciler) gatherEndpoint(ctx context.Context, s *scope) error {
	s.apiServer = health.APIServerUnknown
	switch {
	case !s.facts.NeedsEndpoint():
		s.apiServer = r.memory.endpoint(client.ObjectKeyFromObject(s.controlPlane))
		return nil
	case len(s.kubeconfig) == 0:
		return nil
	}
	state, err := r.Prober.Probe(ctx, s.kubeconfig)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	s.apiServer, s.facts.APIServer = state, state
	r.memory.answered(client.ObjectKeyFromObject(s.controlPlane), state)

	return nil
}
