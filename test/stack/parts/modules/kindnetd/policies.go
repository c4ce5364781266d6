package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	"github.com/coreos/go-iptables/iptables"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// rulesPeriod is how often the rules are written anew, beside changes.
const rulesPeriod = time.Minute

// enforce has network policies enforced for the pods of this node by kube-router's library, as
// k3s has: with iptables and ipset. That of kind's own daemon wants a kernel with the queues
// of nftables.
func enforce(ctx context.Context, client kubernetes.Interface) error {
	config := options.NewKubeRouterConfig()
	config.EnableIPv4 = true
	config.IPTablesSyncPeriod = rulesPeriod
	tables, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4))
	if err != nil {
		return fmt.Errorf("looking for iptables: %w", err)
	}
	sets, err := utils.NewIPSet(false)
	if err != nil {
		return fmt.Errorf("looking for ipset: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &sync.Mutex{},
		map[corev1.IPFamily]utils.IPTablesHandler{corev1.IPv4Protocol: tables}, map[corev1.IPFamily]utils.IPSetHandler{corev1.IPv4Protocol: sets})
	if err != nil {
		return fmt.Errorf("making the controller of network policies: %w", err)
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods: controller.PodEventHandler, policies: controller.NetworkPolicyEventHandler, namespaces: controller.NamespaceEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching what policies are about: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	health := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range health { // Nobody asks for it.
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(health, ctx.Done(), &running)
	return nil
}
