package talossim_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// learns adds a node that joins and is not promoted, because its time stands still.
func (w *world) learns(first *talossim.Machine) *talossim.Machine {
	w.t.Helper()
	m := w.joins()
	w.Eventually(func() ([]talosclient.EtcdMember, error) { return w.admin(first).EtcdMembers(w.t.Context()) }).
		Should(ContainElement(And(HaveField("Learner", true), HaveField("Hostname", m.Spec().Name))))
	return m
}

// staysLearner looks at a member while time passes.
func (w *world) staysLearner(node talosclient.Node, m *talossim.Machine, pass func()) {
	w.t.Helper()
	w.Consistently(func(g Gomega) {
		pass()
		members, err := node.EtcdMembers(w.t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(members).To(ContainElement(And(HaveField("Hostname", m.Hostname()), HaveField("Learner", true))))
	}).Should(Succeed())
}

// bootstrappedAt is a ready cluster of one control plane node, whose time passes until
// it is ready.
func (w *world) bootstrappedAt(clock *clocktesting.FakeClock) *talossim.Machine {
	w.t.Helper()
	m := w.add()
	w.configureAs(m, m.Spec().Name)
	w.Eventually(func() error { return w.admin(m).Bootstrap(w.t.Context()) }).Should(Succeed())
	w.Eventually(func(g Gomega) {
		clock.Step(time.Second)
		status, err := w.admin(m).MachineStatus(w.t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(status.Ready).To(BeTrue())
	}).Should(Succeed())
	return m
}

// TestALearnerIsNotHealthy: etcd refuses a learner what Talos asks it for, so the
// node does not get to stage running either.
func TestALearnerIsNotHealthy(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Promote: time.Minute}})
	first := w.bootstrappedAt(clock)
	second := w.learns(first)
	w.status(second, talosclient.StageBooting, ContainElement("services: etcd not healthy"))

	node := w.admin(second)
	clock.Step(time.Minute)
	w.Eventually(func(g Gomega) {
		clock.Step(time.Second)
		status, err := node.MachineStatus(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(status).To(And(HaveField("Stage", talosclient.StageRunning), HaveField("Ready", true)))
	}).Should(Succeed())
	members, err := w.admin(first).EtcdMembers(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(members).To(And(HaveLen(2), HaveEach(HaveField("Learner", false))))
}

// TestALearnerThatRestartsStaysOne: Talos promotes in the start of the service that
// joined, and nobody else does.
func TestALearnerThatRestartsStaysOne(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Promote: time.Minute}})
	first := w.bootstrappedAt(clock)
	second := w.learns(first)

	second.PowerCycle()
	w.status(second, talosclient.StageBooting, ContainElement("services: etcd not healthy"))
	node := w.admin(first)
	w.staysLearner(node, second, func() { clock.Step(time.Minute) })
}

// TestALearnerIsGivenUp: Talos tries to promote it for ten minutes.
func TestALearnerIsGivenUp(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Promote: time.Hour}})
	first := w.bootstrappedAt(clock)
	second := w.learns(first)
	// Certificates of new connections would be of another time.
	node := w.admin(first)
	w.staysLearner(node, second, func() { clock.Step(30 * time.Minute) })
}

// TestALearnerCannotLeave: Talos waits for an etcd that is healthy, and gives up.
func TestALearnerCannotLeave(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Promote: time.Hour}})
	first := w.bootstrappedAt(clock)
	second := w.learns(first)
	node := w.admin(second)
	ended := make(chan error, 1)
	go func() { ended <- node.EtcdLeave(context.WithoutCancel(t.Context())) }()
	w.Consistently(ended).ShouldNot(Receive())
	w.Eventually(func() chan error {
		clock.Step(time.Minute)
		return ended
	}).Should(Receive(MatchError(ContainSubstring("failed to get local etcd member ID"))))
	members, err := w.admin(first).EtcdMembers(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(members).To(HaveLen(2))
}

// isListed adds a node that has joined, and whose etcd does not start, because its time
// stands still. node is that of another member.
func (w *world) isListed(node talosclient.Node) *talossim.Machine {
	w.t.Helper()
	m := w.joins()
	w.Eventually(func() ([]talosclient.EtcdMember, error) { return node.EtcdMembers(w.t.Context()) }).Should(ContainElement(
		And(HaveField("Learner", true), HaveField("Hostname", ""), HaveField("ClientURLs", BeEmpty()))))
	w.Expect(m.HasEtcdData()).To(BeFalse())
	return m
}

// TestANodeThatDiesWhileItJoins leaves a learner without a name behind, whose address
// etcd does not take again.
func TestANodeThatDiesWhileItJoins(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Etcd: time.Minute}})
	first := w.bootstrappedAt(clock)
	node := w.admin(first)
	second := w.isListed(node)
	nameless := func() ([]talosclient.EtcdMember, error) { return node.EtcdMembers(t.Context()) }

	second.PowerCycle()
	w.status(second, talosclient.StageBooting, ContainElement("services: etcd not running"))
	w.Consistently(func(g Gomega) {
		clock.Step(time.Minute)
		members, err := nameless()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(members).To(And(HaveLen(2), ContainElement(And(HaveField("Learner", true), HaveField("Hostname", "")))))
		g.Expect(second.HasEtcdData()).To(BeFalse())
	}).Should(Succeed())
}

// TestANodeThatIsBootstrappedWhileItJoins: it has no data yet, so Talos takes it for one
// that may begin a cluster. The other cluster keeps a learner that never starts.
func TestANodeThatIsBootstrappedWhileItJoins(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"at once": 0, "after its time": 2 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := clocktesting.NewFakeClock(time.Now())
			w := newWorld(t, talossim.Options{Clock: clock, Delays: talossim.Delays{Etcd: time.Minute, Bootstrap: delay}})
			first := w.bootstrappedAt(clock)
			w.Expect(w.sim.Offences()).To(BeEmpty())
			node := w.admin(first)
			second := w.isListed(node)
			its := w.admin(second)

			w.Expect(its.Bootstrap(t.Context())).To(Succeed())
			w.Expect(w.etcdService(second).State).To(Equal("Preparing"))
			clock.Step(time.Minute) // In which the etcd that was stopped would have started.
			w.Consistently(func() string { return w.etcdService(second).State }).ShouldNot(Equal("Failed"))
			w.Eventually(func(g Gomega) {
				clock.Step(time.Second)
				g.Expect(second.HasEtcdData()).To(BeTrue())
				g.Expect(second.ServesAPI()).To(BeTrue())
			}).Should(Succeed())
			w.Expect(its.EtcdMembers(t.Context())).To(ConsistOf(And(HaveField("Hostname", second.Hostname()), HaveField("Learner", false))))
			w.Expect(node.EtcdMembers(t.Context())).To(ConsistOf(HaveField("Hostname", first.Hostname()), And(HaveField("Learner", true), HaveField("Hostname", ""))))
			w.Expect(w.sim.Bootstraps()).To(Equal(2))
			w.Expect(w.sim.Offences()).To(ConsistOf(MatchError(ContainSubstring("Bootstrap on m2 bootstrapped a second time: m1 had data"))))
			w.Expect(its.Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
		})
	}
}
