package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// collectTimeout bounds each look at a management cluster that may be broken.
const collectTimeout = 20 * time.Second

// collectedKinds are written down when something has failed: what people ask
// for first. Secrets are not among them.
var collectedKinds = []string{ //nolint:gochecknoglobals // a constant list
	"clusters.cluster.x-k8s.io", "machines.cluster.x-k8s.io", "machinesets.cluster.x-k8s.io",
	"machinedeployments.cluster.x-k8s.io", "machinehealthchecks.cluster.x-k8s.io",
	"taloscontrolplanes.controlplane.cluster.x-k8s.io", "talosconfigs.bootstrap.cluster.x-k8s.io",
	"talosclusters.infrastructure.cluster.x-k8s.io", "talosmachines.infrastructure.cluster.x-k8s.io",
	"talosmachinetemplates.infrastructure.cluster.x-k8s.io", "taloshosts.infrastructure.cluster.x-k8s.io",
}

// Collect writes what the management cluster knows into files in dir: objects,
// events, and clusters as "clusterctl describe" shows them. It goes on when a
// part of it fails.
func (s *Scenario) Collect(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder for objects: %w", err)
	}
	keep := func(name string, content []byte, err error) error {
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), content, 0o600)
	}
	var failures []error
	for name, args := range map[string][]string{
		"objects.txt":  {"get", strings.Join(collectedKinds, ","), "--all-namespaces", "--output", "wide"},
		"objects.yaml": {"get", strings.Join(collectedKinds, ","), "--all-namespaces", "--output", "yaml"},
		"events.txt":   {"get", "events", "--all-namespaces", "--sort-by", ".lastTimestamp"},
	} {
		ctx, cancel := context.WithTimeout(ctx, collectTimeout)
		content, err := s.Management.kubectl(ctx, args...)
		failures = append(failures, keep(name, content, err))
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	content, err := s.Management.Clusterctl.Run(ctx, nil, "describe", "cluster", s.Cluster, "--namespace", s.Cluster, "--show-conditions", "all")
	return errors.Join(append(failures, keep("describe.txt", content, err))...)
}

// kubectl runs the real one against the management cluster.
func (m Management) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, m.Kubectl, append([]string{"--kubeconfig", m.Kubeconfig}, args...)...) //nolint:gosec // the built tool
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(messages.String()))
	}
	return out.Bytes(), nil
}
