package dockerfleet

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// stateFolder has the configuration of a machine.
const stateFolder = "/system/state"

// volumes are the folders of a machine that last. Docker fills new ones with
// what the image has there.
var volumes = []string{"/var", stateFolder, "/etc/cni", "/etc/kubernetes", "/usr/libexec/kubernetes", "/opt"} //nolint:gochecknoglobals // a constant table

// traces are where a machine of a cluster keeps files, and one that is in no
// cluster has none. A blank machine makes itself a salt and an identity beside
// config.yaml.
var traces = []string{stateFolder + "/config.yaml", "/var/lib/etcd", "/var/lib/kubelet", "/var/log/pods", "/etc/kubernetes"} //nolint:gochecknoglobals // a constant table

// Wiped implements fleet.Fleet: it reads the volumes of the container, past
// Talos.
func (f *Fleet) Wiped(ctx context.Context, host fleet.Host) error {
	m := f.machine(host)
	if m == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Maintenance(ctx, host.Address, "")
	if err != nil {
		return fmt.Errorf("machine %s is not in maintenance mode: %w", host.Name, err)
	}
	defer func() { _ = node.Close() }()
	var found []error
	for _, place := range traces {
		files, err := m.files(ctx, place)
		if err != nil {
			return err
		}
		if len(files) > 0 {
			const enough = 5
			found = append(found, fmt.Errorf("machine %s is not wiped: it has %s", host.Name, strings.Join(files[:min(len(files), enough)], ", ")))
		}
	}
	return errors.Join(found...)
}

// files lists the files of a place of the machine: a file, or those below a
// folder. It may be missing.
func (m *machine) files(ctx context.Context, place string) ([]string, error) {
	out, err := m.docker(ctx, "cp", m.container+":"+place, "-")
	if err != nil && isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking into %s of machine %s: %w", place, m.host.Name, err)
	}
	var files []string
	archive := tar.NewReader(bytes.NewReader(out))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("looking into %s of machine %s: %w", place, m.host.Name, err)
		}
		if header.Typeflag != tar.TypeDir {
			files = append(files, path.Join(path.Dir(place), header.Name))
		}
	}
}

// isMissing reports whether Docker found no such file; it has two ways to say so.
func isMissing(err error) bool {
	return strings.Contains(err.Error(), "Could not find the file") || strings.Contains(err.Error(), "No such container:path")
}
