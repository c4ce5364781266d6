// Package kind makes clusters of kind that have all of their images already:
// nothing is pulled.
package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
)

const (
	// stopDelay is how long kind may take to end when it is told to.
	stopDelay = 10 * time.Second
	// createWait is how long the node may take to be ready.
	createWait = "180s"
)

// Options are what a cluster is made of.
type Options struct {
	// Name is its name, Network the network in Docker that it joins.
	Name, Network string
	// Program is kind, Docker the docker program that it is to use.
	Program, Docker string
	// Image is the image of its node. Docker has it.
	Image string
	// Dir is the folder for the kubeconfig and for archives of images.
	Dir string
}

// Cluster is a cluster of one node.
type Cluster struct {
	// Kubeconfig is an administrator's. It works on this machine.
	Kubeconfig string

	options Options
}

// Create makes a cluster and waits for its node.
func Create(ctx context.Context, options Options) (*Cluster, error) {
	if err := os.MkdirAll(options.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the cluster: %w", err)
	}
	c := &Cluster{Kubeconfig: filepath.Join(options.Dir, "kubeconfig"), options: options}
	if err := c.run(ctx, "create", "cluster", "--image", options.Image, "--kubeconfig", c.Kubeconfig, "--wait", createWait); err != nil {
		return nil, errors.Join(err, c.Delete(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Existing is a cluster that another process has created with the same options.
func Existing(options Options) *Cluster {
	return &Cluster{Kubeconfig: filepath.Join(options.Dir, "kubeconfig"), options: options}
}

// Load puts images into the node.
func (c *Cluster) Load(ctx context.Context, all ...*images.Image) error {
	args := []string{"load", "image-archive"}
	for number, image := range all {
		archive := filepath.Join(c.options.Dir, "image-"+strconv.Itoa(number)+".tar")
		defer func() { _ = os.Remove(archive) }()
		file, err := os.Create(archive)
		if err != nil {
			return fmt.Errorf("making an archive of image %s: %w", image.Name, err)
		}
		if err := errors.Join(image.Archive(file), file.Close()); err != nil {
			return err
		}
		args = append(args, archive)
	}
	return c.run(ctx, args...)
}

// CollectLogs writes the logs of the node and its containers into a folder.
func (c *Cluster) CollectLogs(ctx context.Context, dir string) error {
	return c.run(ctx, "export", "logs", dir)
}

// Delete removes the cluster. It may be called twice.
func (c *Cluster) Delete(ctx context.Context) error {
	return c.run(ctx, "delete", "cluster", "--kubeconfig", c.Kubeconfig)
}

func (c *Cluster) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.options.Program, append(args, "--name", c.options.Name)...) //nolint:gosec // the built tool
	cmd.Env = append(os.Environ(),
		"KIND_EXPERIMENTAL_PROVIDER=docker", "KIND_EXPERIMENTAL_DOCKER_NETWORK="+c.options.Network,
		"PATH="+filepath.Dir(c.options.Docker)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running kind %s %s: %w\n%s", args[0], args[1], err, strings.TrimSpace(string(out)))
	}
	return nil
}
