package container

import (
	"context"
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

const (
	// longestUserData is how long, in bytes, a configuration in the environment may
	// be: one string of it is at most 128 KiB, and base64 makes four bytes of three.
	longestUserData = 98_000
	// overlayRoom is what the overlay may add.
	overlayRoom = 8_000
)

// isLong tells that a configuration is too long for the environment of a container.
func isLong(configuration []byte) bool {
	return len(configuration)+overlayRoom > longestUserData
}

// encode is a configuration as Talos wants it in its environment.
func encode(configuration []byte) []byte {
	return []byte(base64.StdEncoding.EncodeToString(configuration))
}

// overlaid is the configuration with what only the Pod knows; nil, with the reason
// in a condition, when there is none.
func (m *Machines) overlaid(ctx context.Context, scope *backends.Scope, w wish, node *corev1.Node, configuration []byte) ([]byte, ctrl.Result, error) {
	overlay := overlayOf(scope.TalosMachine)
	overlay.EtcdAddress = etcdAddress(scope.TalosMachine)
	overlay.SystemReserved = reserved(node, w.spec().Resources.Limits)
	if w.controlPlane {
		names, err := m.endpointNames(ctx, scope)
		if err != nil {
			return nil, ctrl.Result{}, err
		}
		overlay.EndpointNames = names
	}
	text, err := configgen.Overlay(configuration, overlay)
	if err != nil {
		scope.Observed.Configuration = backends.False(infrav1.OverlayFailedReason, fmt.Sprintf("The machine configuration does not fit a Pod: %v", err))
		return nil, m.later(), nil //nolint:nilerr // It is the user's, and in the condition.
	}

	return text, ctrl.Result{}, nil
}

// unfit says why a configuration cannot be run in the Pod, before there is one;
// empty when it can.
func (m *Machines) unfit(scope *backends.Scope, configuration []byte) string {
	machine := scope.TalosMachine
	if _, err := configgen.Overlay(configuration, overlayOf(machine)); err != nil {
		return fmt.Sprintf("The machine configuration does not fit a Pod of Talos %s: %v", machine.Spec.Container.Talos.Version, err)
	}
	if err := versions.Supports(machine.Spec.Container.Talos.Version, scope.Machine.Spec.Version); err != nil {
		return fmt.Sprintf("The Machine cannot run: %v; choose another version, or another release in a new template", err)
	}

	return ""
}

func overlayOf(machine *infrav1.TalosMachine) configgen.HostOverlay {
	return configgen.HostOverlay{ProviderID: machine.Spec.ProviderID, Container: true, Release: machine.Spec.Container.Talos.Version}
}

// endpointNames are the names by which the endpoint of the cluster is reached.
func (m *Machines) endpointNames(ctx context.Context, scope *backends.Scope) ([]string, error) {
	if scope.TalosCluster == nil {
		return nil, nil
	}
	service := &corev1.Service{}
	key := client.ObjectKey{Namespace: scope.TalosCluster.Namespace, Name: endpoint.ServiceName(scope.TalosCluster)}
	if err := m.Client.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Service %s: %w", key.Name, err)
	}
	nodes := &corev1.NodeList{}
	if err := m.Client.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}

	return endpoint.Names(service, nodes.Items), nil
}

// reserved is what the node inside keeps back, so that it promises its Pods no more
// than the Pod gets: the kubelet in it sees all that the hosting node has.
func reserved(node *corev1.Node, limits corev1.ResourceList) corev1.ResourceList {
	kept := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := limits[name]
		all, known := node.Status.Capacity[name]
		if !limited || !known || all.Cmp(limit) <= 0 {
			continue
		}
		rest := all.DeepCopy()
		rest.Sub(limit)
		kept[name] = canonical(name, rest)
	}
	if len(kept) == 0 {
		return nil
	}

	return kept
}

// canonical writes a quantity in the way of the kubelet's configuration.
func canonical(name corev1.ResourceName, quantity resource.Quantity) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(quantity.MilliValue(), resource.DecimalSI)
	}

	return *resource.NewQuantity(quantity.Value(), resource.BinarySI)
}
