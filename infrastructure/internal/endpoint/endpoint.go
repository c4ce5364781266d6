// Package endpoint is the Services of a cluster in Pods: the one at which its API
// servers are reached, and those of etcd. It is pure.
package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
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
// forwarded, at a load balancer, and at the nodes where it has a port there. domain
// is the DNS domain of the management cluster.
func Names(service *corev1.Service, nodes []corev1.Node, domain string) []string {
	name, namespace := service.Name, service.Namespace
	names := []string{
		name, name + "." + namespace, name + "." + namespace + ".svc", name + "." + namespace + ".svc." + domain,
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

// LaterNodes are the names of the nodes that have joined the management cluster since
// one of the machines was made: the certificates of that one may lack their addresses.
func LaterNodes(nodes []corev1.Node, machines []infrav1.TalosMachine) []string {
	var names []string
	for i := range nodes {
		joined := nodes[i].CreationTimestamp
		if slices.ContainsFunc(machines, func(machine infrav1.TalosMachine) bool { return machine.CreationTimestamp.Before(&joined) }) {
			names = append(names, nodes[i].Name)
		}
	}
	slices.Sort(names)

	return names
}

// Updated is a Service as it is to be, and whether it was not; what others have set
// besides stays. The address that a Service has is not changed: nobody can.
func Updated(service, wanted *corev1.Service) (*corev1.Service, bool) {
	mended := service.DeepCopy()
	spec := &mended.Spec
	spec.Type, spec.Selector, spec.PublishNotReadyAddresses = wanted.Spec.Type, wanted.Spec.Selector, wanted.Spec.PublishNotReadyAddresses
	// Without an address it was of type ExternalName.
	spec.ExternalName = ""
	if spec.ClusterIP == "" {
		spec.ClusterIP = wanted.Spec.ClusterIP
	}
	spec.Ports = mendedPorts(service.Spec.Ports, wanted)
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		spec.LoadBalancerClass = nil
	} else if spec.LoadBalancerClass == nil {
		spec.LoadBalancerClass = wanted.Spec.LoadBalancerClass
	}
	mended.Labels = withAll(mended.Labels, wanted.Labels)
	mended.Annotations = withAll(mended.Annotations, wanted.Annotations)

	return mended, !apiequality.Semantic.DeepEqual(service, mended)
}

// mendedPorts are the ports that are wanted, each with what the cluster has given to
// the one that was there in its place.
func mendedPorts(ports []corev1.ServicePort, wanted *corev1.Service) []corev1.ServicePort {
	mended := slices.Clone(wanted.Spec.Ports)
	for i := range mended {
		port := &mended[i]
		at := slices.IndexFunc(ports, func(there corev1.ServicePort) bool { return there.Name == port.Name || there.Port == port.Port })
		if at < 0 {
			continue
		}
		port.AppProtocol = ports[at].AppProtocol
		if wanted.Spec.Type != corev1.ServiceTypeClusterIP {
			port.NodePort = ports[at].NodePort
		}
	}

	return mended
}

func withAll(have, wanted map[string]string) map[string]string {
	if have == nil && len(wanted) > 0 {
		have = map[string]string{}
	}
	maps.Copy(have, wanted)

	return have
}
