// Package integration is rung 2: the real kube-apiserver, etcd and Cluster API
// core, our managers as processes under their shipped rights, and talossim in
// place of machines.
package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc/grpclog"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// timeout is how long the tests wait for what takes seconds on an idle machine.
const timeout = 3 * time.Minute

// world is the management cluster that all tests share. They run one after the
// other, each in namespaces and with a fleet of its own.
var world struct {
	stack  *management.Stack
	client client.Client
}

func TestMain(m *testing.M) {
	// What these libraries log of machines that do not answer is no news here.
	ctrl.SetLogger(logr.Discard())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	if err := run(m); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(m *testing.M) (err error) {
	ctx := context.Background()
	source, err := parts.SourceDir()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "capi-talos-integration-")
	if err != nil {
		return err
	}
	world.stack, err = management.Up(ctx, management.StackOptions{
		Dir: dir, Repository: filepath.Join(source, "out", "repository"), Race: os.Getenv("RACE") != "", Output: os.Stdout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.stack.Stop(ctx)) }()
	scheme, err := demo.Scheme()
	if err != nil {
		return err
	}
	if world.client, err = client.New(world.stack.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if code := m.Run(); code != 0 {
		return fmt.Errorf("tests have failed; logs are in %s", dir)
	}
	if err := checkLogs(world.stack.LogDir()); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// checkLogs fails for a right that a manager lacked, and for a data race.
func checkLogs(dir string) error {
	var failures []error
	for _, manager := range []string{management.Bootstrap, management.ControlPlane, management.Infrastructure} {
		content, err := os.ReadFile(filepath.Join(dir, manager+".log"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, "is forbidden: User") || strings.Contains(line, "DATA RACE") || strings.Contains(line, "panic") {
				failures = append(failures, fmt.Errorf("%s: %s", manager, strings.TrimSpace(line)))
			}
		}
	}
	const enough = 10
	return errors.Join(failures[:min(len(failures), enough)]...)
}

// newFleet is a fleet of pretended machines that ends with the test.
func newFleet(t *testing.T, options simfleet.Options) *simfleet.Fleet {
	t.Helper()
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), options)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	return machines
}

// forgetHosts deletes the hosts of a namespace at the end of a test: the machines
// are gone then, and would be looked for for ever.
func forgetHosts(t *testing.T, namespace string) {
	t.Helper()
	t.Cleanup(func() {
		NewWithT(t).Expect(world.client.DeleteAllOf(context.WithoutCancel(t.Context()), &infrav1.TalosHost{}, client.InNamespace(namespace))).To(Succeed())
	})
}

// newScenario is the main job in a namespace of its own.
func newScenario(t *testing.T, machines *simfleet.Fleet, name string) *demo.Scenario {
	t.Helper()
	forgetHosts(t, name)
	return &demo.Scenario{
		Management: demo.Management{
			Config: world.stack.Config, Kubeconfig: world.stack.Kubeconfig, Clusterctl: world.stack.Clusterctl,
			Kubectl: world.stack.Built.Path("kubectl"), Check: world.stack.Check,
		},
		Fleet: machines, Cluster: name, Output: t.Output(), Dir: t.TempDir(),
	}
}
