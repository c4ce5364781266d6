// Package vms runs virtual machines that boot real Talos over the network and from their
// disks: rung 3b of the tests. What a machine is made of (QEMU, firmware, kernel, Talos) are
// parts of the test bed.
package vms

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/talosnode"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

const (
	// maxMachines is how many machines there can be; each has an address of its own.
	maxMachines = 40
	// registryPort is where the registry listens on this machine's address in the network.
	registryPort = "5000"
	// StepTimeout is how long a step of a scenario may take where machines are emulated; one
	// of them has three boots.
	StepTimeout = 45 * time.Minute
)

// Options are what a Fleet is made of.
type Options struct {
	// Bridge is the name of the network's device on this machine, of at most 8 letters. Two
	// runs at the same time need two.
	Bridge string
	// Subnet are the 256 addresses of the network. This machine has the first one.
	Subnet netip.Prefix
	// Dir is the folder for disks, consoles and logs.
	Dir string
	// Built are the parts listed by Parts, and those of PreviousParts, or
	// parts.BrokenTalosInstallerImage, where that is to be had, too.
	Built parts.Built
	// Patches returns further strategic patches of a machine; nil means none.
	Patches func(*Machine) []string
}

// Fleet are virtual machines, with all that they need around them.
type Fleet struct {
	options   Options
	network   *network
	registry  *talosnode.Registry
	endpoints *balancer.Endpoints

	mu       sync.Mutex
	machines []*Machine
	// static are the addresses that machines have besides those by DHCP.
	static []string
}

var _ fleet.Fleet = &Fleet{}

// Parts are the parts that Up needs.
func Parts() []string {
	return []string{parts.VMDebian, parts.TalosBoot, parts.TalosInstallerImage, parts.TalosNodeImages, "registry"}
}

// PreviousParts are the parts of the Talos release before, and of the Kubernetes version that
// its clusters have.
func PreviousParts() []string {
	return []string{parts.PreviousTalosBoot, parts.PreviousTalosInstallerImage, parts.PreviousTalosNodeImages, parts.PreviousTalosImages}
}

// Reason tells why there can be no virtual machines here; it is empty when there can be.
func Reason() string {
	if os.Geteuid() != 0 {
		return "only root can make a network for virtual machines"
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return "there is no /dev/net/tun for the links of virtual machines"
	}
	return ""
}

// Up starts everything but machines. When it fails, all is taken down again.
func Up(ctx context.Context, options Options) (_ *Fleet, err error) {
	if reason := Reason(); reason != "" {
		return nil, fmt.Errorf("starting virtual machines: %s", reason)
	}
	if err := debian.Install(ctx, "dnsmasq-base", "iproute2", "nftables", "fdisk", "mtools"); err != nil {
		return nil, err
	}
	f := &Fleet{options: options}
	f.endpoints = &balancer.Endpoints{Device: options.Bridge, Subnet: options.Subnet, Targets: f.apiServers}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(context.WithoutCancel(ctx)))
		}
	}()
	if f.network, err = newNetwork(ctx, options); err != nil {
		return nil, err
	}
	return f, f.startRegistry(ctx)
}

func (f *Fleet) startRegistry(ctx context.Context) error {
	built := f.options.Built
	var all []*images.Image
	for _, part := range []string{parts.TalosNodeImages, parts.PreviousTalosNodeImages, parts.PreviousTalosImages} {
		if built.Dir(part) == "" {
			continue
		}
		found, err := parts.OpenImages(built.Dir(part))
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	for _, part := range []string{parts.TalosInstallerImage, parts.PreviousTalosInstallerImage, parts.BrokenTalosInstallerImage} {
		if built.Dir(part) == "" {
			continue
		}
		installer, err := images.Open(built.Dir(part))
		if err != nil {
			return err
		}
		all = append(all, installer)
	}
	cache, err := parts.CacheDir()
	if err != nil {
		return err
	}
	storage := filepath.Join(cache, "registry", "vms-"+filepath.Base(built.Dir(parts.TalosNodeImages)))
	f.registry, err = talosnode.StartRegistry(ctx, built.Path("registry"), net.JoinHostPort(f.network.gateway(), registryPort), storage,
		f.options.Dir, all)
	return err
}

// SetNetworkBoot says what machines boot over the network from now on. Before, it is
// parts.TalosBoot without further arguments.
func (f *Fleet) SetNetworkBoot(boot NetworkBoot) { f.network.boot.Store(&boot) }

// Name implements fleet.Fleet.
func (f *Fleet) Name() string { return "vm" }

// KubernetesVersion implements fleet.Fleet.
func (f *Fleet) KubernetesVersion() string { return parts.KubernetesVersion }

// NextKubernetesVersion implements fleet.Fleet.
func (f *Fleet) NextKubernetesVersion() string { return "" }

// TalosVersion implements fleet.Fleet.
func (f *Fleet) TalosVersion() string { return parts.TalosVersion }

// RunsWorkloads implements fleet.Fleet.
func (f *Fleet) RunsWorkloads() bool { return true }

// Bootstraps implements fleet.Fleet: a real machine does not tell.
func (f *Fleet) Bootstraps() int { return -1 }

// Add implements fleet.Fleet.
func (f *Fleet) Add(ctx context.Context, count int) ([]fleet.Host, error) {
	var added []*Machine
	for range count {
		m, err := f.newMachine(ctx)
		if err != nil {
			return nil, err
		}
		if err := m.PowerOn(); err != nil {
			return nil, err
		}
		added = append(added, m)
	}
	hosts := make([]fleet.Host, 0, count)
	for _, m := range added {
		if err := m.AwaitMaintenance(ctx); err != nil {
			return nil, err
		}
		hosts = append(hosts, m.Host)
	}
	return hosts, nil
}

// Machines are all machines, in the order of their creation.
func (f *Fleet) Machines() []*Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.machines)
}

// Hosts implements fleet.Fleet.
func (f *Fleet) Hosts() []fleet.Host {
	var hosts []fleet.Host
	for _, m := range f.Machines() {
		hosts = append(hosts, m.Host)
	}
	return hosts
}

// machine finds the machine of a host.
func (f *Fleet) machine(host fleet.Host) (*Machine, error) {
	for _, m := range f.Machines() {
		if m.Host.Name == host.Name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("machine %s is not of this fleet", host.Name)
}

// Endpoint implements fleet.Fleet.
func (f *Fleet) Endpoint(ctx context.Context, name string) (fleet.Endpoint, error) {
	return f.endpoints.Get(ctx, name)
}

// balanceTo has endpoints look for API servers at a static address of a machine, too.
func (f *Fleet) balanceTo(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.static = append(f.static, address)
}

func (f *Fleet) apiServers() []string {
	f.mu.Lock()
	addresses := slices.Clone(f.static)
	f.mu.Unlock()
	for _, host := range f.Hosts() {
		addresses = append(addresses, host.Address)
	}
	targets := make([]string, 0, len(addresses))
	for _, address := range addresses {
		targets = append(targets, net.JoinHostPort(address, strconv.Itoa(balancer.EndpointPort)))
	}
	return targets
}

// Restart implements fleet.Fleet.
func (f *Fleet) Restart(_ context.Context, host fleet.Host) error {
	m, err := f.machine(host)
	if err != nil {
		return err
	}
	return errors.Join(m.PowerOff(), m.PowerOn())
}

// Destroy implements fleet.Fleet.
func (f *Fleet) Destroy(_ context.Context, host fleet.Host) error {
	m, err := f.machine(host)
	if err != nil {
		return err
	}
	return m.PowerOff()
}

// KeepDataOnReset implements fleet.Fleet: what Talos wipes on a real disk is wiped.
func (f *Fleet) KeepDataOnReset(_ context.Context, keep bool) error {
	if keep {
		return errors.New("a virtual machine cannot keep what Talos wipes")
	}
	return nil
}

// Wiped implements fleet.Fleet: it looks at the disks, past Talos.
func (f *Fleet) Wiped(ctx context.Context, host fleet.Host) error {
	m, err := f.machine(host)
	if err != nil {
		return err
	}
	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Maintenance(ctx, host.Address, "")
	if err != nil {
		return fmt.Errorf("machine %s is not in maintenance mode: %w", host.Name, err)
	}
	defer func() { _ = node.Close() }()
	return m.wiped(ctx)
}

// CollectLogs implements fleet.Fleet: the console of each machine.
func (f *Fleet) CollectLogs(_ context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the logs: %w", err)
	}
	var failures []error
	for _, m := range f.Machines() {
		console, err := os.ReadFile(m.Console())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, m.Host.Name+".log"), console, 0o644)
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// Close implements fleet.Fleet. The disks and consoles stay.
func (f *Fleet) Close(ctx context.Context) error {
	failures := []error{f.endpoints.Close()}
	for _, m := range f.Machines() {
		failures = append(failures, m.PowerOff())
	}
	if f.registry != nil {
		failures = append(failures, f.registry.Stop(ctx))
	}
	if f.network != nil {
		failures = append(failures, f.network.down(ctx))
	}
	return errors.Join(failures...)
}

// system is the folder of what machines have of Debian.
func (f *Fleet) system() string { return f.options.Built.Path(parts.VMDebian, "root") }
