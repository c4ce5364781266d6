package talossim_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// routed are Services of etcd: an address each, and the machine that it leads to.
type routed struct {
	mu       sync.Mutex
	services map[string]string
}

func (r *routed) routesTo(address string, port int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if to, ok := r.services[address]; ok && port == 2380 {
		return []string{to}
	}
	return nil
}

func (r *routed) set(number int, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[serviceOf(number)] = to
}

func serviceOf(number int) string { return fmt.Sprintf("192.0.2.%d", number) }

// hosted is a machine that somebody runs, with the configuration that it is given at
// its first start.
type hosted struct {
	*talossim.Machine
	w             *world
	configuration []byte
	address       string
	ended         <-chan struct{}
}

func (w *world) hosted(number int) *hosted {
	w.t.Helper()
	m, err := w.sim.Add(talossim.MachineSpec{Name: fmt.Sprintf("m%d", number), MAC: fmt.Sprintf("52:54:00:00:00:%02x", number), Hosted: true})
	w.Expect(err).NotTo(HaveOccurred())
	return &hosted{Machine: m, w: w}
}

// run starts it at an address of the subnet.
func (h *hosted) run(last int) {
	h.w.t.Helper()
	var err error
	h.address = h.w.subnet.Address(last)
	h.ended, err = h.Start(talossim.Run{Address: h.address, Hostname: h.Machine.Spec().Name, UserData: h.configuration})
	h.w.Expect(err).NotTo(HaveOccurred())
}

// threeHosted is a control plane of three hosted machines, in which change sees to
// the addresses of etcd.
func (w *world) threeHosted(change func(number int, overlay *configgen.HostOverlay)) []*hosted {
	w.t.Helper()
	var machines []*hosted
	for number := 1; number <= 3; number++ {
		h := w.hosted(number)
		h.configuration = w.configuration(h.Machine, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) { change(number, overlay) })
		machines = append(machines, h)
	}
	machines[0].run(1)
	w.Eventually(func() error { return w.admin(machines[0].Machine).Bootstrap(w.t.Context()) }).Should(Succeed())
	machines[1].run(2)
	machines[2].run(3)
	w.voters(machines[0].Machine, 3)
	return machines
}

// TestAllMembersGetOtherAddressesAtOnce: with an address for life each is found
// again; without, no member finds another one, ever.
func TestAllMembersGetOtherAddressesAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("behind Services", func(t *testing.T) {
		t.Parallel()
		services := &routed{services: map[string]string{}}
		w := newWorld(t, talossim.Options{RoutesTo: services.routesTo})
		for number := 1; number <= 3; number++ {
			services.set(number, w.subnet.Address(number))
		}
		machines := w.threeHosted(func(number int, overlay *configgen.HostOverlay) {
			overlay.EtcdAddress = netip.MustParseAddr(serviceOf(number))
		})
		for _, member := range w.voters(machines[0].Machine, 3) {
			w.Expect(member.PeerURLs).To(ConsistOf("https://192.0.2." + strings.TrimPrefix(member.Hostname, "m") + ":2380"))
		}
		for i, h := range machines {
			h.End()
			services.set(i+1, w.subnet.Address(11+i))
		}
		for i, h := range machines {
			h.run(11 + i)
		}
		w.voters(machines[2].Machine, 3)
		w.Expect(w.sim.Bootstraps()).To(Equal(1))
	})
	t.Run("by their own", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, talossim.Options{})
		machines := w.threeHosted(func(int, *configgen.HostOverlay) {})
		for _, h := range machines {
			h.End()
		}
		for i, h := range machines {
			h.run(11 + i)
		}
		w.Consistently(func() []bool {
			return []bool{machines[0].ServesAPI(), machines[1].ServesAPI(), machines[2].ServesAPI()}
		}).Should(HaveEach(false))
	})
	t.Run("by their own, one after the other", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, talossim.Options{})
		machines := w.threeHosted(func(int, *configgen.HostOverlay) {})
		for i, h := range machines {
			h.End()
			h.run(11 + i)
			w.Eventually(h.ServesAPI).Should(BeTrue())
		}
		w.voters(machines[0].Machine, 3)
	})
}

// TestAHostedMachine comes back on its volumes, and goes with them.
func TestAHostedMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	h := w.hosted(1)
	h.configuration = w.configuration(h.Machine, configgen.RoleControlPlane)
	h.run(1)
	_, err := h.Start(talossim.Run{Address: w.subnet.Address(2)})
	w.Expect(err).To(MatchError(ContainSubstring("it runs")))
	w.Eventually(func() error { return w.admin(h.Machine).Bootstrap(w.t.Context()) }).Should(Succeed())
	w.ready(h.Machine)
	w.Expect(w.admin(h.Machine).Reset(w.t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(h.ended).Should(BeClosed())
	w.Expect(h.HasEtcdData()).To(BeTrue(), "a reset wipes nothing: whoever runs it has the volumes")
	h.run(1)
	w.ready(h.Machine)
	w.Expect(w.sim.Bootstraps()).To(Equal(1))
	w.sim.Remove(h.Machine)
	w.Expect(h.ended).To(BeClosed())
	w.Expect(h.HasEtcdData()).To(BeFalse())
	_, err = h.Start(talossim.Run{Address: w.subnet.Address(3)})
	w.Expect(err).To(MatchError(ContainSubstring("it was removed")))
}
