// Package talossim is a fleet of pretended Talos machines in one process. Each
// listens on its own loopback address and speaks the real Talos API with the
// machinery's own server stubs: maintenance mode, mutual TLS and roles, COSI
// resources with watches, installation, etcd bootstrap and join, reset.
//
// Rules and answers are those of Talos v1.13.9 (internal/app/machined); where
// they differ from a real node, talossim is wrong.
package talossim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/test/etcdmodel"
	"github.com/capi-talos/capi-talos/test/talossim/kube"
)

// DefaultTalosVersion is the release that the machines run.
const DefaultTalosVersion = "v1.13.9"

// Personality tells what kind of machine is pretended.
type Personality string

const (
	// Container is Talos in a container: nothing is installed, there are no
	// volumes, and a link is all that identifies the machine.
	Container Personality = "container"
	// Metal is a machine with disks, SMBIOS and partitions.
	Metal Personality = "metal"
)

// Delays are how long things take.
type Delays struct {
	// Boot is from power to the Talos API, Install the installation, Reset the
	// wipe.
	Boot, Install, Reset time.Duration
}

// Options are what a Sim is made of.
type Options struct {
	// Clusters are the pretended Kubernetes clusters. It is required.
	Clusters *kube.Clusters
	// TalosVersion is the release; empty means DefaultTalosVersion.
	TalosVersion string
	// Personality is the kind of the machines; empty means Container.
	Personality Personality
	// Delays are how long things take.
	Delays Delays
}

// Sim is a fleet. Its methods may be called at any time.
type Sim struct {
	options Options
	ctx     context.Context //nolint:containedctx // The life of the machines.
	stop    context.CancelFunc
	lives   sync.WaitGroup

	mu       sync.Mutex
	changed  chan struct{}
	machines []*Machine
	keepData bool
	// etcds are the etcd clusters by their CA. bootstraps counts those of etcd
	// clusters that are gone.
	etcds      map[string]*etcdmodel.Cluster
	bootstraps int
}

// New returns a fleet without machines.
func New(options Options) *Sim {
	if options.TalosVersion == "" {
		options.TalosVersion = DefaultTalosVersion
	}
	if options.Personality == "" {
		options.Personality = Container
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Sim{options: options, ctx: ctx, stop: stop, changed: make(chan struct{}), etcds: map[string]*etcdmodel.Cluster{}}
}

// MachineSpec is what a machine is made of.
type MachineSpec struct {
	// Name is its name in errors; a machine does not know it.
	Name string
	// Address is its IP address, a loopback one.
	Address string
	// MAC is the hardware address of its link.
	MAC string
	// UUID is its SMBIOS UUID; ignored for a container.
	UUID string
}

// Add powers a machine on.
func (s *Sim) Add(spec MachineSpec) (*Machine, error) {
	if s.ctx.Err() != nil {
		return nil, errors.New("adding a machine: the fleet is closed")
	}
	m := &Machine{sim: s, spec: spec, orders: make(chan order, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.machines {
		if other.spec.Address == spec.Address {
			return nil, fmt.Errorf("adding machine %s: %s has its address", spec.Name, other.spec.Name)
		}
	}
	s.machines = append(s.machines, m)
	s.lives.Go(func() { m.live(s.ctx) })
	return m, nil
}

// KeepDataOnReset tells the machines whether they ignore what a reset asks them
// to wipe.
func (s *Sim) KeepDataOnReset(keep bool) {
	s.update(func() { s.keepData = keep })
}

// Bootstraps counts how often etcd was bootstrapped anew on any machine.
func (s *Sim) Bootstraps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := s.bootstraps
	for _, cluster := range s.etcds {
		count += cluster.Bootstraps()
	}
	return count
}

// Close powers all machines off.
func (s *Sim) Close() {
	s.stop()
	s.lives.Wait()
}

// update changes the state of the fleet, and wakes who waits for it.
func (s *Sim) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until the state is as wanted. ready is called with the lock held.
func (s *Sim) await(ctx context.Context, ready func() bool) error {
	for {
		s.mu.Lock()
		done, changed := ready(), s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// pause lets time pass; it ends early with ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
