package vms

import (
	"context"
	"flag"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var (
	boot   = flag.Bool("vms", false, "boot virtual machines")
	strict = flag.Bool("strict", false, "fail where there can be no virtual machines, instead of skipping")
)

// patience is how long an emulated machine may take for a boot on a busy machine.
const patience = 20 * time.Minute

// raise starts what virtual machines need.
func raise(t *testing.T, patches func(*Machine) []string) *Fleet {
	t.Helper()
	g := NewWithT(t)
	if !*boot {
		t.Skip("virtual machines are started by make test-metal only")
	}
	if reason := Reason(); reason != "" {
		if *strict {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	built, err := parts.Ensure(t.Context(), parts.Print(t.Output()), Parts()...)
	g.Expect(err).NotTo(HaveOccurred())
	machines, err := Up(t.Context(), Options{
		Bridge: "capt-vm", Subnet: netip.MustParsePrefix("10.77.0.0/24"), Dir: filepath.Join(t.ArtifactDir(), "vms"), Built: built, Patches: patches,
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	return machines
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
