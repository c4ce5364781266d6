package kindstack

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/nodes"
)

// kindNetworks are what kind gives its Pods and Services by default.
var kindNetworks = []string{"10.244.0.0/16", "10.96.0.0/16"} //nolint:gochecknoglobals // a constant table

// NodeContainer is the container in Docker that is the node of a cluster in kind.
func NodeContainer(cluster string) string { return cluster + "-control-plane" }

// Reach leads this machine to the Services and Pods of a cluster in kind, by way
// of its node: the endpoint of a cluster in Pods is a Service, and who looks at
// such a cluster from here must get there. The routes go with the network of the
// nodes.
func Reach(ctx context.Context, around *nodes.Nodes, cluster string) error {
	out, err := around.Docker.Docker(ctx, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", NodeContainer(cluster))
	if err != nil {
		return fmt.Errorf("asking for the address of the node of kind: %w", err)
	}
	node, err := netip.ParseAddr(strings.TrimSpace(string(out)))
	if err != nil {
		return fmt.Errorf("asking for the address of the node of kind: %w", err)
	}
	for _, network := range kindNetworks {
		// Not "replace": a route of the user's stays what it is.
		args := []string{"route", "add", network, "via", node.String(), "dev", around.Network.Bridge}
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil { //nolint:gosec // addresses of ours
			return fmt.Errorf("leading this machine to %s of kind: %w: %s", network, err, out)
		}
	}
	return nil
}
