// Command kindnetd is the network daemon of kind's nodes where kind's own image
// cannot be pulled. It runs under the same image name from the same manifest:
// it writes the CNI configuration for the pod network of its node, keeps routes to the pod
// networks of the others, and enforces network policies. It knows IPv4 only, which is all the
// test bed needs.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// configuration is the CNI configuration with a place for the pod network.
	configuration = `{
  "cniVersion": "0.4.0",
  "name": "kindnet",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": true,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": "%s"}]]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`
	// configurationFile is where the node's container runtime looks for it.
	configurationFile = "/etc/cni/net.d/10-kindnet.conflist"
	// period is how often the nodes are looked at.
	period = 2 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("Ending", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("reading the pod's access to the API server: %w", err)
	}
	// Services do not work before the network does, so the API server is
	// reached directly.
	if endpoint := os.Getenv("CONTROL_PLANE_ENDPOINT"); endpoint != "" {
		config.Host = "https://" + endpoint
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := enforce(ctx, client); err != nil {
		return err
	}
	node := &node{ip: os.Getenv("HOST_IP")}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if err := node.sync(ctx, client); err != nil {
			slog.Error("Setting up the pod network", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// node is the node that this daemon serves.
type node struct {
	ip      string
	written string
}

func (n *node) sync(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		other := &nodes.Items[i]
		ip := internalIP(other)
		switch {
		case ip == "" || other.Spec.PodCIDR == "":
		case ip == n.ip:
			err = n.configure(other.Spec.PodCIDR)
		default:
			err = route(other.Spec.PodCIDR, ip)
		}
		if err != nil {
			return fmt.Errorf("node %s: %w", other.Name, err)
		}
	}
	return nil
}

// configure writes the CNI configuration, in one step, when it is not what was
// written last.
func (n *node) configure(podNetwork string) error {
	if n.written == podNetwork {
		return nil
	}
	temporary := filepath.Join(filepath.Dir(configurationFile), ".kindnet")
	if err := os.WriteFile(temporary, fmt.Appendf(nil, configuration, podNetwork), 0o644); err != nil { //nolint:gosec // every user may read it
		return fmt.Errorf("writing the CNI configuration: %w", err)
	}
	if err := os.Rename(temporary, configurationFile); err != nil {
		return fmt.Errorf("putting the CNI configuration in place: %w", err)
	}
	n.written = podNetwork
	return nil
}

func route(podNetwork, gateway string) error {
	_, destination, err := net.ParseCIDR(podNetwork)
	if err != nil {
		return fmt.Errorf("reading its pod network: %w", err)
	}
	if err := netlink.RouteReplace(&netlink.Route{Dst: destination, Gw: net.ParseIP(gateway)}); err != nil {
		return fmt.Errorf("setting the route to its pod network: %w", err)
	}
	return nil
}

func internalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}
