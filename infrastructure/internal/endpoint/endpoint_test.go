package endpoint_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

func service(kind corev1.ServiceType, changes ...func(*corev1.Service)) *corev1.Service {
	made := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "demo-control-plane"},
		Spec:       corev1.ServiceSpec{Type: kind, ClusterIP: "172.20.0.1", ClusterIPs: []string{"172.20.0.1", "fd00:7::1"}},
	}
	for _, change := range changes {
		change(made)
	}

	return made
}

func balanced(ip, hostname string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, Hostname: hostname})
	}
}

func headless(s *corev1.Service) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

func TestNames(t *testing.T) {
	always := []string{
		"demo-control-plane", "demo-control-plane.fleet", "demo-control-plane.fleet.svc", "demo-control-plane.fleet.svc.example.local", "localhost", "127.0.0.1",
	}
	nodes := []corev1.Node{{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeHostName, Address: "node-1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
	}}}}
	for sentence, tt := range map[string]struct {
		service *corev1.Service
		besides []string
	}{
		"in the cluster":                           {service(corev1.ServiceTypeClusterIP), []string{"172.20.0.1", "fd00:7::1"}},
		"in the cluster, of the type by default":   {service(""), []string{"172.20.0.1", "fd00:7::1"}},
		"in the cluster, before there is one":      {service(corev1.ServiceTypeClusterIP, headless), nil},
		"at the nodes, each once":                  {service(corev1.ServiceTypeNodePort), []string{"172.20.0.1", "fd00:7::1", "192.0.2.1", "node-1"}},
		"at a load balancer, and the nodes behind": {service(corev1.ServiceTypeLoadBalancer, balanced("198.51.100.1", "lb.example.com")), []string{"172.20.0.1", "fd00:7::1", "192.0.2.1", "node-1", "198.51.100.1", "lb.example.com"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			NewWithT(t).Expect(endpoint.Names(tt.service, nodes, "example.local")).To(ConsistOf(append(tt.besides, always...)))
		})
	}
}

func TestAddress(t *testing.T) {
	for sentence, tt := range map[string]struct {
		service *corev1.Service
		address string
	}{
		"is the cluster IP": {service(corev1.ServiceTypeClusterIP), "172.20.0.1"},
		"is the cluster IP where there are ports at nodes":    {service(corev1.ServiceTypeNodePort), "172.20.0.1"},
		"is the address of the load balancer":                 {service(corev1.ServiceTypeLoadBalancer, balanced("198.51.100.1", "lb.example.com")), "198.51.100.1"},
		"is the name of the load balancer":                    {service(corev1.ServiceTypeLoadBalancer, balanced("", "lb.example.com")), "lb.example.com"},
		"is the first that says something":                    {service(corev1.ServiceTypeLoadBalancer, balanced("", ""), balanced("198.51.100.2", "")), "198.51.100.2"},
		"is not known before the load balancer is":            {service(corev1.ServiceTypeLoadBalancer), ""},
		"is not known of a Service that leads to Pods itself": {service(corev1.ServiceTypeClusterIP, headless), ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			NewWithT(t).Expect(endpoint.Address(tt.service)).To(Equal(tt.address))
		})
	}
}

func TestNameOf(t *testing.T) {
	g := NewWithT(t)
	g.Expect(endpoint.NameOf("demo-x7k2p", "-etcd")).To(Equal("demo-x7k2p-etcd"))
	cluster := &infrav1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}
	g.Expect(endpoint.ServiceName(cluster)).To(Equal("demo-control-plane"))

	long := strings.Repeat("a", 58)
	seen := map[string]bool{}
	for _, name := range []string{long + "1", long + "2", strings.Repeat("b", 200), "demo.a", "demo-a." + long, "1demo", "1demo.a", strings.Repeat("c", 49) + "-" + long} {
		made := endpoint.NameOf(name, "-etcd")
		g.Expect(validation.IsDNS1035Label(made)).To(BeEmpty(), name)
		g.Expect(made).To(HaveSuffix("-etcd"))
		g.Expect(endpoint.NameOf(name, "-etcd")).To(Equal(made), "it stays the same")
		g.Expect(seen).NotTo(HaveKey(made))
		seen[made] = true
	}
}
