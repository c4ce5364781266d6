// Package endpoint is the Service at which the API servers of a cluster in Pods are
// reached. It is pure.
package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// ServiceName is the name of the Service of a TalosCluster.
func ServiceName(cluster *infrav1.TalosCluster) string {
	return NameOf(cluster.Name, infrav1.EndpointServiceSuffix)
}

// NameOf is a name with an ending, as a Service can have it: at most 63 characters,
// a letter first, no dot. A name that has to be changed for that gets a hash, so
// that no two become the same.
func NameOf(name, ending string) string {
	if len(validation.IsDNS1035Label(name+ending)) == 0 {
		return name + ending
	}
	const digits = 8
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:])[:digits]
	fit := strings.ReplaceAll(name, ".", "-")
	if fit[0] >= '0' && fit[0] <= '9' {
		fit = "n" + fit
	}
	fit = fit[:min(len(fit), validation.DNS1035LabelMaxLength-len(hash)-len(ending))]

	return strings.TrimRight(fit, "-") + hash + ending
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
	for _, address := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
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
