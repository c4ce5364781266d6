package helm

import (
	"bytes"
	"context"
	"fmt"

	"helm.sh/helm/v3/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// HasNamespace reports whether the cluster has a namespace.
func (c *Client) HasNamespace(ctx context.Context, name string) (bool, error) {
	err := c.live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, classify(fmt.Errorf("looking for namespace %s: %w", name, err))
	}

	return true, nil
}

// Waiting says what is waited for until a release of phase Network works: its objects, as
// Helm judges them where it waits, and a node that is ready. It is empty when they do.
func (c *Client) Waiting(ctx context.Context, target release.Target) (string, error) {
	config, _, err := c.configuration(target.Namespace)
	if err != nil {
		return "", err
	}
	found, err := config.Releases.Last(target.Name)
	if err != nil {
		return "", classify(fmt.Errorf("reading the release: %w", err))
	}
	resources, err := config.KubeClient.Build(bytes.NewBufferString(found.Manifest), false)
	if err != nil {
		return "", classify(fmt.Errorf("reading the manifest of the release: %w", err))
	}
	clients, err := config.KubernetesClientSet()
	if err != nil {
		return "", fmt.Errorf("preparing the clients of the Cluster: %w", err)
	}
	checker := kube.NewReadyChecker(clients, func(string, ...any) {}, kube.PausedAsReady(true))
	for _, resource := range resources {
		ready, err := checker.IsReady(ctx, resource)
		if err != nil {
			return "", classify(fmt.Errorf("looking at %s: %w", resource.ObjectName(), err))
		}
		if !ready {
			return fmt.Sprintf("%s %s/%s is not ready", resource.Mapping.GroupVersionKind.Kind, resource.Namespace, resource.Name), nil
		}
	}

	return c.waitingForNodes(ctx)
}

func (c *Client) waitingForNodes(ctx context.Context) (string, error) {
	nodes := &corev1.NodeList{}
	if err := c.live.List(ctx, nodes); err != nil {
		return "", classify(fmt.Errorf("listing the nodes: %w", err))
	}
	for i := range nodes.Items {
		if util.IsNodeReady(&nodes.Items[i]) {
			return "", nil
		}
	}

	return fmt.Sprintf("none of the %d nodes is ready", len(nodes.Items)), nil
}
