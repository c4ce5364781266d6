package talossim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/capi-talos/capi-talos/test/etcdmodel"
)

// Machine is one pretended machine. What is on its disk survives a boot.
type Machine struct {
	sim    *Sim
	spec   MachineSpec
	orders chan order

	// What follows is guarded by the lock of the fleet.

	// disk is what survives a boot; reset empties it.
	disk disk
	// stage is the stage of the present boot.
	stage runtime.MachineStage
	// boots counts the boots.
	boots int
	// etcdRuns tells that etcd runs in the present boot.
	etcdRuns bool
	// apiUp tells that the API server serves.
	apiUp bool
	// trustd tells that the machine issues certificates for workers.
	trustd bool
	faults Faults
	// served is what the present boot serves; nil while nothing is.
	served *served
}

// disk is what a machine keeps.
type disk struct {
	configuration []byte
	settings      *settings
	// etcdMember is the ID of the member whose data lies here; 0 is none.
	etcdMember uint64
}

// Faults are what is wrong with a machine. The zero value is a good one.
type Faults struct {
	// Silent makes the Talos API unreachable; everything else goes on.
	Silent bool
	// Slow delays every call of the Talos API.
	Slow time.Duration
	// BrokenDisk makes the installation fail: the machine boots into maintenance
	// mode again.
	BrokenDisk bool
	// OtherMachine makes it tell another identity.
	OtherMachine bool
}

// order is what makes a machine leave the present boot.
type order struct {
	// apply is a configuration that was handed over in maintenance mode.
	apply []byte
	// reset asks for a wipe, of all when labels are empty.
	reset  bool
	labels []string
}

// Spec is what the machine is made of.
func (m *Machine) Spec() MachineSpec { return m.spec }

// Break changes what is wrong with the machine.
func (m *Machine) Break(faults Faults) {
	m.sim.update(func() { m.faults = faults })
	m.sim.mu.Lock()
	present := m.served
	m.sim.mu.Unlock()
	if present != nil {
		present.setSilent(faults.Silent)
	}
}

// Boots counts the boots of the machine.
func (m *Machine) Boots() int {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.boots
}

// Hostname is the name of the node that the machine is; empty when it is none.
func (m *Machine) Hostname() string {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	if m.disk.settings == nil {
		return ""
	}
	return m.disk.settings.hostname
}

// Wiped returns nil when the machine waits in maintenance mode and its disk is
// empty.
func (m *Machine) Wiped() error {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	switch {
	case m.disk.configuration != nil:
		return fmt.Errorf("machine %s holds a configuration", m.spec.Name)
	case m.disk.etcdMember != 0:
		return fmt.Errorf("machine %s holds data of etcd", m.spec.Name)
	case m.stage != runtime.MachineStageMaintenance:
		return fmt.Errorf("machine %s is in stage %s", m.spec.Name, m.stage)
	}
	return nil
}

// ServesAPI tells whether an API server serves on the machine.
func (m *Machine) ServesAPI() bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.apiUp
}

// live boots the machine again and again until it is powered off.
func (m *Machine) live(ctx context.Context) {
	for ctx.Err() == nil {
		m.sim.update(func() {
			m.boots++
			m.stage = runtime.MachineStageBooting
		})
		pause(ctx, m.sim.options.Delays.Boot)
		boot := &boot{machine: m, sim: m.sim}
		next, err := boot.run(ctx)
		boot.end()
		if err != nil && !errors.Is(err, context.Canceled) {
			// A boot that fails is tried again, as a watchdog would.
			pause(ctx, retryInterval)
			continue
		}
		m.carryOut(ctx, next)
	}
}

// retryInterval is how soon something is tried again that waits for others.
const retryInterval = 100 * time.Millisecond

// carryOut does to the disk what was ordered.
func (m *Machine) carryOut(ctx context.Context, next order) {
	switch {
	case next.apply != nil:
		pause(ctx, m.sim.options.Delays.Install)
		m.sim.update(func() {
			if m.faults.BrokenDisk {
				return
			}
			m.disk.configuration = next.apply
			m.disk.settings, _ = parse(next.apply, m.sim.options.Personality) // It was valid when it was taken.
		})
	case next.reset:
		pause(ctx, m.sim.options.Delays.Reset)
		m.sim.update(func() {
			if !m.sim.keepData {
				m.wipe(next.labels)
			}
		})
	}
}

// wipe empties the volumes with the given labels; all when there are none. The
// lock is held.
func (m *Machine) wipe(labels []string) {
	has := func(label string) bool { return len(labels) == 0 || slices.Contains(labels, label) }
	before := m.disk
	if has("STATE") {
		m.disk.configuration, m.disk.settings = nil, nil
	}
	if has("EPHEMERAL") {
		m.disk.etcdMember = 0
	}
	if before.etcdMember != 0 && m.disk.etcdMember == 0 {
		m.sim.forgetEtcd(before.settings)
	}
}

// forgetEtcd ends an etcd cluster whose data is nowhere any more, and with it
// what Kubernetes keeps there. The lock is held.
func (s *Sim) forgetEtcd(of *settings) {
	if of == nil {
		return
	}
	for _, machine := range s.machines {
		if machine.disk.etcdMember != 0 && machine.disk.settings != nil && machine.disk.settings.etcd == of.etcd {
			return
		}
	}
	if cluster := s.etcds[of.etcd]; cluster != nil {
		s.bootstraps += cluster.Bootstraps()
		delete(s.etcds, of.etcd)
	}
	s.options.Clusters.Drop(of.kubernetesCA.Crt)
}

// etcd is the etcd cluster of a machine. The lock is held.
func (s *Sim) etcd(of *settings) *etcdmodel.Cluster {
	cluster := s.etcds[of.etcd]
	if cluster == nil {
		cluster = &etcdmodel.Cluster{}
		s.etcds[of.etcd] = cluster
	}
	return cluster
}
