// Package etcds gives tests the programs of etcd that the backup provider runs, and snapshots
// of a real etcd.
package etcds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/capi-talos/capi-talos/test/support/apiserver"
)

// startTimeout is how long an etcd may take to start: the machine may be busy.
const startTimeout = time.Minute

// Programs puts the programs of some releases (3.6) into a folder, under the names by which
// the backup provider knows them. The test bed builds them the first time.
func Programs(ctx context.Context, folder string, releases ...string) error {
	parts := make([]string, 0, len(releases))
	for _, release := range releases {
		parts = append(parts, "etcd-programs-"+release)
	}
	built, err := apiserver.Build(ctx, parts...)
	if err != nil {
		return err
	}
	var failures []error
	for i, release := range releases {
		for _, program := range []string{"etcdutl-" + release, "etcd-" + release} {
			failures = append(failures, os.Symlink(filepath.Join(built[parts[i]], program), filepath.Join(folder, program)))
		}
	}

	return errors.Join(failures...)
}

// Snapshot is what an etcd of a release gives as a snapshot after something was written to
// it. programs is the folder with its program, and folder is for its data.
func Snapshot(ctx context.Context, programs, release, folder string, write func(context.Context, *clientv3.Client) error) (_ []byte, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	endpoint := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, filepath.Join(programs, "etcd-"+release), "--data-dir="+filepath.Join(folder, "data"), //nolint:gosec // G204: it is a part of the test bed.
		"--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint, "--listen-peer-urls=http://127.0.0.1:0", "--unsafe-no-fsync", "--log-level=panic")
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}
	defer func() { _ = client.Close() }()
	started, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// It waits until the server answers.
	if _, err := client.Get(started, "any"); err != nil {
		return nil, fmt.Errorf("waiting for etcd: %w", err)
	}
	if err := write(ctx, client); err != nil {
		return nil, fmt.Errorf("writing to etcd: %w", err)
	}
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("taking a snapshot: %w", err)
	}
	data, err := io.ReadAll(stream)

	return data, errors.Join(err, stream.Close())
}
