// Package talossim is a fleet of pretended Talos machines in one process. Each
// listens on its own loopback address and speaks the real Talos API with the
// machinery's own server stubs: maintenance mode, mutual TLS and roles, COSI
// resources with watches, installation, etcd bootstrap and join, reset.
//
// Rules and answers are those of Talos v1.13.9 (internal/app/machined and
// internal/app/apid of github.com/siderolabs/talos; each place names its file);
// where they differ from a real node, talossim is wrong.
package talossim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

// DefaultTalosVersion is the release that the machines run.
const DefaultTalosVersion = "v1.13.9"

// Personality tells what kind of machine is pretended.
type Personality string

const (
	// Container is Talos in a container: nothing is installed, volumes are
	// directories, and a link is all that identifies the machine.
	Container Personality = "container"
	// Metal is a machine with disks, SMBIOS and partitions.
	Metal Personality = "metal"
)

// Delays are how long things take. Zero is at once.
type Delays struct {
	// Boot is from power to the Talos API, Install the installation, Reset the
	// wipe.
	Boot, Install, Reset time.Duration
	// Volumes is from the making of the volumes of a machine with disks to its telling of
	// them: Talos tells of none before all are made.
	Volumes time.Duration
	// Bootstrap is from a bootstrap to the first data of etcd: Talos pulls its image
	// before that. A further call begins it anew.
	Bootstrap time.Duration
	// Etcd is from the start of etcd to its first answer, Promote how long a node
	// that has joined stays a learner, and Leave is from the end of a member that
	// leaves to that of its data.
	Etcd, Promote, Leave time.Duration
	// Join is from the kubelet's start to a registered node.
	Join time.Duration
}

// Options are what a Sim is made of.
type Options struct {
	// Clusters are the pretended Kubernetes clusters. It is required.
	Clusters *kube.Clusters
	// TalosVersion is the release that machines boot from network; empty means
	// DefaultTalosVersion. One on which Talos is installed boots what is installed.
	TalosVersion string
	// Personality is the kind of the machines; empty means Container.
	Personality Personality
	// Delays are how long things take.
	Delays Delays
	// Clock makes them pass; nil means the real one.
	Clock clock.Clock
	// RoutesTo are the addresses of the machines at which arrives what is sent to an
	// address and port that no machine has itself: those behind a Service. Nil
	// means that there are none. It must not call the fleet.
	RoutesTo func(address string, port int) []string
}

// Sim is a fleet. Its methods may be called at any time.
type Sim struct {
	options Options
	ctx     context.Context //nolint:containedctx // The life of the machines.
	stop    context.CancelFunc
	lives   sync.WaitGroup

	// mu guards what follows, and the state of all machines.
	mu       sync.Mutex
	changed  chan struct{}
	machines []*Machine
	keepData bool
	// etcd is what lies in the data directories of the machines, known by their
	// names. Machines that share the CA of their etcd are a group.
	etcd  etcdmodel.Nodes
	judge *etcdmodel.Judge
}

// patience is for how long a member must have learnt before another may not go: longer
// than a pass of a manager takes from what it looks at to what it does.
const patience = 5 * time.Second

// New returns a fleet without machines. Close ends it.
func New(options Options) *Sim {
	if options.TalosVersion == "" {
		options.TalosVersion = DefaultTalosVersion
	}
	if options.Personality == "" {
		options.Personality = Container
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Sim{options: options, ctx: ctx, stop: stop, changed: make(chan struct{})}
	s.judge = etcdmodel.NewJudge(&s.etcd)
	s.etcd.Clock, s.judge.Patience = options.Clock.Now, patience
	return s
}

// MachineSpec is what a machine is made of.
type MachineSpec struct {
	// Name tells machines apart; the machine itself does not know it.
	Name string
	// Address is its IP address, a loopback one.
	Address string
	// OtherAddresses are its IPv4 addresses in networks that lead to it from none of
	// its clients, such as one for storage: etcd may be told to be there. They are
	// after Address in the order of addresses, so that it is that of its Node.
	OtherAddresses []string
	// MAC is the hardware address of its link.
	MAC string
	// UUID and SerialNumber are in its SMBIOS; a container has none.
	UUID, SerialNumber string
	// Schematic is the ID of the Image Factory schematic of what it has booted; empty
	// when that is none of a factory's. SecureBoot tells that its firmware has
	// verified that.
	Schematic  string
	SecureBoot bool
	// Disks are its disks, none for a container; empty means one of 100 GiB at
	// /dev/vda.
	Disks []Disk
	// Hosted reports whether somebody runs the machine as a container: it is off before
	// Start and after its end, gets its address each time, and whoever runs it has
	// its volumes. Only containers are.
	Hosted bool
}

// Disk is a disk of a machine.
type Disk struct {
	// Path is the path under /dev.
	Path string
	// SizeBytes is the capacity.
	SizeBytes uint64
	// Model and Serial are what the disk tells about itself.
	Model, Serial string
	// ReadOnly reports whether nothing can be written to it.
	ReadOnly bool
}

// defaultDisk is the disk of a machine that names none.
func defaultDisk() Disk {
	const size = 100 << 30
	return Disk{Path: "/dev/vda", SizeBytes: size, Model: "talossim"}
}

// Add powers a machine on, unless it is hosted. It boots on its own; errors are
// about the specification alone.
func (s *Sim) Add(spec MachineSpec) (*Machine, error) {
	if spec.Hosted {
		spec.Address = ""
	}
	if err := spec.validate(); err != nil {
		return nil, fmt.Errorf("adding machine %s: %w", spec.Name, err)
	}
	switch {
	case s.options.Personality == Container:
		spec.UUID, spec.SerialNumber, spec.Disks = "", "", nil
	case len(spec.Disks) == 0:
		spec.Disks = []Disk{defaultDisk()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, errors.New("adding a machine: the fleet is closed")
	}
	for _, other := range s.machines {
		if other.spec.Name == spec.Name || !spec.Hosted && other.spec.Address == spec.Address {
			return nil, fmt.Errorf("adding machine %s: %s has its name or address", spec.Name, other.spec.Name)
		}
	}
	m := &Machine{sim: s, spec: spec}
	s.machines = append(s.machines, m)
	if !spec.Hosted {
		s.lives.Go(func() { m.live(s.ctx) })
	}
	return m, nil
}

// validate looks at the addresses of a machine.
func (s MachineSpec) validate() error {
	own, err := netip.ParseAddr(s.Address)
	if err != nil && !s.Hosted {
		return err
	}
	for _, other := range s.OtherAddresses {
		if parsed, err := netip.ParseAddr(other); err != nil || s.Hosted || !own.Less(parsed) {
			return fmt.Errorf("%q cannot be another address of it", other)
		}
	}
	_, err = net.ParseMAC(s.MAC)
	return err
}

// Machines are all machines, in the order in which they were added.
func (s *Sim) Machines() []*Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Machine(nil), s.machines...)
}

// KeepDataOnReset tells the machines whether they ignore what a reset asks them
// to wipe, and just boot.
func (s *Sim) KeepDataOnReset(keep bool) {
	s.update(func() { s.keepData = keep })
}

// Bootstraps counts how often etcd was bootstrapped anew on any machine.
func (s *Sim) Bootstraps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.etcd.Bootstraps("")
}

// Recoveries counts how many of the Bootstraps were from a database that was sent.
func (s *Sim) Recoveries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.etcd.Recoveries("")
}

// Acts are all calls of the Talos API that change who is a member of etcd, or take
// a member away, with the voters that answered before and after each.
func (s *Sim) Acts() []etcdmodel.Act {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judge.Acts()
}

// Expect says how many voters acts must leave, 0 (the default) for any number: those
// that are asked for less one. A machine that a person or a fault takes is one less.
func (s *Sim) Expect(voters int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judge.Least = voters
}

// Offences are those of the acts that broke a quorum, were a second change of the
// membership, took a voter while data differ, left fewer voters than Expect says, or
// bootstrapped a cluster a second time. That a cluster is being deleted is not known here: who deletes one
// looks before.
func (s *Sim) Offences() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judge.Offences()
}

// Voters are how many voters the cluster of a machine has, and how many of them
// answer; of none when the machine has no data of etcd.
func (s *Sim) Voters(machine *Machine) etcdmodel.Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found := s.etcd.Data(machine.spec.Name)
	if !found {
		return etcdmodel.Count{}
	}
	return data.Cluster.Count()
}

// Leads reports whether the member of a machine leads its cluster.
func (s *Sim) Leads(machine *Machine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found := s.etcd.Data(machine.spec.Name)
	return found && data.Cluster.Leader() == data.ID
}

// Close powers all machines off. It may be called twice.
func (s *Sim) Close() {
	s.stop()
	// Who adds a machine holds the lock while the fleet is open.
	s.mu.Lock()
	s.mu.Unlock() //nolint:staticcheck // SA2001: a barrier.
	s.lives.Wait()
}

// update changes the state of the fleet, and wakes who waits for it.
func (s *Sim) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.settleAlarms()
	close(s.changed)
	s.changed = make(chan struct{})
}

// look reads the state of the fleet.
func (s *Sim) look(read func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	read()
}

// await waits until the state is as wanted. ready is called with the lock held,
// and may change the state when it returns true.
func (s *Sim) await(ctx context.Context, ready func() bool) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		done, changed := ready(), s.changed
		if done {
			close(s.changed)
			s.changed = make(chan struct{})
		}
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// awaitFor is await that ends after a while.
func (s *Sim) awaitFor(ctx context.Context, most time.Duration, ready func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		s.pause(ctx, most)
		cancel()
	}()
	return s.await(ctx, ready)
}

// pause lets time pass; it ends early with ctx.
func (s *Sim) pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := s.options.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}
