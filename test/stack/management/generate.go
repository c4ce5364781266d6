package management

import (
	"bytes"
	"cmp"
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

	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// Shape is what a cluster is generated of.
type Shape struct {
	// Namespace is where it is, Name its name; empty means the namespace's.
	Namespace, Name string
	// Flavor is the template; empty means metal.
	Flavor string
	// Version is that of Kubernetes; empty means the fleet's.
	Version string
	// ControlPlanes and Workers are the numbers of machines.
	ControlPlanes, Workers int
	// Variables are further ones of the template.
	Variables map[string]string
}

// Generate has the real clusterctl make the manifests of a cluster, whose
// endpoint is one of the fleet.
func (s *Stack) Generate(ctx context.Context, machines fleet.Fleet, shape Shape) ([]byte, error) {
	name := cmp.Or(shape.Name, shape.Namespace)
	endpoint, err := machines.Endpoint(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("reserving an endpoint: %w", err)
	}
	variables := map[string]string{
		"CONTROL_PLANE_ENDPOINT_HOST": endpoint.Host, "CONTROL_PLANE_ENDPOINT_PORT": strconv.Itoa(int(endpoint.Port)),
		"TALOS_VERSION": fleet.Contract(machines),
	}
	maps.Copy(variables, shape.Variables)
	return s.Clusterctl.Generate(ctx, name, variables,
		"--infrastructure", "talos", "--flavor", cmp.Or(shape.Flavor, "metal"), "--target-namespace", shape.Namespace,
		"--kubernetes-version", cmp.Or(shape.Version, machines.KubernetesVersion()),
		"--control-plane-machine-count", strconv.Itoa(shape.ControlPlanes), "--worker-machine-count", strconv.Itoa(shape.Workers))
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
func (s *Stack) Kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.Built.Path("kubectl"), append([]string{"--kubeconfig", s.Kubeconfig}, args...)...) //nolint:gosec // the built tool
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(s.Dir, "home"), "NO_PROXY=*"}
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("running kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(messages.String()))
	}
	return out.String(), nil
}
