// Package docker is the Docker that the test bed uses: the user's own, or, as
// root on a bare Debian machine, one that is installed and started here. All
// that only such machines need is in this package.
package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

// stopDelay is how long a tool that was told to end may take for it.
const stopDelay = 10 * time.Second

// Options say how to get at Docker.
type Options struct {
	// Output is told what is done to the machine, a line each.
	Output io.Writer
	// Wrapper is the runtime of containers on machines without CAP_SYS_RESOURCE:
	// part "runtime-wrapper". It is not used on others.
	Wrapper string
	// Confined reports whether nothing outside of this machine can be reached, so a
	// daemon that is started here need not try.
	Confined bool
	// Log is the file for what the daemon says, when it is started here.
	Log string
}

// Daemon is a Docker that answers.
type Daemon struct {
	// Path is the command line tool.
	Path string

	output io.Writer
	// own is the daemon that was started here; nil for the user's.
	own *ownDaemon
}

// Reason tells why there can be no Docker on this machine; it is empty when
// there is one, or Ensure can get one.
func Reason(ctx context.Context) string {
	if answers(ctx) == nil {
		return ""
	}
	if os.Geteuid() != 0 {
		return "Docker does not answer, and only root can start it"
	}
	if installed() {
		return ""
	}
	if !debian.Possible() {
		return "Docker is not installed, and this is not a Debian machine"
	}
	return ""
}

// Ensure finds the Docker of the user, or else installs and starts one, which
// only root can on a Debian machine.
func Ensure(ctx context.Context, options Options) (*Daemon, error) {
	if answers(ctx) == nil {
		return found(ctx, options, nil)
	}
	if reason := Reason(ctx); reason != "" {
		return nil, errors.New(reason)
	}
	if !installed() {
		fmt.Fprintln(options.Output, "installing Docker (apt-get install docker.io)")
		if err := debian.Install(ctx, "docker.io", "iptables", "iproute2"); err != nil {
			return nil, err
		}
		// Where there is an init system, the package has started it.
		if answers(ctx) == nil {
			return found(ctx, options, nil)
		}
	}
	fmt.Fprintln(options.Output, "starting Docker")
	own, err := startDaemon(ctx, options, machine.Look())
	if err != nil {
		return nil, err
	}
	return found(ctx, options, own)
}

func found(ctx context.Context, options Options, own *ownDaemon) (*Daemon, error) {
	path, err := client(ctx)
	if err != nil {
		return nil, err
	}
	return &Daemon{Path: path, output: options.Output, own: own}, nil
}

// client picks the first docker program of the search path that is not newer
// than the daemon: a newer one refuses to give a container a hardware address
// with an older daemon. Without such a one it is the first of all.
func client(ctx context.Context) (string, error) {
	first, err := exec.LookPath("docker")
	if err != nil {
		return "", fmt.Errorf("looking for the docker program: %w", err)
	}
	for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
		path, err := exec.LookPath(filepath.Join(folder, "docker"))
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "version", "--format", "{{.Client.DefaultAPIVersion}} {{.Server.APIVersion}}").Output() //nolint:gosec // the user's tool
		if versions := strings.Fields(string(out)); err == nil && len(versions) == 2 && !newer(versions[0], versions[1]) {
			return path, nil
		}
	}
	return first, nil
}

// newer compares versions of Docker's API, such as 1.41.
func newer(a, b string) bool {
	minor := func(version string) int {
		_, text, _ := strings.Cut(version, ".")
		number, _ := strconv.Atoi(text)
		return number
	}
	return minor(a) > minor(b)
}

// installed reports whether both programs are there.
func installed() bool {
	_, client := exec.LookPath("docker")
	_, daemon := exec.LookPath("dockerd")
	return client == nil && daemon == nil
}

// answers asks the daemon for its version.
func answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopDelay)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version").Run()
}

// Docker runs the command line tool and returns what it prints. What it says
// on its error output is in the error when it fails.
func (d *Daemon) Docker(ctx context.Context, args ...string) ([]byte, error) {
	return d.run(ctx, nil, args...)
}

// Logs are what a container has written, to both of its outputs. Talos writes its
// console to its error output.
func (d *Daemon) Logs(ctx context.Context, container string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.Path, "logs", container) //nolint:gosec // the user's tool
	cmd.WaitDelay = stopDelay
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("running docker logs: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return out, nil
}

func (d *Daemon) run(ctx context.Context, input io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.Path, args...) //nolint:gosec // the user's tool
	var out, messages bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &out, &messages
	cmd.WaitDelay = stopDelay
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running docker %s: %w: %s", args[0], err, strings.TrimSpace(messages.String()))
	}
	return out.Bytes(), nil
}

// Load puts images into Docker that it does not have yet.
func (d *Daemon) Load(ctx context.Context, all ...*images.Image) error {
	for _, image := range all {
		id, err := d.Docker(ctx, "image", "inspect", "--format", "{{.Id}}", image.Name)
		if err == nil && strings.TrimSpace(string(id)) == image.ID() {
			continue
		}
		reader, writer := io.Pipe()
		go func() { _ = writer.CloseWithError(image.Archive(writer)) }()
		_, err = d.run(ctx, reader, "load", "--quiet")
		_ = reader.Close()
		if err != nil {
			return fmt.Errorf("loading image %s: %w", image.Name, err)
		}
	}
	return nil
}

// Stop ends the daemon, when it was started here, and gives the machine its
// packet filter back. Images stay on the disk for the next run. It may be called
// twice.
func (d *Daemon) Stop(ctx context.Context) error {
	if d.own == nil {
		return nil
	}
	own := d.own
	d.own = nil
	if others, err := d.Docker(ctx, "ps", "--quiet"); err == nil && len(others) > 0 {
		fmt.Fprintln(d.output, "leaving Docker running: others have containers there")
		return nil
	}
	return own.stop(ctx)
}
