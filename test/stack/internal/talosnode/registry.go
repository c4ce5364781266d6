package talosnode

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

const (
	registryStart = 30 * time.Second
	registryRetry = 50 * time.Millisecond
)

// Registry is a registry that runs on this machine.
type Registry struct {
	// Address is its host and port.
	Address string

	process *process.Process
}

// StartRegistry starts a registry at an address with images. storage is the
// folder for what it holds: images that are there from an earlier run are not
// copied again. dir is for its configuration and log.
func StartRegistry(ctx context.Context, program, address, storage, dir string, all []*images.Image) (_ *Registry, err error) {
	config, err := yaml.Marshal(map[string]any{
		"version": "0.1",
		"log":     map[string]any{"level": "warn", "accesslog": map[string]any{"disabled": true}},
		"storage": map[string]any{"filesystem": map[string]any{"rootdirectory": storage}},
		"http":    map[string]any{"addr": address},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the configuration of the registry: %w", err)
	}
	file := filepath.Join(dir, "registry.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return nil, fmt.Errorf("writing the configuration of the registry: %w", err)
	}
	started, err := process.Start(process.Command{
		Name: "registry", Path: program, Args: []string{"serve", file}, Log: filepath.Join(dir, "registry.log"),
		Env: []string{"OTEL_TRACES_EXPORTER=none"},
	})
	if err != nil {
		return nil, err
	}
	registry := &Registry{Address: address, process: started}
	defer func() {
		if err != nil {
			_ = started.Kill()
		}
	}()
	if err := registry.await(ctx); err != nil {
		return nil, err
	}
	return registry, registry.Push(ctx, all)
}

// Push copies images into the registry. Those that are there are not copied
// again.
func (r *Registry) Push(ctx context.Context, all []*images.Image) error {
	for _, image := range all {
		if err := image.Push(ctx, r.Address); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, registryStart)
	defer cancel()
	ticker := time.NewTicker(registryRetry)
	defer ticker.Stop()
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.Address)
		if err == nil {
			return connection.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the registry: %w", err)
		case <-r.process.Exited():
			return r.process.Err()
		case <-ticker.C:
		}
	}
}

// Stop ends the registry. What it holds stays.
func (r *Registry) Stop(ctx context.Context) error {
	return r.process.Stop(ctx, process.DefaultGrace)
}
