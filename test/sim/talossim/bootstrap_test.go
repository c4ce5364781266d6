package talossim_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// etcdService is the service of a machine.
func (w *world) etcdService(m *talossim.Machine) talosclient.Service {
	w.t.Helper()
	services, err := w.admin(m).Services(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(services, func(s talosclient.Service) bool { return s.ID == "etcd" })
	w.Expect(i).To(BeNumerically(">=", 0))
	return services[i]
}

// TestEachBootstrapBeginsAnew: what the last call has started is stopped.
func TestEachBootstrapBeginsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Delays: talossim.Delays{Bootstrap: time.Hour}})
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(Succeed())
	first := w.etcdService(m)
	w.Expect(first.State).To(Equal("Preparing"))
	w.Expect(first.Started.IsZero()).To(BeFalse())
	w.Expect(m.HasEtcdData()).To(BeFalse())
	w.Expect(w.admin(m).Bootstrap(t.Context())).To(Succeed())
	w.Expect(w.etcdService(m).Started).To(BeTemporally(">", first.Started))
	w.Expect(w.sim.Bootstraps()).To(BeZero())
}

func TestABootstrapTakesItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Delays: talossim.Delays{Bootstrap: 200 * time.Millisecond}})
	m := w.bootstrapped()
	w.voters(m, 1)
	w.Expect(w.sim.Bootstraps()).To(Equal(1))
	w.Expect(w.admin(m).Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
}

// TestABootstrapThatFindsDataTooLate leaves etcd stopped; a restart keeps the data, and
// brings it up.
func TestABootstrapThatFindsDataTooLate(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Metal, talossim.Container} {
		t.Run(string(personality), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: personality})
			m := w.add()
			w.configure(m, configgen.RoleControlPlane)
			m.Break(talossim.Faults{LateBootstrap: true})
			w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(MatchError(ContainSubstring("data directory is not empty")))
			m.Break(talossim.Faults{})
			w.Expect(w.etcdService(m).State).To(Equal("Finished"))
			w.Expect(w.admin(m).EtcdDataExists(t.Context())).To(BeTrue())
			w.Expect(w.admin(m).Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))

			boots := m.Boots()
			w.Expect(w.admin(m).Restart(t.Context())).To(Succeed())
			w.Eventually(m.Boots).Should(Equal(boots + 1))
			w.ready(m)
			w.voters(m, 1)
			w.Expect(w.sim.Bootstraps()).To(Equal(1))
			w.Expect(w.sim.Offences()).To(BeEmpty())
		})
	}
}
