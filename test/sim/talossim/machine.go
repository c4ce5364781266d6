package talossim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Machine is one pretended machine. What is on its disk survives a boot.
type Machine struct {
	sim   *Sim
	spec  MachineSpec
	calls callCounter

	// What follows is guarded by the lock of the fleet.

	disk  disk
	stage runtime.MachineStage
	// boots counts the times of power-on.
	boots  int
	faults Faults
	// next is the address from the next boot on; empty means the present one.
	next string
	// present is the present boot; nil between two boots.
	present *boot
	// etcd tells how far etcd is in the present boot.
	etcd etcdState
	// etcdStarted is when its service was started last.
	etcdStarted time.Time
	// bootstrapping reports whether a bootstrap was accepted, and etcd has no data yet;
	// bootstrap counts the accepted calls of the present boot.
	bootstrapping bool
	bootstrap     int
	// etcdFailure is why its service has failed before it could start etcd; empty when it has
	// not. Nothing but a bootstrap or a boot starts it again.
	etcdFailure string
	// apiUp reports whether the API server serves, and apiStarted that the kubelet has
	// started it in the present boot.
	apiUp, apiStarted bool
	// joined reports whether the node is registered.
	joined bool
	// untold reports whether the machine has made volumes of which it does not tell yet.
	untold bool
	// trustd reports whether the machine issues certificates for workers.
	trustd bool
	// raised is the alarm of its etcd; nil when there is none.
	raised *raised
	// off reports whether the machine has shut down, and waits for somebody to press its
	// button. resets are the orders to wipe itself that it has taken.
	off    bool
	resets []*machine.ResetRequest
	// run is the present run of a hosted machine, end ends it (nil when there is
	// none), ended is closed when it has, and failure is why.
	run     Run
	end     context.CancelFunc
	ended   chan struct{}
	failure error

	// node is held while Kubernetes is told of the node.
	node sync.Mutex
}

// disk is what a machine keeps. Etcd's data is kept by the fleet.
type disk struct {
	// installed reports whether Talos lies on the disk. A container needs none.
	installed bool
	// release is what is installed; empty means the one that installed it.
	release string
	// configuration is what lies in STATE; nil is nothing.
	configuration []byte
	settings      *settings
	// ephemeral reports whether EPHEMERAL was formatted.
	ephemeral bool
	// database is what was sent to restore etcd from; nil is nothing.
	database *Recovery
	// partitions are those beside the ones of Talos itself, and what lies on whole
	// disks; placed are the volumes of the configuration.
	partitions []Partition
	placed     []placed
}

// order is what makes a machine leave the present boot, or its maintenance mode.
type order struct {
	// apply is a configuration that was handed over in maintenance mode.
	apply []byte
	// reset is a request to wipe the machine; nil is a reboot.
	reset *machine.ResetRequest
	// leave makes etcd leave its cluster first.
	leave bool
	// now leaves no time for anything: the power is gone.
	now bool
	// blank reports whether the disk is empty when the power is back.
	blank bool
}

// Spec is what the machine is made of. A hosted one has the address of its present
// run.
func (m *Machine) Spec() MachineSpec {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.spec
}

// Boots counts the times of power-on. A configuration taken by a container does
// not boot it anew.
func (m *Machine) Boots() int {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.boots
}

// Stage is the stage of the present boot, in the words of the Talos API.
func (m *Machine) Stage() string {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.stage.String()
}

// Configuration is what lies in the machine's STATE; nil when there is none.
func (m *Machine) Configuration() []byte {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return slices.Clone(m.disk.configuration)
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

// HasEtcdData reports whether etcd's data directory has content.
func (m *Machine) HasEtcdData() bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.hasData()
}

// hasData reports whether etcd's data directory has content. The lock is held.
func (m *Machine) hasData() bool {
	data, found := m.sim.etcd.Data(m.spec.Name)
	return found && !data.Listed
}

// ServesAPI reports whether an API server serves on the machine.
func (m *Machine) ServesAPI() bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.apiUp
}

// Wiped returns nil when the machine waits in maintenance mode and nothing of a
// cluster is on its disk. It looks at the disk itself, not through the Talos API.
func (m *Machine) Wiped() error {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	switch {
	case m.disk.configuration != nil:
		return fmt.Errorf("machine %s holds a configuration", m.spec.Name)
	case m.hasData():
		return fmt.Errorf("machine %s holds data of etcd", m.spec.Name)
	case m.disk.ephemeral:
		return fmt.Errorf("machine %s has content in EPHEMERAL", m.spec.Name)
	case m.left() != "":
		return fmt.Errorf("machine %s has %s", m.spec.Name, m.left())
	case m.stage != runtime.MachineStageMaintenance:
		return fmt.Errorf("machine %s is in stage %s", m.spec.Name, m.stage)
	}
	return nil
}

// PowerCycle takes the power away and gives it back. The disk stays. A machine that
// is between two boots is left alone, but one that is off boots.
func (m *Machine) PowerCycle() {
	m.sim.update(func() {
		m.off = false
		if m.present != nil {
			m.present.give(order{now: true})
		}
	})
}

// Renumber boots the machine at another address, which no other machine has, as when its
// lease is another one. The disk stays. It is not for members of etcd: their peers are not
// told.
func (m *Machine) Renumber(address string) {
	m.sim.update(func() { m.next = address })
	m.PowerCycle()
}

// IsOff reports whether the machine has shut down: it does not boot before
// somebody gives it a PowerCycle.
func (m *Machine) IsOff() bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.off
}

// Resets are the orders to wipe itself that the machine has taken, oldest first.
func (m *Machine) Resets() []*machine.ResetRequest {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return slices.Clone(m.resets)
}

// LoseDisk takes the power away, and gives it back with an empty disk. It is for
// those who call to see that it has happened: a machine that is told already to
// boot does just that.
func (m *Machine) LoseDisk() {
	m.sim.update(func() {
		if m.present == nil {
			m.blank()
			return
		}
		m.present.give(order{now: true, blank: true})
	})
}

// live boots the machine again and again until the fleet is closed.
func (m *Machine) live(ctx context.Context) {
	for ctx.Err() == nil {
		m.absent(ctx)
		m.sim.update(func() {
			m.boots++
			m.stage, m.apiStarted = runtime.MachineStageBooting, false
		})
		m.sim.pause(ctx, m.sim.options.Delays.Boot)
		next, err := newBoot(m).run(ctx)
		if err != nil && !errors.Is(err, context.Canceled) {
			// Nothing but a lack of the process itself (a port in use): the boot is
			// tried again, as a watchdog would.
			m.sim.pause(ctx, retryInterval)
			continue
		}
		switch {
		case next.blank:
			m.sim.update(m.blank)
		case next.reset != nil && !m.Faults().Gone:
			m.reset(ctx, next.reset)
		}
	}
}

// absent waits while the machine has no power. What is sent to its Talos API
// meanwhile is lost.
func (m *Machine) absent(ctx context.Context) {
	if !m.Faults().Gone && !m.IsOff() {
		return
	}
	lost := newGate(Faults{Silent: true})
	listener, err := lost.listen(net.JoinHostPort(m.spec.Address, strconv.Itoa(constants.ApidPort)))
	if err == nil {
		go func() {
			for {
				if _, err := listener.Accept(); err != nil {
					return
				}
			}
		}()
	}
	_ = m.sim.await(ctx, func() bool { return !m.faults.Gone && !m.off })
	if err == nil {
		_ = listener.Close()
		lost.drop()
	}
	// Its peers learn that their connections are dead.
	m.sim.update(func() { m.sim.etcd.Stop(m.spec.Name) })
}

// retryInterval is how soon something is tried again that waits for others.
const retryInterval = 100 * time.Millisecond

// dropEtcd takes etcd's data from a machine. With the last data of a cluster
// goes what Kubernetes has kept there, until etcd is restored. The lock is held.
func (s *Sim) dropEtcd(machine string, was *settings) {
	data, found := s.etcd.Data(machine)
	if !found {
		return
	}
	s.etcd.Wipe(machine)
	if was != nil && !s.etcd.HasData(data.Group) {
		s.options.Clusters.Drop(was.kubernetesCA.Crt)
	}
}

// install puts Talos and the configuration on the disk. Over an installation it puts
// the configuration alone, whatever installer that names. The lock is held.
func (m *Machine) install(configuration []byte, of *settings) {
	if metal := m.sim.options.Personality == Metal; metal && !m.disk.installed {
		m.disk.installed, m.disk.release = true, of.installs
	}
	m.disk.configuration, m.disk.settings = configuration, of
}
