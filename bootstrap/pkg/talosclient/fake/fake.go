// Package fake is a hand-written Talos fleet for unit tests: it keeps what a
// test says about each machine, records what was asked of it and injects
// faults. talossim (test/sim/talossim) is the one that answers as Talos does.
package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// ErrUnreachable is what a machine answers that is silent or unknown.
var ErrUnreachable = errors.New("connection refused")

// Dialer is a talosclient.Dialer over machines by address.
type Dialer struct {
	mu       sync.Mutex
	machines map[string]*Machine
}

var _ talosclient.Dialer = &Dialer{}

// NewDialer returns a fleet without machines.
func NewDialer() *Dialer {
	return &Dialer{machines: map[string]*Machine{}}
}

// Add puts a machine at an address, in the place of one that was there.
func (d *Dialer) Add(address string, machine *Machine) *Machine {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machines[address] = machine
	return machine
}

func (d *Dialer) find(address string) (*Machine, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	machine, found := d.machines[address]
	if !found || machine.isSilent() {
		return nil, fmt.Errorf("connecting to %s: %w", address, ErrUnreachable)
	}
	return machine, nil
}

// Maintenance implements talosclient.Dialer.
func (d *Dialer) Maintenance(_ context.Context, address, fingerprint string) (talosclient.Node, error) {
	machine, err := d.find(address)
	if err != nil {
		return nil, err
	}
	state := machine.Snapshot()
	switch {
	case !state.Maintenance:
		return nil, talosclient.ErrNotInMaintenance
	case fingerprint != "" && fingerprint != state.Fingerprint:
		return nil, talosclient.ErrFingerprintMismatch
	}
	return &node{machine: machine}, nil
}

// Secure implements talosclient.Dialer.
func (d *Dialer) Secure(_ context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	machine, err := d.find(address)
	if err != nil {
		return nil, err
	}
	state := machine.Snapshot()
	if state.Maintenance || (len(state.CA) > 0 && !slices.Equal(state.CA, creds.CA)) {
		return nil, talosclient.ErrUntrusted
	}
	if state.WrongClock {
		return nil, fmt.Errorf("connecting to %s: %w", address, talosclient.ErrClock)
	}
	return &node{machine: machine}, nil
}

// State is what a machine is. The zero value is a configured machine of which
// nothing is known.
type State struct {
	// Maintenance reports whether the machine has no configuration.
	Maintenance bool
	// CA, when set, is the only CA of credentials that the machine accepts.
	CA []byte
	// WrongClock reports whether the machine and its callers refuse each other's
	// certificates for the time that is in them.
	WrongClock  bool
	Fingerprint string
	Version     string
	Status      talosclient.MachineStatus
	Hardware    talosclient.Hardware
	Volumes     []talosclient.Volume
	Addresses   []string
	Hostname    string
	ProviderID  string
	// InternalAddresses and ExternalAddresses are those beside the ones of its Node.
	InternalAddresses, ExternalAddresses []string

	EtcdData bool
	// EtcdDatabase is the database that was sent last, as long as etcd was not restored from
	// it; nil when there is none.
	EtcdDatabase []byte

	Members    []talosclient.EtcdMember
	EtcdStatus talosclient.EtcdStatus
	EtcdSpec   talosclient.EtcdSpec
	Alarms     []talosclient.EtcdAlarm
	Services   []talosclient.Service
	StaticPods []talosclient.StaticPod
	Manifests  []map[string]any
}

// Machine is one machine of the fleet. All methods may be called at any time.
type Machine struct {
	// OnApply, OnReset, OnWipe, OnRestart, OnBootstrap, OnForfeit, OnLeave and
	// OnRemoveMember run after the call was recorded and decide its result; nil accepts,
	// and knows no other member. They may change the state by Update. OnRecover is
	// OnBootstrap of a bootstrap from a snapshot; nil restores the database that was sent,
	// and as in Talos accepts the call, and does nothing more, where none was.
	OnApply func(m *Machine, configuration []byte) error
	OnReset func(m *Machine, options talosclient.ResetOptions) error
	// OnWipe is given the partitions to wipe in maintenance mode; nil deletes them.
	OnWipe      func(m *Machine, devices []string) error
	OnRestart   func(m *Machine) error
	OnBootstrap func(m *Machine) error
	OnRecover   func(m *Machine) error
	OnForfeit   func(m *Machine) error
	OnLeave     func(m *Machine) error
	// OnSnapshot gives the snapshot of etcd, which ends with ctx; nil has none.
	OnSnapshot func(ctx context.Context, m *Machine) (io.ReadCloser, error)
	// OnRemoveMember is given the ID of the member to remove.
	OnRemoveMember func(m *Machine, id uint64) error

	mu       sync.Mutex
	state    State
	silent   bool
	faults   map[string]error
	applied  [][]byte
	resets   []talosclient.ResetOptions
	wipes    [][]string
	boots    int
	recovers int
	restarts int
	watchers map[chan talosclient.MachineStatus]struct{}
}

// NewMachine returns a machine in the given state.
func NewMachine(state State) *Machine {
	return &Machine{state: state, faults: map[string]error{}, watchers: map[chan talosclient.MachineStatus]struct{}{}}
}

// Snapshot is a copy of the state.
func (m *Machine) Snapshot() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Update changes the state and tells the watchers of the machine status.
func (m *Machine) Update(change func(*State)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
	for watcher := range m.watchers {
		select {
		case watcher <- m.state.Status:
		default:
		}
	}
}

// SetSilent makes the machine answer nothing, or answer again. Open watches break
// when it falls silent.
func (m *Machine) SetSilent(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = silent
	if silent {
		for watcher := range m.watchers {
			close(watcher)
		}
		clear(m.watchers)
	}
}

// Fail makes the named method of talosclient.Node fail with err; nil heals it.
func (m *Machine) Fail(method string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[method] = err
}

// Applied are the configurations handed over, oldest first.
func (m *Machine) Applied() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.applied)
}

// Resets are the resets asked for, oldest first.
func (m *Machine) Resets() []talosclient.ResetOptions {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.resets)
}

// Wipes are the partitions that were to be wiped in maintenance mode, one list for
// each call, oldest first.
func (m *Machine) Wipes() [][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.wipes)
}

// Bootstraps is how often etcd was asked to bootstrap, also from a snapshot.
func (m *Machine) Bootstraps() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boots
}

// Recoveries is how often etcd was asked to bootstrap from a snapshot.
func (m *Machine) Recoveries() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recovers
}

// Restarts is how often the machine was asked to restart.
func (m *Machine) Restarts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restarts
}

func (m *Machine) isSilent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.silent
}

// fault is the error to answer a call with: silence first, then the injected one.
func (m *Machine) fault(method string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silent {
		return ErrUnreachable
	}
	return m.faults[method]
}
