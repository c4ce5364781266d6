package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// reconcileNodes asks all nodes of the control plane how they are, at the same
// time. A node that cannot be asked stays unknown; that is no error.
func (r *Reconciler) reconcileNodes(ctx context.Context, s *scope) error {
	s.nodes = map[string]health.Facts{}
	for _, machine := range s.machines {
		s.nodes[machine.Name] = health.Facts{Err: errNotAsked}
	}
	if s.bundle == nil {
		return nil
	}
	credentials, err := r.credentials.reader(client.ObjectKeyFromObject(s.cluster), s.bundle)
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
			facts := inspector.Inspect(ctx, credentials, target(machine))
			mu.Lock()
			defer mu.Unlock()
			s.nodes[machine.Name] = facts
		})
	}
	group.Wait()

	for name, facts := range s.nodes {
		if facts.Err != nil {
			ctrl.LoggerFrom(ctx).V(3).Info("Node does not answer", "Machine", name, "reason", facts.Err.Error())
		}
	}

	return nil
}

// errNotAsked says that a node was not asked, because its Machine is not
// provisioned or the secrets of the cluster are missing.
var errNotAsked = errors.New("the node cannot be asked yet")

// reconcileEndpoint asks what answers at the control plane endpoint.
func (r *Reconciler) reconcileEndpoint(ctx context.Context, s *scope) error {
	s.apiServer = health.APIServerUnknown
	if len(s.kubeconfig) == 0 {
		return nil
	}
	state, err := r.Prober.Probe(ctx, s.kubeconfig)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	s.apiServer = state

	return nil
}
