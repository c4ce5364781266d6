package talossim_test

import (
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestClocksThatDifferALittle: a cluster is made, shrinks and is wiped, with keys that
// are as new as can be.
func TestClocksThatDifferALittle(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"5 minutes ahead": 5 * time.Minute, "5 minutes behind": -5 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: talossim.Metal})
			w.bundle = newBundle()
			first, second := w.add(), w.add()
			for _, m := range []*talossim.Machine{first, second} {
				m.Break(talossim.Faults{ClockAhead: ahead})
				w.configure(m, configgen.RoleControlPlane)
			}
			w.Eventually(func() error { return w.admin(first).Bootstrap(t.Context()) }).Should(Succeed())
			w.ready(first)
			w.ready(second)
			w.Eventually(func() error { return w.admin(second).EtcdLeave(t.Context()) }).Should(Succeed())
			w.Eventually(func() ([]talosclient.EtcdMember, error) { return w.admin(first).EtcdMembers(t.Context()) }).Should(HaveLen(1))
			for _, m := range []*talossim.Machine{second, first} {
				node := w.admin(m)
				w.Expect(node.Reset(t.Context(), volumes(w, t.Context(), node))).To(Succeed())
				w.Eventually(m.Wiped).Should(Succeed())
			}
		})
	}
}

// TestAClockThatIsWrongIsNamed: in both directions, and until it is set.
func TestAClockThatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	w.bundle = newBundle()
	m := w.bootstrapped()
	reader, err := w.bundle.ClientCredentials(secrets.RoleReader, time.Now(), testTTL)
	w.Expect(err).NotTo(HaveOccurred())
	for _, ahead := range []time.Duration{30 * time.Minute, -30 * time.Minute} {
		m.Break(talossim.Faults{ClockAhead: ahead, Refusing: true}) // Ends what is open.
		m.Break(talossim.Faults{ClockAhead: ahead})
		w.Eventually(func() error {
			_, err := w.pool.Secure(t.Context(), m.Spec().Address, reader)
			return err
		}).Should(And(MatchError(talosclient.ErrClock), Not(MatchError(talosclient.ErrUntrusted))), ahead.String())
		_, err := w.pool.Maintenance(t.Context(), m.Spec().Address, "")
		w.Expect(err).To(MatchError(talosclient.ErrNotInMaintenance))
	}
	m.Break(talossim.Faults{})
	w.ready(m)
}

// TestAMachineBehindNAT: nothing in its certificate is the address by which it is
// reached, from its configuration to its wipe.
func TestAMachineBehindNAT(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	outside := w.subnet.Address(200)
	w.translate(outside, m.Spec().Address, talosclient.Port)
	var node talosclient.Node
	w.Eventually(func() (err error) {
		node, err = w.pool.Maintenance(t.Context(), outside, "")
		return err
	}).Should(Succeed())
	w.Expect(node.ApplyConfiguration(t.Context(), w.configuration(m, configgen.RoleControlPlane))).To(Succeed())

	creds, err := w.bundle.ClientCredentials(secrets.RoleAdmin, time.Now(), testTTL)
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func() (err error) {
		node, err = w.pool.Secure(t.Context(), outside, creds)
		return err
	}).Should(Succeed())
	w.Eventually(func() error { return node.Bootstrap(t.Context()) }).Should(Succeed())
	w.ready(m)
	w.Expect(node.Reset(t.Context(), volumes(w, t.Context(), node))).To(Succeed())
	w.Eventually(m.Wiped).Should(Succeed())
}

// translate has what comes to a port of an address arrive at another address.
func (w *world) translate(from, to string, number int) {
	w.t.Helper()
	port := strconv.Itoa(number)
	listener, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", net.JoinHostPort(from, port))
	w.Expect(err).NotTo(HaveOccurred())
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			outer, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = outer.Close() }()
				inner, err := (&net.Dialer{}).DialContext(w.t.Context(), "tcp", net.JoinHostPort(to, port))
				if err != nil {
					return
				}
				defer func() { _ = inner.Close() }()
				go func() {
					_, _ = io.Copy(inner, outer)
					_ = inner.Close()
				}()
				_, _ = io.Copy(outer, inner)
			}()
		}
	}()
}

// TestAClockThatIsNotSet: what needs the time waits for it, and a bootstrap is refused
// once it has waited for a while.
func TestAClockThatIsNotSet(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Personality: talossim.Metal, Clock: clock})
	m := w.add()
	m.Break(talossim.Faults{NoTime: true})
	w.configure(m, configgen.RoleControlPlane)
	w.status(m, talosclient.StageBooting, ConsistOf("time: time is not synced", "services: etcd not running, kubelet not running, trustd not running"))
	w.Expect(w.etcdService(m)).To(And(HaveField("State", "Waiting"), HaveField("LastMessage", "Waiting for time sync")))
	w.Expect(w.admin(m).EtcdDataExists(t.Context())).To(BeFalse())
	w.sends(m, "etcd") // Its disk is there.
	w.Expect(m.Recovered()).To(HaveField("Data", []byte("etcd")))
	raw := w.raw(m, secrets.RoleAdmin).MachineClient
	bootstraps := func() chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := raw.Bootstrap(t.Context(), &machine.BootstrapRequest{})
			ended <- err
		}()
		return ended
	}

	ended := bootstraps()
	w.Consistently(ended).ShouldNot(Receive())
	clock.Step(5 * time.Second)
	w.Eventually(ended).Should(Receive(MatchError(status.Error(codes.FailedPrecondition, "time is not in sync yet"))))
	w.Expect(w.sim.Bootstraps()).To(BeZero())

	ended = bootstraps()
	w.Consistently(ended).ShouldNot(Receive())
	m.Break(talossim.Faults{})
	w.Eventually(ended).Should(Receive(BeNil()), "its clock is set in time")
	w.passes = func() { clock.Step(time.Second) }
	w.ready(m)

	m.Break(talossim.Faults{NoTime: true})
	w.ready(m) // A clock that is set stays so.
	m.PowerCycle()
	w.status(m, talosclient.StageBooting, ContainElement("time: time is not synced"))
}

// TestAWorkerWaitsForTheClockOfAControlPlaneNode: its certificate comes from there.
func TestAWorkerWaitsForTheClockOfAControlPlaneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	first, worker := w.add(), w.add()
	first.Break(talossim.Faults{NoTime: true})
	w.configure(first, configgen.RoleControlPlane)
	w.configure(worker, configgen.RoleWorker)
	w.status(first, talosclient.StageBooting, ContainElement("time: time is not synced"))
	creds, err := w.bundle.ClientCredentials(secrets.RoleReader, time.Now(), testTTL)
	w.Expect(err).NotTo(HaveOccurred())
	w.Consistently(func() error {
		_, err := w.pool.Secure(t.Context(), worker.Spec().Address, creds)
		return err
	}).Should(HaveOccurred())

	first.Break(talossim.Faults{})
	w.Eventually(func() error { return w.admin(first).Bootstrap(t.Context()) }).Should(Succeed())
	w.ready(first)
	w.ready(worker)
}

// TestAContainerHasTheClockOfItsHost: Talos sets none there.
func TestAContainerHasTheClockOfItsHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	m.Break(talossim.Faults{NoTime: true})
	w.configure(m, configgen.RoleControlPlane)
	w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(Succeed())
	w.ready(m)
}
