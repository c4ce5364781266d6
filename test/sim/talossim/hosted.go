package talossim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Run is what whoever runs a hosted machine gives it each time.
type Run struct {
	// Address is its IP address, a loopback one, which no other running machine has.
	Address string
	// Hostname is what its surroundings call it.
	Hostname string
	// TalosVersion is the release of its image; empty means that of the fleet.
	TalosVersion string
	// UserData is the configuration to boot into, gzipped or not; empty means none:
	// the machine waits in maintenance mode. What lies on its volumes goes before it.
	UserData []byte
}

// Start runs a hosted machine, on the volumes that it has. It ends by End, and by
// itself when it is told to reboot or to reset: then ended is closed. Its volumes
// stay.
func (m *Machine) Start(run Run) (ended <-chan struct{}, err error) {
	if _, err := netip.ParseAddr(run.Address); err != nil {
		return nil, fmt.Errorf("starting machine %s: %w", m.spec.Name, err)
	}
	s := m.sim
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return nil, errors.New("starting a machine: the fleet is closed")
	case !m.spec.Hosted || m.end != nil:
		return nil, fmt.Errorf("starting machine %s: it runs", m.spec.Name)
	case !slices.Contains(s.machines, m):
		return nil, fmt.Errorf("starting machine %s: it was removed", m.spec.Name)
	}
	for _, other := range s.machines {
		if other.spec.Address == run.Address {
			return nil, fmt.Errorf("starting machine %s: %s has its address", m.spec.Name, other.spec.Name)
		}
	}
	ctx, end := context.WithCancel(s.ctx)
	m.run, m.end, m.ended = run, end, make(chan struct{})
	m.spec.Address = run.Address
	s.lives.Go(func() {
		defer end()
		m.runOnce(ctx)
	})
	return m.ended, nil
}

// runOnce is one run of a hosted machine.
func (m *Machine) runOnce(ctx context.Context) {
	m.sim.update(func() {
		m.boots++
		m.stage, m.apiStarted = runtime.MachineStageBooting, false
	})
	m.sim.pause(ctx, m.sim.options.Delays.Boot)
	var err error
	if ctx.Err() == nil {
		_, err = newBoot(m).run(ctx)
	}
	if ctx.Err() != nil {
		err = nil // Somebody has ended it.
	}
	m.sim.update(func() {
		m.failure = err
		m.sim.etcd.Stop(m.spec.Name)
		m.spec.Address, m.end = "", nil
		close(m.ended)
	})
}

// Failure is the error that ended the last run of a hosted machine; nil when the machine
// was told to reboot or to reset, or was ended.
func (m *Machine) Failure() error {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.failure
}

// End ends a hosted machine, as when its container is killed, and waits until
// its address is free. It may be called again.
func (m *Machine) End() {
	m.sim.mu.Lock()
	end, ended := m.end, m.ended
	m.sim.mu.Unlock()
	if end != nil {
		end()
		<-ended
	}
}

// Remove takes a hosted machine away with its volumes.
func (s *Sim) Remove(m *Machine) {
	m.End()
	s.update(func() {
		m.wipeAll()
		s.machines = slices.DeleteFunc(s.machines, func(other *Machine) bool { return other == m })
	})
}

// Rerouted tells the machines that RoutesTo may answer otherwise now.
func (s *Sim) Rerouted() { s.update(func() {}) }

// release is the Talos release that the machine boots. The lock is held.
func (m *Machine) release() string {
	return cmp.Or(m.run.TalosVersion, m.disk.release, m.sim.options.TalosVersion)
}

// linkAddresses are the addresses that a configuration gives to links.
func linkAddresses(cfg config.Provider) []netip.Addr {
	var found []netip.Addr
	for _, link := range cfg.NetworkCommonLinkConfigs() {
		for _, address := range link.Addresses() {
			found = append(found, address.Address().Addr())
		}
	}
	if cfg.Machine() == nil || cfg.Machine().Network() == nil {
		return found
	}
	for _, device := range cfg.Machine().Network().Devices() {
		for _, address := range device.Addresses() {
			if prefix, err := netip.ParsePrefix(address); err == nil {
				found = append(found, prefix.Addr())
			}
		}
	}
	return found
}

// etcdAddress is where etcd of the machine is reached: the first of its addresses
// that its configuration has it advertise. It is empty when there is none: then
// Talos waits with etcd (internal/app/machined/pkg/controllers/etcd/spec.go). On
// machines of one address that are not hosted it is that. The lock is held.
func (m *Machine) etcdAddress() string {
	s := m.disk.settings
	if s == nil || len(s.etcdSubnets) == 0 || !m.spec.Hosted && len(m.spec.OtherAddresses) == 0 {
		return m.spec.Address
	}
	candidates := slices.DeleteFunc(slices.Clone(s.addresses), func(candidate netip.Addr) bool { return !candidate.IsGlobalUnicast() })
	for _, other := range m.spec.OtherAddresses {
		candidates = append(candidates, netip.MustParseAddr(other))
	}
	if own, err := netip.ParseAddr(m.spec.Address); err == nil {
		candidates = append([]netip.Addr{own}, candidates...)
	}
	for _, candidate := range candidates {
		for _, subnet := range s.etcdSubnets {
			if prefix, err := netip.ParsePrefix(subnet); err == nil && prefix.Contains(candidate) {
				return candidate.String()
			}
		}
	}
	return ""
}

// found reports whether its peers find the member of a hosted machine at the address
// that they know. Where they do not, Talos writes the new address, for which etcd
// needs a quorum without this member; a member that is alone has it. The lock is
// held.
func (m *Machine) found() bool {
	if !m.spec.Hosted {
		return true
	}
	data, _ := m.sim.etcd.Data(m.spec.Name)
	member, is := data.Cluster.Member(data.ID)
	if !is || m.leadsHere(member.PeerURL) {
		return true
	}
	if !m.leadsHere(m.url(peerPort)) {
		return false
	}
	return data.Cluster.Readdress(data.ID, m.url(peerPort)) == nil
}

// leadsHere reports whether what is sent to a URL of etcd arrives at the machine. The
// lock is held.
func (m *Machine) leadsHere(peer string) bool {
	at, err := url.Parse(peer)
	if err != nil || at.Port() != strconv.Itoa(peerPort) {
		return false
	}
	return m.hears(at.Hostname(), peerPort)
}

// hears reports whether what is sent to an address and port of etcd arrives at the machine.
// The lock is held.
func (m *Machine) hears(address string, port int) bool {
	if address == m.spec.Address {
		return true
	}
	return m.sim.options.RoutesTo != nil && slices.Contains(m.sim.options.RoutesTo(address, port), m.spec.Address)
}
