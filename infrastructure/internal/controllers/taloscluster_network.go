package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// overlap says which network of a cluster in Pods is also one of the management
// cluster: a node inside could not reach the other one then. Where the Cluster names
// none, Talos' own are judged, which are those of kind too. A cluster that has its
// endpoint already is not judged.
func (r *ClusterReconciler) overlap(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (condition.Finding, error) {
	if metav1.HasAnnotation(talosCluster.ObjectMeta, infrav1.NetworkOverlapAllowedAnnotation) || talosCluster.Spec.ControlPlaneEndpoint.IsValid() {
		return condition.Finding{}, nil
	}
	theirs, err := r.managementNetworks(ctx)
	if err != nil {
		return condition.Finding{}, err
	}
	network := cluster.Spec.ClusterNetwork
	for _, ours := range []struct {
		name, usual string
		blocks      []string
	}{
		{"pods", constants.DefaultIPv4PodCIDR, network.Pods.CIDRBlocks},
		{"services", constants.DefaultIPv4ServiceCIDR, network.Services.CIDRBlocks},
	} {
		if len(ours.blocks) == 0 {
			ours.blocks = []string{ours.usual}
		}
		for _, block := range ours.blocks {
			if other := overlapping(block, theirs); other != "" {
				return condition.Falsef(infrav1.NetworkOverlapReason,
					"clusterNetwork.%s of the Cluster, %s, overlaps %s of the management cluster, so that Pods inside would not reach it: choose another one, or put annotation %s on the TalosCluster if that does no harm",
					ours.name, block, other, infrav1.NetworkOverlapAllowedAnnotation), nil
			}
		}
	}

	return condition.Finding{}, nil
}

// overlapping is the first network that overlaps block; empty for none.
func overlapping(block string, networks []string) string {
	ours, err := netip.ParsePrefix(block)
	if err != nil {
		return ""
	}
	for _, network := range networks {
		if theirs, err := netip.ParsePrefix(network); err == nil && ours.Overlaps(theirs) {
			return network
		}
	}

	return ""
}

// managementNetworks are the networks of the management cluster, as far as they
// are known: those of its Services, and of the Pods of its nodes.
func (r *ClusterReconciler) managementNetworks(ctx context.Context) ([]string, error) {
	services := &networkingv1.ServiceCIDRList{}
	// Management clusters before Kubernetes 1.33 do not tell.
	if err := r.APIReader.List(ctx, services); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("listing ServiceCIDRs: %w", err)
	}
	nodes := &corev1.NodeList{}
	if err := r.Client.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	networks := map[string]bool{}
	for i := range services.Items {
		for _, block := range services.Items[i].Spec.CIDRs {
			networks[block] = true
		}
	}
	for i := range nodes.Items {
		for _, block := range nodes.Items[i].Spec.PodCIDRs {
			networks[block] = true
		}
	}

	return slices.Sorted(maps.Keys(networks)), nil
}

// taintControlPlane is on nodes that are kept for the control plane of the management
// cluster.
const taintControlPlane = "node-role.kubernetes.io/control-plane"

// zones are the failure domains of a cluster in Pods: the zones of the nodes of the
// management cluster. A zone that has none but its control plane would be required of
// a Pod in vain.
func (r *ClusterReconciler) zones(ctx context.Context) ([]clusterv1.FailureDomain, error) {
	nodes := &corev1.NodeList{}
	if err := r.Client.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	found := map[string]bool{}
	for i := range nodes.Items {
		if zone := nodes.Items[i].Labels[corev1.LabelTopologyZone]; zone != "" && !isKept(&nodes.Items[i]) {
			found[zone] = true
		}
	}
	var domains []clusterv1.FailureDomain
	for _, zone := range domainNames(found) {
		domains = append(domains, clusterv1.FailureDomain{Name: zone, ControlPlane: ptr.To(true)})
	}

	return domains, nil
}

// unreachedNodes says at which nodes clients of a Service of type NodePort may find a
// certificate that does not name them; empty for none. The certificate is made with a
// machine.
func (r *ClusterReconciler) unreachedNodes(ctx context.Context, cluster *clusterv1.Cluster, talosCluster *infrav1.TalosCluster) (string, error) {
	if talosCluster.Spec.Container.ControlPlaneService.Type != infrav1.ControlPlaneServiceNodePort {
		return "", nil
	}
	nodes := &corev1.NodeList{}
	if err := r.Client.List(ctx, nodes); err != nil {
		return "", fmt.Errorf("listing Nodes: %w", err)
	}
	machines, err := r.controlPlaneMachines(ctx, cluster)
	if err != nil {
		return "", err
	}
	later := endpoint.LaterNodes(nodes.Items, machines)
	if len(later) == 0 {
		return "", nil
	}
	const named = 3
	text := strings.Join(later[:min(len(later), named)], ", ")
	if more := len(later) - named; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}

	return "Nodes of the management cluster have joined since control plane machines were made, whose certificates may lack their addresses: " + text +
		". Reach the API servers at an older node, or roll the control plane out", nil
}

// isKept reports whether a node is kept for the control plane of the management cluster.
func isKept(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == taintControlPlane && taint.Effect != corev1.TaintEffectPreferNoSchedule
	})
}
