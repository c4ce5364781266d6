// The podnetwork program is a CNI as small as one can be: on each node it writes down
// where the plugins of CNI find the node's addresses of Pods. Pods of one node reach each
// other, which is all that the tests need. Its DaemonSet is in a chart of the tests.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// file is where the container runtime looks for a network, below the folder that
	// the DaemonSet mounts.
	file = "/etc/cni/net.d/10-podnetwork.conflist"
	// period is how often the node is asked for its addresses until it has some.
	period = time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv("API_SERVER"), os.Getenv("NODE_NAME"))
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "podnetwork: %v\n", err)
		os.Exit(1)
	}
}

// run writes the file, and stays until it is told to end, as a DaemonSet has to.
func run(ctx context.Context, apiServer, node string) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("reading the access of the Pod: %w", err)
	}
	// Services need a network.
	config.Host = "https://" + apiServer
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	subnet := ""
	if err := wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		found, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			fmt.Fprintf(os.Stderr, "podnetwork: reading node %s: %v\n", node, err)
			return false, nil
		}
		subnet = found.Spec.PodCIDR
		return subnet != "", nil
	}); err != nil {
		return err
	}
	if err := write(file, subnet); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// write puts the file in place in one step.
func write(file, subnet string) error {
	type object = map[string]any
	content, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "podnetwork",
		"plugins": []object{{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": object{
				"type":   "host-local",
				"ranges": [][]object{{{"subnet": subnet}}},
				"routes": []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return fmt.Errorf("describing the network: %w", err)
	}
	unfinished := filepath.Join(filepath.Dir(file), ".podnetwork")
	if err := errors.Join(os.WriteFile(unfinished, content, 0o600), os.Rename(unfinished, file)); err != nil {
		return fmt.Errorf("writing the network: %w", err)
	}
	return nil
}
