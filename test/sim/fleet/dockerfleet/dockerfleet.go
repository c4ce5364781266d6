// Package dockerfleet is the fleet of real Talos nodes: containers of the Talos
// image, as "talosctl cluster create docker" runs them. A fixed address and
// hardware address make a container a machine that keeps its identity over a
// wipe; the fleet does for it what the hardware does for a machine.
package dockerfleet

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
	"strings"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
)

const (
	// Addresses of machines in the network, by their last byte. This machine is 1,
	// endpoints are from 150 on, and Docker gives away those from 192 on.
	firstHost, lastHost = 2, 149
)

// Docker is what the fleet wants of Docker.
type Docker interface {
	// Docker runs the command line tool with the arguments and returns what it
	// prints. What it says on its error output is in the error.
	Docker(ctx context.Context, args ...string) ([]byte, error)
	// Logs are what a container has written so far, to its output and its error
	// output.
	Logs(ctx context.Context, container string) ([]byte, error)
}

// Options are what a Fleet is made of.
type Options struct {
	// Docker runs the containers.
	Docker Docker
	// Image is the image of Talos. It is not pulled.
	Image string
	// Label is put on each container.
	Label string
	// Network is the name of their network in Docker, Bridge its device on this
	// machine, Subnet its 256 addresses. Docker must not give away addresses
	// below 192 in it by itself.
	Network string
	Bridge  string
	Subnet  netip.Prefix
	// NameServer is whom the machines ask for names; empty means Docker's choice.
	NameServer string
	// TalosVersion is the release in the image, KubernetesVersion the version
	// that clusters start with. NextKubernetesVersion is another whose images the
	// machines can get, too; empty when there is none.
	TalosVersion          string
	KubernetesVersion     string
	NextKubernetesVersion string
	// StrategicPatches are what the surroundings need in every configuration.
	StrategicPatches []string
}

// Fleet implements fleet.Fleet.
type Fleet struct {
	options Options
	// supervision ends with stop; running waits for its end.
	stop      context.CancelFunc
	running   sync.WaitGroup
	endpoints *balancer.Endpoints

	mu        sync.Mutex
	machines  []*machine
	kept      kept
	closed    bool
	supervise context.Context //nolint:containedctx // It bounds the life of all supervisors, not a call.
}

var _ fleet.Fleet = &Fleet{}

// New returns a fleet without machines.
func New(ctx context.Context, options Options) *Fleet {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &Fleet{options: options, stop: stop, supervise: ctx}
	f.endpoints = &balancer.Endpoints{Device: options.Bridge, Subnet: options.Subnet, Targets: f.apiServers}
	return f
}

// Name implements fleet.Fleet.
func (f *Fleet) Name() string { return "docker" }

// KubernetesVersion implements fleet.Fleet.
func (f *Fleet) KubernetesVersion() string { return f.options.KubernetesVersion }

// NextKubernetesVersion implements fleet.Fleet.
func (f *Fleet) NextKubernetesVersion() string { return f.options.NextKubernetesVersion }

// TalosVersion implements fleet.Fleet.
func (f *Fleet) TalosVersion() string { return f.options.TalosVersion }

// RunsWorkloads implements fleet.Fleet.
func (f *Fleet) RunsWorkloads() bool { return true }

// Bootstraps implements fleet.Fleet: a real machine does not tell.
func (f *Fleet) Bootstraps() int { return -1 }

// address is an address of the network by its last byte.
func (f *Fleet) address(last int) string { return balancer.Address(f.options.Subnet, last) }

// Link is a network of Docker that machines can have a second link in. Docker must
// not give away addresses below 192 of its 256 by itself.
type Link struct {
	Network string
	Subnet  netip.Prefix
}

// Wiring is what machines have that is not as the fleet has it: above all, networks.
type Wiring struct {
	// Second is a second link; there is none where its network is empty.
	Second Link
	// StrategicPatches are what the surroundings need, instead of those of the fleet; nil
	// means those.
	StrategicPatches []string
	// NoPods leaves the network of Pods to what the cluster brings: without that its
	// nodes are not ready.
	NoPods bool
}

// Add implements fleet.Fleet.
func (f *Fleet) Add(ctx context.Context, count int) ([]fleet.Host, error) {
	return f.AddWired(ctx, count, Wiring{})
}

// AddWired is Add for machines with other networks.
func (f *Fleet) AddWired(ctx context.Context, count int, wiring Wiring) ([]fleet.Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var added []fleet.Host
	for range count {
		number := len(f.machines) + 1
		if firstHost+number-1 > lastHost {
			return nil, fmt.Errorf("adding machines: a fleet has at most %d", lastHost-firstHost+1)
		}
		m := newMachine(f, number)
		m.wiring = wiring
		if wiring.StrategicPatches != nil {
			m.host.StrategicPatches = wiring.StrategicPatches
		}
		if err := m.create(ctx); err != nil {
			return nil, err
		}
		f.take(m)
		added = append(added, m.host)
	}
	return added, awaitMaintenance(ctx, added)
}

// take makes a machine one of the fleet, and watches over it.
func (f *Fleet) take(m *machine) {
	var ctx context.Context
	ctx, m.abandon = context.WithCancel(f.supervise)
	f.machines = append(f.machines, m)
	f.running.Go(func() { m.supervise(ctx) })
}

// awaitMaintenance waits until all machines answer.
func awaitMaintenance(ctx context.Context, hosts []fleet.Host) error {
	pool := talosclient.New()
	defer pool.Close()
	const interval = 200 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for _, host := range hosts {
		for {
			err := fleet.AnswersInMaintenance(ctx, pool, host)
			if err == nil {
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
	hosts := make([]fleet.Host, 0, len(f.machines))
	for _, m := range f.machines {
		hosts = append(hosts, m.host)
	}
	return hosts
}

// machine finds the machine of a host; nil when it is not of this fleet.
func (f *Fleet) machine(host fleet.Host) *machine {
	f.mu.Lock()
	defer f.mu.Unlock()
	index := slices.IndexFunc(f.machines, func(m *machine) bool { return m.host.Name == host.Name })
	if index < 0 {
		return nil
	}
	return f.machines[index]
}

// Endpoint implements fleet.Fleet.
func (f *Fleet) Endpoint(ctx context.Context, name string) (fleet.Endpoint, error) {
	return f.endpoints.Get(ctx, name)
}

// apiServers are where the machines would serve the Kubernetes API. The
// balancer finds out which do.
func (f *Fleet) apiServers() []string {
	var targets []string
	for _, host := range f.Hosts() {
		targets = append(targets, net.JoinHostPort(host.Address, strconv.Itoa(balancer.EndpointPort)))
	}
	return targets
}

// Restart implements fleet.Fleet. The machine is started again by who watches it.
func (f *Fleet) Restart(ctx context.Context, host fleet.Host) error {
	m := f.machine(host)
	if m == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	if _, err := m.docker(ctx, "kill", m.container); err != nil {
		return fmt.Errorf("restarting machine %s: %w", host.Name, err)
	}
	return nil
}

// SpoilEtcd overwrites the database of etcd on a machine, past Talos, and restarts the machine:
// its etcd never comes up with that.
func (f *Fleet) SpoilEtcd(ctx context.Context, host fleet.Host) error {
	m := f.machine(host)
	if m == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	folder, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("spoiling etcd on machine %s: %w", host.Name, err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	spoilt := filepath.Join(folder, "db")
	if err := os.WriteFile(spoilt, []byte("no database"), 0o600); err != nil {
		return fmt.Errorf("spoiling etcd on machine %s: %w", host.Name, err)
	}
	if _, err := m.docker(ctx, "cp", spoilt, m.container+":"+etcdDatabase); err != nil {
		return fmt.Errorf("spoiling etcd on machine %s: %w", host.Name, err)
	}
	m.note("has lost its etcd")
	return f.Restart(ctx, host)
}

// Destroy implements fleet.Fleet: the container goes with its volumes.
func (f *Fleet) Destroy(ctx context.Context, host fleet.Host) error {
	m := f.machine(host)
	if m == nil {
		return fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	m.abandon()
	m.note("is destroyed")
	return m.remove(ctx)
}

// Started tells when a machine was switched on last, as Docker writes it.
func (f *Fleet) Started(ctx context.Context, host fleet.Host) (string, error) {
	m := f.machine(host)
	if m == nil {
		return "", fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	out, err := m.docker(ctx, "inspect", "--format", "{{.Id}} {{.State.StartedAt}}", m.container)
	if err != nil {
		return "", fmt.Errorf("asking when machine %s was switched on: %w", host.Name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Console is what a machine has written so far, in all its boots.
func (f *Fleet) Console(ctx context.Context, host fleet.Host) ([]byte, error) {
	m := f.machine(host)
	if m == nil {
		return nil, fmt.Errorf("machine %s is not of this fleet", host.Name)
	}
	return m.console(ctx), nil
}

// kept is what machines come back with from a reset. Talos ends a container in the same way
// whatever it was told to wipe.
type kept int

const (
	keptNothing kept = iota
	keptConfiguration
	keptAll
)

// KeepDataOnReset implements fleet.Fleet.
func (f *Fleet) KeepDataOnReset(_ context.Context, keep bool) error {
	f.keepOnReset(keep, keptAll)
	return nil
}

// KeepConfigurationOnReset tells the fleet whether its machines come back from a reset with
// their configuration and nothing else, as those with disks do when EPHEMERAL is wiped.
func (f *Fleet) KeepConfigurationOnReset(keep bool) {
	f.keepOnReset(keep, keptConfiguration)
}

func (f *Fleet) keepOnReset(keep bool, what kept) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept = keptNothing
	if keep {
		f.kept = what
	}
}

func (f *Fleet) keeps() kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kept
}

// CollectLogs implements fleet.Fleet: the console of each machine, and what was
// done to it.
func (f *Fleet) CollectLogs(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the logs: %w", err)
	}
	f.mu.Lock()
	machines := slices.Clone(f.machines)
	f.mu.Unlock()
	var failures []error
	for _, m := range machines {
		failures = append(failures, os.WriteFile(filepath.Join(dir, m.host.Name+".log"), m.console(ctx), 0o644))
	}
	return errors.Join(failures...)
}

// Close implements fleet.Fleet.
func (f *Fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	machines, already := slices.Clone(f.machines), f.closed
	f.closed = true
	f.mu.Unlock()
	if already {
		return nil
	}
	f.stop()
	f.running.Wait()
	failures := []error{f.endpoints.Close()}
	for _, m := range machines {
		failures = append(failures, m.remove(ctx))
	}
	return errors.Join(failures...)
}
