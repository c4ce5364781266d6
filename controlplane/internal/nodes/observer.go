package nodes

import (
	"context"
	"errors"
	"slices"
	"sync"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// ErrNotAsked says that a node was not asked, because its Machine is not provisioned or the
// secrets of the cluster are missing.
var ErrNotAsked = errors.New("the node cannot be asked yet")

// Observer asks nodes, or remembers what they said while none has changed.
type Observer struct {
	// Dialer opens connections to nodes.
	Dialer talosclient.Dialer
	// Watcher watches nodes that answer.
	Watcher *machinewatch.Watcher
	// Memory keeps what healthy nodes said.
	Memory *Memory
}

// Recall are the facts about all nodes from memory, by the name of the Machine; nil when of
// any node they are not known, or may have changed.
func (o Observer) Recall(machines []*clusterv1.Machine) map[string]health.Facts {
	known := map[string]health.Facts{}
	for _, machine := range machines {
		facts, found := o.Memory.Recall(KeyOf(machine))
		if !found || !o.Watcher.Watching(KeyOf(machine)) {
			return nil
		}
		known[machine.Name] = facts
	}
	if len(known) == 0 {
		return nil
	}

	return known
}

// NotAsked are the facts about nodes that nobody can ask.
func NotAsked(machines []*clusterv1.Machine) map[string]health.Facts {
	facts := map[string]health.Facts{}
	for _, machine := range machines {
		facts[machine.Name] = health.Facts{Err: ErrNotAsked}
	}

	return facts
}

// Ask asks all nodes at the same time, and watches those that answer. A node that cannot
// be asked stays unknown; that is no error.
func (o Observer) Ask(ctx context.Context, machines []*clusterv1.Machine, credentials talosclient.Credentials) map[string]health.Facts {
	var (
		mu        sync.Mutex
		group     sync.WaitGroup
		inspector = health.Inspector{Dialer: o.Dialer}
		found     = NotAsked(machines)
	)
	for _, machine := range machines {
		if !capimachine.IsProvisioned(machine) {
			continue
		}
		group.Go(func() {
			facts := inspector.Inspect(ctx, credentials, o.Target(machine))
			mu.Lock()
			defer mu.Unlock()
			found[machine.Name] = facts
		})
	}
	group.Wait()

	for _, machine := range machines {
		o.watch(ctx, machine, found[machine.Name], credentials)
	}

	return found
}

// watch remembers what a healthy node said, and watches a node that answers, so that its
// changes start a reconcile.
func (o Observer) watch(ctx context.Context, machine *clusterv1.Machine, facts health.Facts, credentials talosclient.Credentials) {
	key := KeyOf(machine)
	o.Memory.Forget(key)
	if facts.Err != nil {
		ctrl.LoggerFrom(ctx).V(3).Info("Node does not answer", "Machine", machine.Name, "reason", facts.Err.Error())
		o.Watcher.Stop(key)
		return
	}
	if facts.EtcdErr != nil {
		ctrl.LoggerFrom(ctx).V(3).Info("etcd of the node does not answer", "Machine", machine.Name, "reason", facts.EtcdErr.Error())
	}
	// Nobody tells when an alarm is disarmed.
	if health.IsHealthy(facts) && (facts.Etcd == nil || len(facts.Etcd.Alarms) == 0) {
		o.Memory.Remember(key, facts)
	}
	o.Memory.Reach(key, facts.Address)
	o.Watcher.Watch(key, facts.Address, credentials, talosclient.MachineStatus{})
}

// Target is how the node of a Machine is reached, and recognized: first where it answered
// last.
func (o Observer) Target(machine *clusterv1.Machine) talosclient.Target {
	addresses, last := capimachine.Addresses(machine), o.Memory.Reached(KeyOf(machine))
	slices.SortStableFunc(addresses, func(a, b string) int {
		switch last {
		case a:
			return -1
		case b:
			return 1
		default:
			return 0
		}
	})

	return talosclient.Target{Addresses: addresses, Hostname: machine.Name}
}

// Forget drops what is remembered about nodes.
func (o Observer) Forget(machines []*clusterv1.Machine) {
	for _, machine := range machines {
		o.Memory.Forget(KeyOf(machine))
	}
}

// Drop drops what is kept about the nodes of a control plane that is being deleted.
func (o Observer) Drop(machines []*clusterv1.Machine) {
	for _, machine := range machines {
		o.Watcher.Stop(KeyOf(machine))
		o.Memory.Forget(KeyOf(machine))
		o.Memory.Reach(KeyOf(machine), "")
	}
}
