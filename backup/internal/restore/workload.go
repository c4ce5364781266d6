package restore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/remote"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/kubeconfig"
)

const (
	// callTimeout bounds a call of the API server of a cluster.
	callTimeout = 10 * time.Second
	// leaseAge is how old the lease of a Node is at least that nobody renews: a kubelet does
	// every ten seconds.
	leaseAge = 3 * time.Minute
	// source is what API servers know the manager as.
	source = "talosetcdrestore"
)

// Workload asks the API servers of clusters, as the administrator that Cluster API is. Both
// fields are required.
type Workload struct {
	// Live reads kubeconfigs.
	Live client.Reader
	// Clock tells the time.
	Clock clock.PassiveClock
}

func (w *Workload) client(ctx context.Context, cluster client.ObjectKey) (client.Client, error) {
	config, err := remote.RESTConfig(ctx, source, kubeconfig.NewReader(w.Live), cluster)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	config.Timeout = callTimeout
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("adding the kinds of a cluster: %w", err)
		}
	}
	made, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server of the cluster: %w", err)
	}

	return made, nil
}

// Revision is the revision of etcd that the API server tells: it reads from etcd for it, and
// so needs its quorum.
func (w *Workload) Revision(ctx context.Context, cluster client.ObjectKey) (int64, error) {
	from, err := w.client(ctx, cluster)
	if err != nil {
		return 0, err
	}
	list := &corev1.NamespaceList{}
	if err := from.List(ctx, list, client.Limit(1)); err != nil {
		return 0, fmt.Errorf("listing Namespaces: %w", err)
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the API server tells %q as its revision", list.ResourceVersion)
	}

	return revision, nil
}

// DeleteNodesWithout deletes the Nodes of a cluster that belong to none of its Machines and
// are not ready: those of machines that the backup has known. It returns those that seem to be
// ready, though nobody renews their lease: the API server is about to tell. A Node that is
// alive stays, whoever has it.
func (w *Workload) DeleteNodesWithout(ctx context.Context, cluster client.ObjectKey, machines []*clusterv1.Machine) (waiting []string, err error) {
	from, err := w.client(ctx, cluster)
	if err != nil {
		return nil, err
	}
	nodes, leases := &corev1.NodeList{}, &coordinationv1.LeaseList{}
	if err := from.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	if err := from.List(ctx, leases, client.InNamespace(corev1.NamespaceNodeLease)); err != nil {
		return nil, fmt.Errorf("listing the leases of Nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if slices.ContainsFunc(machines, func(machine *clusterv1.Machine) bool { return isNodeOf(node, machine) }) {
			continue
		}
		switch {
		case !isReady(node):
			if err := from.Delete(ctx, node, client.Preconditions{UID: &node.UID}); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("deleting Node %s: %w", node.Name, err)
			}
		case w.isStale(node.Name, leases.Items):
			waiting = append(waiting, node.Name)
		}
	}

	return waiting, nil
}

// isNodeOf reports whether a Node is, or will be, that of a Machine.
func isNodeOf(node *corev1.Node, machine *clusterv1.Machine) bool {
	if node.Spec.ProviderID != "" && machine.Spec.ProviderID != "" {
		return node.Spec.ProviderID == machine.Spec.ProviderID
	}

	return node.Name == machine.Name || node.Name == machine.Status.NodeRef.Name
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(found corev1.NodeCondition) bool {
		return found.Type == corev1.NodeReady && found.Status == corev1.ConditionTrue
	})
}

func (w *Workload) isStale(node string, leases []coordinationv1.Lease) bool {
	return slices.ContainsFunc(leases, func(lease coordinationv1.Lease) bool {
		return lease.Name == node && lease.Spec.RenewTime != nil && w.Clock.Since(lease.Spec.RenewTime.Time) > leaseAge
	})
}
