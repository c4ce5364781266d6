package vms

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var (
	boot   = flag.Bool("vms", false, "boot virtual machines")
	strict = flag.Bool("strict", false, "fail where there can be no virtual machines, instead of skipping")
)

// patience is how long an emulated machine may take for a boot on a busy machine.
const patience = 20 * time.Minute

// mayBoot skips a test where no virtual machines are to be started, or can be.
func mayBoot(t *testing.T) {
	t.Helper()
	if !*boot {
		t.Skip("virtual machines are started by make test-metal only")
	}
	if reason := Reason(); reason != "" {
		if *strict {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
}

// raise starts what virtual machines need, with further parts.
func raise(t *testing.T, patches func(*Machine) []string, further ...string) *Fleet {
	t.Helper()
	mayBoot(t)
	g := NewWithT(t)
	built, err := parts.Ensure(t.Context(), parts.Print(t.Output()), append(Parts(), further...)...)
	g.Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(t.ArtifactDir(), "vms")
	machines, err := Up(t.Context(), Options{
		Bridge: "capt-vm", Subnet: netip.MustParsePrefix("10.77.0.0/24"), Dir: dir, Built: built, Patches: patches,
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed())
		// A disk takes more than a gibibyte, and tells more than its console only where something
		// went wrong.
		if !t.Failed() {
			remove(t, filepath.Join(dir, "*", "disk-*.img"))
		}
	})
	return machines
}

// remove removes what a pattern fits.
func remove(t *testing.T, pattern string) {
	t.Helper()
	g := NewWithT(t)
	found, err := filepath.Glob(pattern)
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range found {
		g.Expect(os.RemoveAll(path)).To(Succeed())
	}
}

// manage starts a management cluster with our managers, and a client of it.
func manage(t *testing.T) (*management.Stack, client.Client) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	source, err := parts.SourceDir()
	g.Expect(err).NotTo(HaveOccurred())
	dir := filepath.Join(t.ArtifactDir(), "management")
	stack, err := management.Up(ctx, management.StackOptions{
		Dir: dir, Repository: filepath.Join(source, "out", "repository"), Output: t.Output(),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(stack.Stop(context.WithoutCancel(ctx))).To(Succeed())
		// The programs of the managers are those of every test.
		remove(t, filepath.Join(dir, "bin"))
	})
	scheme, err := demo.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	found, err := client.New(stack.Config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return stack, found
}

// workloadClient is a client of a Cluster that is named like its namespace.
func workloadClient(ctx context.Context, management client.Client, cluster string) (client.Client, error) {
	access, err := kubeconfig.FromSecret(ctx, management, client.ObjectKey{Namespace: cluster, Name: cluster})
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(access)
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{})
}

// call calls the Talos API of a machine of a cluster, at an address.
func call(ctx context.Context, bundle *secrets.Bundle, address string, do func(talosclient.Node) error) error {
	credentials, err := bundle.ClientCredentials(secrets.RoleAdmin, time.Now(), time.Hour)
	if err != nil {
		return err
	}
	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Secure(ctx, address, credentials)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	return do(node)
}

// retry says of a host that what is left on it may be wiped.
func retry(ctx context.Context, management client.Client, host *infrav1.TalosHost) error {
	patch := client.MergeFrom(host.DeepCopy())
	host.Annotations = map[string]string{infrav1.HostRetryAnnotation: ""}
	return management.Patch(ctx, host, patch)
}

// TestAMachineBootsOverTheNetwork: firmware, iPXE, kernel and Talos, on a machine that has
// nothing on its disks.
func TestAMachineBootsOverTheNetwork(t *testing.T) {
	machines := raise(t, nil)
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	added, err := machines.Add(ctx, 1)
	g.Expect(err).NotTo(HaveOccurred())
	t.Logf("from power to maintenance mode: %.0f s", time.Since(began).Seconds())

	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Maintenance(ctx, added[0].Address, "")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = node.Close() }()
	g.Expect(node.Version(ctx)).To(Equal(parts.TalosVersion))
	// Talos tells of the loop device with its root file system, too.
	g.Expect(node.Hardware(ctx)).To(And(
		HaveField("SystemUUID", added[0].UUID), HaveField("SerialNumber", "SN1"), HaveField("Platform", "metal"),
		HaveField("Disks", ContainElements(HaveField("Serial", "SN1-0"), HaveField("Serial", "SN1-1"), HaveField("Serial", "SN1-2"))),
		HaveField("Links", ConsistOf(HaveField("HardwareAddress", added[0].MACAddress), HaveField("HardwareAddress", hardwareAddress(1, 1)))),
	))
	g.Expect(machines.Wiped(ctx, added[0])).To(Succeed())
}
