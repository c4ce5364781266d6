// Package simfleet is the fleet of pretended Talos machines.
package simfleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

// KubernetesVersion is what the pretended clusters tell that they run.
const KubernetesVersion = "v1.36.3"

// endpointPort is where the endpoints listen.
const endpointPort = 6443

// Options are what a Fleet is made of.
type Options struct {
	// Personality is the kind of the machines; empty means containers.
	Personality talossim.Personality
	// Delays are how long things take.
	Delays talossim.Delays
	// Disks are those of each machine; empty means one for the system, none for a
	// container.
	Disks []talossim.Disk
	// ProbeInterval is how often the balancers look at API servers; 0 means
	// balancer.DefaultProbeInterval. It is for many fleets at a time.
	ProbeInterval time.Duration
}

// Fleet implements fleet.Fleet.
type Fleet struct {
	// Sim is the fleet itself, for what the interface does not offer.
	Sim *talossim.Sim

	clusters *kube.Clusters
	metal    bool
	disks    []talossim.Disk
	subnet   *talossim.Subnet
	probing  time.Duration

	// adding is held while machines boot, mu only while state is looked at: the
	// balancers must go on meanwhile.
	adding sync.Mutex

	mu    sync.Mutex
	hosts []fleet.Host
	// addresses is how many addresses of machines were given away.
	addresses int
	machines  map[string]*talossim.Machine
	endpoints map[string]fleet.Endpoint
	balancers []*balancer.Balancer
	closed    bool
}

var _ fleet.Fleet = &Fleet{}

// New returns a fleet without machines, in a loopback subnet that nobody uses.
func New(ctx context.Context, options Options) (*Fleet, error) {
	subnet, err := talossim.ClaimSubnet(ctx)
	if err != nil {
		return nil, err
	}
	clusters, err := kube.New()
	if err != nil {
		return nil, err
	}
	return &Fleet{
		Sim:      talossim.New(talossim.Options{Clusters: clusters, Personality: options.Personality, Delays: options.Delays}),
		clusters: clusters, metal: options.Personality == talossim.Metal, disks: options.Disks, subnet: subnet, probing: options.ProbeInterval,
		machines: map[string]*talossim.Machine{}, endpoints: map[string]fleet.Endpoint{},
	}, nil
}

// What the addresses of the subnet are for: machines, then endpoints, and the
// last one claims the subnet.
const (
	maxHosts      = 199
	firstEndpoint = maxHosts + 1
	claimAddress  = 254
)

// Name implements fleet.Fleet.
func (f *Fleet) Name() string { return "sim" }

// KubernetesVersion implements fleet.Fleet.
func (f *Fleet) KubernetesVersion() string { return KubernetesVersion }

// NextKubernetesVersion implements fleet.Fleet. Pretended machines run any.
func (f *Fleet) NextKubernetesVersion() string { return "v1.36.4" }

// TalosVersion implements fleet.Fleet.
func (f *Fleet) TalosVersion() string { return talossim.DefaultTalosVersion }

// RunsWorkloads implements fleet.Fleet.
func (f *Fleet) RunsWorkloads() bool { return false }

// Add implements fleet.Fleet.
func (f *Fleet) Add(ctx context.Context, count int) ([]fleet.Host, error) {
	f.adding.Lock()
	defer f.adding.Unlock()
	added := make([]fleet.Host, 0, count)
	for range count {
		host, err := f.addOne()
		if err != nil {
			return nil, err
		}
		added = append(added, host)
	}
	return added, awaitMaintenance(ctx, added)
}

func (f *Fleet) addOne() (fleet.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	address, err := f.nextAddress()
	if err != nil {
		return fleet.Host{}, err
	}
	number := len(f.hosts) + 1
	second, third := f.subnet.Bytes()
	host := fleet.Host{
		Name: fmt.Sprintf("host-%d", number), Address: address,
		// No two fleets have a machine in common.
		MACAddress: fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", second, third, number>>8, number&0xff),
	}
	if f.metal {
		host.UUID = fmt.Sprintf("7a105517-%02x%02x-4000-8000-%012x", second, third, number)
		host.InstallDisk = "/dev/vda"
	}
	machine, err := f.Sim.Add(talossim.MachineSpec{Name: host.Name, Address: host.Address, MAC: host.MACAddress, UUID: host.UUID, Disks: f.disks})
	if err != nil {
		return fleet.Host{}, err
	}
	f.hosts = append(f.hosts, host)
	f.machines[host.Name] = machine
	return host, nil
}

// nextAddress is one that no machine has had. The lock is held.
func (f *Fleet) nextAddress() (string, error) {
	if f.addresses == maxHosts {
		return "", fmt.Errorf("adding machines: a fleet has at most %d addresses", maxHosts)
	}
	f.addresses++
	return f.subnet.Address(f.addresses), nil
}

// Renumber boots the machine of a host at another address, and returns the host as it is
// from then on.
func (f *Fleet) Renumber(host fleet.Host) (fleet.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := slices.IndexFunc(f.hosts, func(known fleet.Host) bool { return known.Name == host.Name })
	if at < 0 {
		return fleet.Host{}, fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	address, err := f.nextAddress()
	if err != nil {
		return fleet.Host{}, err
	}
	f.hosts[at].Address = address
	f.machines[host.Name].Renumber(address)
	return f.hosts[at], nil
}

// awaitMaintenance waits until all machines answer.
func awaitMaintenance(ctx context.Context, hosts []fleet.Host) error {
	pool := talosclient.New()
	defer pool.Close()
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for _, host := range hosts {
		for {
			node, err := pool.Maintenance(ctx, host.Address, "")
			if err == nil {
				_ = node.Close()
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for %s: %w", host.Name, err)
			case <-ticker.C:
			}
		}
	}
	return nil
}

// Hosts implements fleet.Fleet.
func (f *Fleet) Hosts() []fleet.Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.hosts)
}

// Machine is the machine of a host.
func (f *Fleet) Machine(host fleet.Host) *talossim.Machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.machines[host.Name]
}

// Endpoint implements fleet.Fleet.
func (f *Fleet) Endpoint(ctx context.Context, name string) (fleet.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found, ok := f.endpoints[name]; ok {
		return found, nil
	}
	if f.closed {
		return fleet.Endpoint{}, fmt.Errorf("making endpoint %s: the fleet is closed", name)
	}
	number := firstEndpoint + len(f.endpoints)
	if number >= claimAddress {
		return fleet.Endpoint{}, fmt.Errorf("making endpoint %s: a fleet has at most %d", name, claimAddress-firstEndpoint)
	}
	endpoint := fleet.Endpoint{Host: f.subnet.Address(number), Port: endpointPort}
	started, err := balancer.Start(ctx, balancer.Options{Host: endpoint.Host, Port: strconv.Itoa(endpointPort), Targets: f.apiServers, ProbeInterval: f.probing})
	if err != nil {
		return fleet.Endpoint{}, err
	}
	f.balancers = append(f.balancers, started)
	f.endpoints[name] = endpoint
	return endpoint, nil
}

// apiServers are the machines with an API server.
func (f *Fleet) apiServers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var targets []string
	for _, host := range f.hosts {
		if f.machines[host.Name].ServesAPI() {
			targets = append(targets, net.JoinHostPort(host.Address, strconv.Itoa(endpointPort)))
		}
	}
	return targets
}

// Restart implements fleet.Fleet.
func (f *Fleet) Restart(_ context.Context, host fleet.Host) error {
	machine := f.Machine(host)
	if machine == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	machine.PowerCycle()
	return nil
}

// Destroy implements fleet.Fleet: the machine is silent from now on.
func (f *Fleet) Destroy(_ context.Context, host fleet.Host) error {
	machine := f.Machine(host)
	if machine == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	machine.Break(talossim.Faults{Silent: true, DeadEtcd: true})
	return nil
}

// KeepDataOnReset implements fleet.Fleet.
func (f *Fleet) KeepDataOnReset(_ context.Context, keep bool) error {
	f.Sim.KeepDataOnReset(keep)
	return nil
}

// Wiped implements fleet.Fleet.
func (f *Fleet) Wiped(_ context.Context, host fleet.Host) error {
	machine := f.Machine(host)
	if machine == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	return machine.Wiped()
}

// Bootstraps implements fleet.Fleet.
func (f *Fleet) Bootstraps() int { return f.Sim.Bootstraps() }

// CollectLogs implements fleet.Fleet. A pretended machine logs nothing; what is
// written is what each is doing.
func (f *Fleet) CollectLogs(_ context.Context, dir string) error {
	var text strings.Builder
	for _, host := range f.Hosts() {
		machine := f.Machine(host)
		state := "waits in maintenance mode"
		if err := machine.Wiped(); err != nil {
			state = err.Error()
		}
		_, _ = fmt.Fprintf(&text, "%s %s boots=%d node=%q serves=%t: %s\n", host.Name, host.Address, machine.Boots(), machine.Hostname(), machine.ServesAPI(), state)
	}
	const permissions = 0o600
	if err := os.WriteFile(filepath.Join(dir, "machines.txt"), []byte(text.String()), permissions); err != nil {
		return fmt.Errorf("writing what the machines do: %w", err)
	}
	return nil
}

// Close implements fleet.Fleet.
func (f *Fleet) Close(context.Context) error {
	f.mu.Lock()
	balancers := f.balancers
	already := f.closed
	f.closed, f.balancers = true, nil
	f.mu.Unlock()
	if already {
		return nil
	}
	var failures []error
	for _, b := range balancers {
		failures = append(failures, b.Close())
	}
	f.Sim.Close()
	f.clusters.Close()
	return errors.Join(failures...)
}
