package restore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	utilkubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/kubeconfig"
)

const (
	// callTimeout bounds a call of the API server of a cluster. It is longer than the 10 s
	// after which that says by default which webhook does not answer.
	callTimeout = 20 * time.Second
	// userAgent is what API servers know the manager as.
	userAgent = "talosetcdrestore"
)

// Workload asks the API servers of clusters, as the administrator that Cluster API is.
type Workload struct {
	// Live reads kubeconfigs. It is required.
	Live client.Reader
}

func (w *Workload) client(ctx context.Context, cluster client.ObjectKey) (client.Client, error) {
	content, err := utilkubeconfig.FromSecret(ctx, kubeconfig.NewReader(w.Live), cluster)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	config.Timeout, config.UserAgent = callTimeout, userAgent
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("adding the kinds of a cluster: %w", err)
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
// are not ready: those of machines that the backup has known. It returns those that are ready
// by what the backup says, and have told nothing since: a kubelet does every five minutes, and
// of one that does not the cluster knows after a minute. A Node that is alive stays, whoever has
// it.
func (w *Workload) DeleteNodesWithout(ctx context.Context, cluster client.ObjectKey, machines []*clusterv1.Machine, since time.Time) (waiting []string, err error) {
	from, err := w.client(ctx, cluster)
	if err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := from.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if slices.ContainsFunc(machines, func(machine *clusterv1.Machine) bool { return isNodeOf(node, machine) }) {
			continue
		}
		ready := readiness(node)
		switch {
		case ready == nil || ready.Status != corev1.ConditionTrue:
			if err := from.Delete(ctx, node, client.Preconditions{UID: &node.UID}); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("deleting Node %s: %w", node.Name, err)
			}
		case ready.LastHeartbeatTime.Time.Before(since):
			waiting = append(waiting, node.Name)
		}
	}

	return waiting, nil
}

// WorkersWithout returns the worker Machines that have had a Node and have none in a cluster:
// they are younger than the backup. A kubelet registers its Node once, when it starts.
func (w *Workload) WorkersWithout(ctx context.Context, cluster client.ObjectKey, machines []*clusterv1.Machine) ([]string, error) {
	from, err := w.client(ctx, cluster)
	if err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := from.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	var found []string
	for _, machine := range machines {
		isThere := func(node corev1.Node) bool { return isNodeOf(&node, machine) }
		if !util.IsControlPlaneMachine(machine) && machine.Status.NodeRef.IsDefined() && !slices.ContainsFunc(nodes.Items, isThere) {
			found = append(found, machine.Name)
		}
	}
	slices.Sort(found)

	return found, nil
}

// isNodeOf reports whether a Node is, or will be, that of a Machine.
func isNodeOf(node *corev1.Node, machine *clusterv1.Machine) bool {
	if node.Spec.ProviderID != "" && machine.Spec.ProviderID != "" {
		return node.Spec.ProviderID == machine.Spec.ProviderID
	}

	return node.Name == machine.Name || node.Name == machine.Status.NodeRef.Name
}

// readiness is the condition Ready of a Node; nil when it has none.
func readiness(node *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(found corev1.NodeCondition) bool { return found.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}

	return &node.Status.Conditions[i]
}
