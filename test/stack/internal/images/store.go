package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// storeConfig leaves out of containerd all but the store.
	storeConfig = `version = 3
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
`
	storeStart = 30 * time.Second
	storeRetry = 100 * time.Millisecond
)

// Store is the image store of a containerd that does not run.
type Store struct {
	// Programs is the folder with containerd and ctr.
	Programs string
	// Root is the folder of the store.
	Root string
	// Scratch is a folder for what is needed meanwhile.
	Scratch string
}

// Import puts images into the store, where kubelet finds them and never removes
// them. They are unpacked when they are first used. It runs containerd for the
// purpose, which only root can.
func (s Store) Import(ctx context.Context, all []*Image) (err error) {
	config := filepath.Join(s.Scratch, "store.toml")
	if err := os.WriteFile(config, []byte(storeConfig), Data); err != nil {
		return fmt.Errorf("writing containerd's configuration: %w", err)
	}
	// The path of a socket must be short.
	folder, err := os.MkdirTemp("", "store-")
	if err != nil {
		return fmt.Errorf("making a folder for containerd's socket: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	socket := filepath.Join(folder, "s.sock")
	var log bytes.Buffer
	daemon := exec.CommandContext(ctx, filepath.Join(s.Programs, "containerd"), //nolint:gosec // built here
		"--config", config, "--root", s.Root, "--state", filepath.Join(folder, "state"), "--address", socket)
	daemon.Stdout, daemon.Stderr = &log, &log
	daemon.Cancel = func() error { return daemon.Process.Signal(syscall.SIGTERM) }
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("starting containerd: %w", err)
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		if waitErr := daemon.Wait(); waitErr != nil && err == nil {
			err = fmt.Errorf("ending containerd: %w: %s", waitErr, log.Bytes())
		}
	}()
	if err := waitForSocket(ctx, socket); err != nil {
		return err
	}
	for _, image := range all {
		if err := s.importOne(ctx, socket, image); err != nil {
			return err
		}
	}
	return nil
}

func (s Store) importOne(ctx context.Context, socket string, image *Image) error {
	archive := filepath.Join(s.Scratch, "import.tar")
	file, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("making an archive: %w", err)
	}
	defer func() { _ = os.Remove(archive) }()
	if err := errors.Join(image.Archive(file), file.Close()); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(s.Programs, "ctr"), "--address", socket, "--namespace", "k8s.io", //nolint:gosec // built here
		"images", "import", "--label=io.cri-containerd.pinned=pinned", "--all-platforms", "--no-unpack", "--digests", "--local", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("importing image %s: %w: %s", image.Name, err, out)
	}
	return nil
}

func waitForSocket(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, storeStart)
	defer cancel()
	ticker := time.NewTicker(storeRetry)
	defer ticker.Stop()
	for {
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			return connection.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for containerd: %w", err)
		case <-ticker.C:
		}
	}
}
