package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/capi-talos/capi-talos/test/fleet"
)

// Cluster is what a cluster is generated of.
type Cluster struct {
	// Namespace is where it is, Name its name; empty means the namespace's.
	Namespace, Name string
	// Flavor is the template; empty means metal.
	Flavor string
	// ControlPlanes and Workers are the numbers of machines.
	ControlPlanes, Workers int
	// Variables are further ones of the template.
	Variables map[string]string
}

// Generate has the real clusterctl make the manifests of a cluster, whose
// endpoint is one of the fleet.
func (w *World) Generate(ctx context.Context, machines fleet.Fleet, cluster Cluster) ([]byte, error) {
	if cluster.Name == "" {
		cluster.Name = cluster.Namespace
	}
	if cluster.Flavor == "" {
		cluster.Flavor = "metal"
	}
	endpoint, err := machines.Endpoint(ctx, cluster.Name)
	if err != nil {
		return nil, fmt.Errorf("reserving an endpoint: %w", err)
	}
	variables := map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": endpoint.Host, "CONTROL_PLANE_ENDPOINT_PORT": strconv.Itoa(int(endpoint.Port))}
	maps.Copy(variables, cluster.Variables)
	return w.Stack.Clusterctl.Generate(ctx, cluster.Name, variables,
		"--infrastructure", "talos", "--flavor", cluster.Flavor, "--target-namespace", cluster.Namespace, "--kubernetes-version", machines.KubernetesVersion(),
		"--control-plane-machine-count", strconv.Itoa(cluster.ControlPlanes), "--worker-machine-count", strconv.Itoa(cluster.Workers))
}

// Objects reads manifests.
func Objects(manifests []byte) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), len(manifests))
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		if len(object.Object) > 0 {
			found = append(found, object)
		}
	}
}

// Kubectl runs the real one as an administrator. What it says on its error output
// is in the error when it fails.
func (w *World) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.Stack.Built.Path("kubectl"), append([]string{"--kubeconfig", w.Stack.Kubeconfig}, args...)...) //nolint:gosec // the built tool
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(w.Stack.Dir, "home"), "NO_PROXY=*"}
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("running kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(messages.String()))
	}
	return out.String(), nil
}
