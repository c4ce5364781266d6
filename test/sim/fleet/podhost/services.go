package podhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
)

// proxy is kube-proxy, and the balancer of Services of type LoadBalancer. It listens
// at the addresses of the latter. Cluster IPs are only known to lead somewhere:
// etcd of pretended machines is no process, and nothing else asks for them.
type proxy struct {
	changed func()

	mu sync.Mutex
	// routes lead from the address and port of a Service to those of its Pods.
	routes  map[string][]string
	serving map[string]*balancer.Balancer
	closed  bool
}

func newProxy() *proxy {
	return &proxy{routes: map[string][]string{}, serving: map[string]*balancer.Balancer{}}
}

// routesTo are the Pods behind an address of a Service.
func (p *proxy) routesTo(address string, port int) []string {
	var found []string
	for _, target := range p.targets(net.JoinHostPort(address, strconv.Itoa(port))) {
		found = append(found, hostOf(target))
	}
	return found
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	return host
}

func (p *proxy) targets(of string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.routes[of])
}

// set replaces all routes, and listens where one begins.
func (p *proxy) set(ctx context.Context, routes map[string][]string) error {
	p.mu.Lock()
	p.routes = routes
	var ended []*balancer.Balancer
	for from, one := range p.serving {
		if _, is := routes[from]; !is {
			ended = append(ended, one)
			delete(p.serving, from)
		}
	}
	var missing []string
	for from := range routes {
		if p.serving[from] == nil && !p.closed && net.ParseIP(hostOf(from)).IsLoopback() {
			missing = append(missing, from)
		}
	}
	p.mu.Unlock()
	for _, one := range ended {
		_ = one.Close()
	}
	for _, from := range missing {
		if err := p.serve(ctx, from); err != nil {
			return err
		}
	}
	p.changed()
	return nil
}

func (p *proxy) serve(ctx context.Context, from string) error {
	host, port, err := net.SplitHostPort(from)
	if err != nil {
		return fmt.Errorf("reading an address of a Service: %w", err)
	}
	started, err := balancer.Start(ctx, balancer.Options{Host: host, Port: port, Targets: func() []string { return p.targets(from) }})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serving[from] = started
	return nil
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	all := p.serving
	p.serving = map[string]*balancer.Balancer{}
	p.mu.Unlock()
	for _, one := range all {
		_ = one.Close()
	}
}

// runProxy sets up what stands for kube-proxy: at each change all is looked at.
func (h *Host) runProxy(manager ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []ctrl.Request { return []ctrl.Request{{}} })
	return ctrl.NewControllerManagedBy(manager).Named("proxy").
		Watches(&corev1.Service{}, all).Watches(&corev1.Pod{}, all).
		Complete(reconcile.Func(h.syncServices))
}

func (h *Host) syncServices(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	services := &corev1.ServiceList{}
	if err := h.client.List(ctx, services); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing Services: %w", err)
	}
	routes := map[string][]string{}
	for i := range services.Items {
		service := &services.Items[i]
		if len(service.Spec.Selector) == 0 || service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone || service.DeletionTimestamp != nil {
			continue
		}
		if err := h.balance(ctx, service); err != nil {
			return ctrl.Result{}, err
		}
		pods := &corev1.PodList{}
		if err := h.client.List(ctx, pods, client.InNamespace(service.Namespace), client.MatchingLabelsSelector{Selector: labels.SelectorFromSet(service.Spec.Selector)}); err != nil {
			return ctrl.Result{}, fmt.Errorf("listing Pods: %w", err)
		}
		addresses := []string{service.Spec.ClusterIP}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			addresses = append(addresses, ingress.IP)
		}
		for _, port := range service.Spec.Ports {
			for _, address := range addresses {
				routes[net.JoinHostPort(address, strconv.Itoa(int(port.Port)))] = behind(service, port, pods.Items)
			}
		}
	}
	return ctrl.Result{}, h.proxy.set(ctx, routes)
}

// behind are the Pods at which arrives what is sent to a port of a Service.
func behind(service *corev1.Service, port corev1.ServicePort, pods []corev1.Pod) []string {
	target := port.TargetPort.IntValue()
	if port.TargetPort == (intstr.IntOrString{}) {
		target = int(port.Port)
	}
	var found []string
	for i := range pods {
		if pods[i].Status.PodIP != "" && pods[i].DeletionTimestamp == nil && (service.Spec.PublishNotReadyAddresses || isReady(&pods[i])) {
			found = append(found, net.JoinHostPort(pods[i].Status.PodIP, strconv.Itoa(target)))
		}
	}
	return found
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}

// balance gives a Service of type LoadBalancer its address, as the controller of
// a cloud does. Those of another class are left to others.
func (h *Host) balance(ctx context.Context, service *corev1.Service) error {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.Spec.LoadBalancerClass != nil || len(service.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	address, err := h.balancerAddress(client.ObjectKeyFromObject(service))
	if err != nil {
		return err
	}
	changed := service.DeepCopy()
	changed.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	if err := h.client.Status().Patch(ctx, changed, client.MergeFrom(service)); err != nil {
		return fmt.Errorf("telling the address of Service %s: %w", service.Name, err)
	}
	service.Status = changed.Status
	return nil
}

// MoveBalancer has the next Service of a name get another address.
func (h *Host) MoveBalancer(key client.ObjectKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.balanced, key)
}

// balancerAddress is one that no Pod has. It is kept for the name of the Service, as
// one that was reserved.
func (h *Host) balancerAddress(of client.ObjectKey) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.balanced[of]; known != "" {
		return known, nil
	}
	const last = 253
	for number := firstSpare + nodes; number <= last; number++ {
		if !h.taken[number] {
			h.taken[number] = true
			h.balanced[of] = h.subnet.Address(number)
			return h.balanced[of], nil
		}
	}
	return "", errors.New("no address is left for a load balancer")
}
