// Package simfleet is the fleet of pretended Talos machines.
package simfleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/fleet"
	"github.com/capi-talos/capi-talos/test/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/talossim"
	"github.com/capi-talos/capi-talos/test/talossim/kube"
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
}

// Fleet implements fleet.Fleet.
type Fleet struct {
	// Sim is the fleet itself, for what the interface does not offer.
	Sim *talossim.Sim

	clusters *kube.Clusters
	metal    bool
	prefix   string

	mu        sync.Mutex
	hosts     []fleet.Host
	machines  map[string]*talossim.Machine
	endpoints map[string]fleet.Endpoint
	balancers []*balancer.Balancer
	closed    bool
}

var _ fleet.Fleet = &Fleet{}

// New returns a fleet without machines, in a loopback subnet that nobody uses.
func New(ctx context.Context, options Options) (*Fleet, error) {
	prefix, err := freeSubnet(ctx)
	if err != nil {
		return nil, err
	}
	clusters, err := kube.New()
	if err != nil {
		return nil, err
	}
	return &Fleet{
		Sim:      talossim.New(talossim.Options{Clusters: clusters, Personality: options.Personality, Delays: options.Delays}),
		clusters: clusters, metal: options.Personality == talossim.Metal, prefix: prefix,
		machines: map[string]*talossim.Machine{}, endpoints: map[string]fleet.Endpoint{},
	}, nil
}

// freeSubnet picks a subnet of 256 loopback addresses at random, so that two
// test processes do not meet.
func freeSubnet(ctx context.Context) (string, error) {
	const tries = 20
	for range tries {
		prefix := fmt.Sprintf("127.%d.%d.", 16+rand.IntN(200), rand.IntN(256)) //nolint:gosec // No secret.
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", prefix+"1:"+strconv.Itoa(talosclient.Port))
		if err == nil {
			return prefix, listener.Close()
		}
	}
	return "", errors.New("no loopback subnet is free")
}

// Name implements fleet.Fleet.
func (f *Fleet) Name() string { return "sim" }

// KubernetesVersion implements fleet.Fleet.
func (f *Fleet) KubernetesVersion() string { return KubernetesVersion }

// TalosVersion implements fleet.Fleet.
func (f *Fleet) TalosVersion() string { return talossim.DefaultTalosVersion }

// RunsWorkloads implements fleet.Fleet.
func (f *Fleet) RunsWorkloads() bool { return false }

// maxHosts leaves room for endpoints in the subnet.
const maxHosts = 199

// Add implements fleet.Fleet.
func (f *Fleet) Add(ctx context.Context, count int) ([]fleet.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var added []fleet.Host
	for range count {
		number := len(f.hosts) + 1
		if number > maxHosts {
			return nil, fmt.Errorf("adding machines: a fleet has at most %d", maxHosts)
		}
		host := fleet.Host{
			Name: fmt.Sprintf("host-%d", number), Address: f.prefix + strconv.Itoa(number),
			MACAddress: fmt.Sprintf("52:54:00:10:%02x:%02x", number>>8, number&0xff),
		}
		if f.metal {
			host.UUID = fmt.Sprintf("7a105517-0000-4000-8000-%012x", number)
			host.InstallDisk = "/dev/vda"
		}
		machine, err := f.Sim.Add(talossim.MachineSpec{Name: host.Name, Address: host.Address, MAC: host.MACAddress, UUID: host.UUID})
		if err != nil {
			return nil, err
		}
		f.hosts = append(f.hosts, host)
		f.machines[host.Name] = machine
		added = append(added, host)
	}
	return added, awaitMaintenance(ctx, added)
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
	return append([]fleet.Host(nil), f.hosts...)
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
	endpoint := fleet.Endpoint{Host: f.prefix + strconv.Itoa(maxHosts+1+len(f.endpoints)), Port: endpointPort}
	started, err := balancer.Start(ctx, balancer.Options{Host: endpoint.Host, Port: strconv.Itoa(endpointPort), Targets: f.apiServers})
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

// CollectLogs implements fleet.Fleet: a pretended machine has none.
func (f *Fleet) CollectLogs(context.Context, string) error { return nil }

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
	failures := make([]error, 0, len(balancers))
	for _, b := range balancers {
		failures = append(failures, b.Close())
	}
	f.Sim.Close()
	f.clusters.Close()
	return errors.Join(failures...)
}
