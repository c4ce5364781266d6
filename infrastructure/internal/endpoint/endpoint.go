// Package endpoint is the Service at which the API servers of a cluster in Pods are
// reached. It is pure.
package endpoint

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// ServiceName is the name of the Service of a TalosCluster.
func ServiceName(cluster *infrav1.TalosCluster) string {
	return cluster.Name + infrav1.EndpointServiceSuffix
}

// Names are all names and addresses by which a Service is reached, for the
// certificate behind it: in the management cluster, through a port that is
// forwarded, at a load balancer, and at the nodes where it has a port there.
func Names(service *corev1.Service, nodes []corev1.Node) []string {
	name, namespace := service.Name, service.Namespace
	names := []string{
		name, name + "." + namespace, name + "." + namespace + ".svc", name + "." + namespace + ".svc.cluster.local",
		"localhost", "127.0.0.1",
	}
	for _, address := range service.Spec.ClusterIPs {
		if _, err := netip.ParseAddr(address); err == nil {
			names = append(names, address)
		}
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		names = append(names, ingress.IP, ingress.Hostname)
	}
	if service.Spec.Type != corev1.ServiceTypeClusterIP && service.Spec.Type != "" {
		for i := range nodes {
			for _, address := range nodes[i].Status.Addresses {
				names = append(names, address.Address)
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)

	return slices.Compact(names)
}

// Address is where a Service is reached for the life of the cluster: at the load
// balancer where it has one, else at its cluster IP. It is empty while there is
// none.
func Address(service *corev1.Service) string {
	if service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				return ingress.IP
			}
			if ingress.Hostname != "" {
				return ingress.Hostname
			}
		}
		return ""
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		return ""
	}

	return service.Spec.ClusterIP
}
