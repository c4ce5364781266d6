// Package pods gives clusters whose machines run in Pods what the test bed's
// surroundings ask for: a Talos image that is there, and patches of the machine
// configuration, as a user would give them.
package pods

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/management"
)

const (
	// nodeBits is how much of the cluster's network of Pods a machine uses. All
	// machines use the same part: nothing here is routed between their Pods, and
	// Talos never takes an address of that network for the node's own.
	nodeBits = 24

	strategicPatches = "strategicPatches"
)

// Surroundings are what clusters in Pods need here.
type Surroundings struct {
	// TalosVersion and TalosImage are the release that machines run.
	TalosVersion, TalosImage string
	// Patch is the strategic patch of every machine configuration. network is the
	// part of the cluster's network of Pods that the machine's Pods get.
	Patch func(network netip.Prefix) (string, error)
}

// Repository copies a local repository of clusterctl, with the templates for
// clusters in Pods amended.
func (s Surroundings) Repository(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copying the local repository: %w", err)
	}
	return filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !isTemplate(entry.Name()) {
			return err
		}
		return s.amendFile(path)
	})
}

// isTemplate reports whether a file of a release makes clusters in Pods.
func isTemplate(name string) bool {
	return strings.HasPrefix(name, "cluster-template-") && strings.Contains(name, "container")
}

func (s Surroundings) amendFile(path string) error {
	manifests, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading a template: %w", err)
	}
	amended, err := s.Amend(manifests)
	if err != nil {
		return fmt.Errorf("amending template %s: %w", filepath.Base(path), err)
	}
	if err := os.WriteFile(path, amended, 0o644); err != nil {
		return fmt.Errorf("writing a template: %w", err)
	}
	return nil
}

// Amend adds what is needed to manifests of a cluster, or to a template of such:
// the variables of a template stay what they are.
func (s Surroundings) Amend(manifests []byte) ([]byte, error) {
	objects, err := management.Objects(hideFlow(manifests))
	if err != nil {
		return nil, err
	}
	network, err := podNetwork(objects)
	if err != nil {
		return nil, err
	}
	patch, err := s.Patch(network)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for _, object := range objects {
		if err := s.amend(object, patch); err != nil {
			return nil, fmt.Errorf("amending %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("writing %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		fmt.Fprintf(&all, "---\n%s", text)
	}
	return showFlow(all.Bytes()), nil
}

var (
	// flow is a mapping of a template that a variable stands for, or ends with: it is
	// YAML only once that is filled in. hiddenFlow is what it is read as.
	flow       = regexp.MustCompile(`([^$])\{((?:[^{}$"\n]|\$\{\w+\})*\$\{\w+:?=[^{}]*\})\}`)
	hiddenFlow = regexp.MustCompile(`['"]?flow-mapping ((?:[^{}'"\n]|\{[^{}]*\})*)['"]?`)
)

func hideFlow(template []byte) []byte {
	return flow.ReplaceAll(template, []byte(`$1"flow-mapping $2"`))
}

func showFlow(template []byte) []byte { return hiddenFlow.ReplaceAll(template, []byte(`{$1}`)) }

func (s Surroundings) amend(object *unstructured.Unstructured, patch string) error {
	switch object.GetKind() {
	case "TalosControlPlane":
		return addPatch(object.Object, patch, "spec", "talosConfigSpec", strategicPatches)
	case "TalosConfigTemplate":
		return addPatch(object.Object, patch, "spec", "template", "spec", strategicPatches)
	case "TalosMachineTemplate":
		return s.setRelease(object.Object, "spec", "template", "spec")
	case "Cluster":
		return s.setVariables(object.Object, patch)
	}
	return nil
}

// addPatch adds a patch behind those that are there.
func addPatch(object map[string]any, patch string, path ...string) error {
	patches, _, err := unstructured.NestedStringSlice(object, path...)
	if err != nil {
		return err
	}
	return unstructured.SetNestedStringSlice(object, append(patches, patch), path...)
}

// setRelease names the Talos release of machines in Pods, and of no others.
func (s Surroundings) setRelease(object map[string]any, path ...string) error {
	container := slices.Concat(path, []string{"container"})
	if _, found, err := unstructured.NestedMap(object, container...); err != nil || !found {
		return err
	}
	return unstructured.SetNestedMap(object, s.release(), slices.Concat(container, []string{"talos"})...)
}

func (s Surroundings) release() map[string]any {
	return map[string]any{"version": s.TalosVersion, "image": s.TalosImage}
}

// setVariables does for a Cluster of a ClusterClass what else the objects of the
// cluster are amended for.
func (s Surroundings) setVariables(object map[string]any, patch string) error {
	topology, found, err := unstructured.NestedMap(object, "spec", "topology")
	if err != nil || !found {
		return err
	}
	variables, _ := topology["variables"].([]any)
	for name, value := range map[string]any{"talosRelease": s.release(), "controlPlanePatches": []any{patch}, "workerPatches": []any{patch}} {
		variables = setVariable(variables, name, value)
	}
	return unstructured.SetNestedSlice(object, variables, "spec", "topology", "variables")
}

// setVariable sets one of the variables of a Cluster.
func setVariable(variables []any, name string, value any) []any {
	for i := range variables {
		if variable, ok := variables[i].(map[string]any); ok && variable["name"] == name {
			variables[i] = map[string]any{"name": name, "value": value}
			return variables
		}
	}
	return append(variables, map[string]any{"name": name, "value": value})
}

// withDefault is a variable of a template with a default.
var withDefault = regexp.MustCompile(`^\$\{\w+:?=(.*)\}$`)

// podNetwork is the part of the cluster's network of Pods that a machine uses.
func podNetwork(objects []*unstructured.Unstructured) (netip.Prefix, error) {
	for _, object := range objects {
		if object.GetKind() != "Cluster" {
			continue
		}
		blocks, _, err := unstructured.NestedStringSlice(object.Object, "spec", "clusterNetwork", "pods", "cidrBlocks")
		if err != nil || len(blocks) == 0 {
			return netip.Prefix{}, fmt.Errorf("looking for the network of Pods of Cluster %s: there is none: %w", object.GetName(), err)
		}
		text := blocks[0]
		if match := withDefault.FindStringSubmatch(text); match != nil {
			text = match[1]
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("reading the network of Pods of Cluster %s: %w", object.GetName(), err)
		}
		return netip.PrefixFrom(prefix.Masked().Addr(), max(nodeBits, prefix.Bits())), nil
	}
	return netip.Prefix{}, fmt.Errorf("looking for the network of Pods: there is no Cluster among %d objects", len(objects))
}
