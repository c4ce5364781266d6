package talossim_test

import (
	"context"
	"net/http"
	"slices"
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

// voters waits until all members of a machine's cluster vote, and are that many.
func (w *world) voters(m *talossim.Machine, count int) []talosclient.EtcdMember {
	w.t.Helper()
	var members []talosclient.EtcdMember
	w.Eventually(func(g Gomega) {
		var err error
		members, err = w.admin(m).EtcdMembers(w.t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(members).To(And(HaveLen(count), HaveEach(HaveField("Learner", false))))
	}).Should(Succeed())
	return members
}

// member is that of a machine, as it tells itself.
func (w *world) member(m *talossim.Machine) talosclient.EtcdMember {
	w.t.Helper()
	members, err := w.admin(m).EtcdMembers(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(members, func(member talosclient.EtcdMember) bool { return member.Hostname == m.Hostname() })
	w.Expect(i).To(BeNumerically(">=", 0))
	return members[i]
}

// joins adds a control plane node to a cluster that is there.
func (w *world) joins() *talossim.Machine {
	w.t.Helper()
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	return m
}

func TestControlPlaneNodesJoinOneByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Delays: talossim.Delays{Promote: 200 * time.Millisecond}})
	first := w.bootstrapped()
	second, third := w.joins(), w.joins()
	w.Eventually(func() ([]talosclient.EtcdMember, error) { return w.admin(first).EtcdMembers(t.Context()) }).Should(ContainElement(HaveField("Learner", true)))
	w.ready(second)
	w.ready(third)
	members := w.voters(first, 3)
	w.Expect(members).To(ConsistOf(HaveField("Hostname", "m1"), HaveField("Hostname", "m2"), HaveField("Hostname", "m3")))
	w.Expect(w.voters(third, 3)).To(Equal(members))
	for _, m := range []*talossim.Machine{first, second, third} {
		own, err := w.admin(m).EtcdStatus(t.Context())
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(members).To(ContainElement(And(HaveField("ID", own.MemberID), HaveField("Hostname", m.Hostname()))))
		w.Eventually(m.ServesAPI).Should(BeTrue())
	}
	w.Expect(w.sim.Bootstraps()).To(Equal(1))

	_, err := w.raw(second, secrets.RoleAdmin).MachineClient.EtcdLeaveCluster(t.Context(), &machine.EtcdLeaveClusterRequest{})
	w.Expect(err).NotTo(HaveOccurred())
	w.voters(first, 2)
	w.Eventually(second.ServesAPI).Should(BeFalse())
	w.Expect(second.HasEtcdData()).To(BeFalse())
	w.status(second, talosclient.StageRunning, ContainElement("services: etcd not running"))
}

// TestALeaveThatIsBrokenOff: its member is out, and its data is there.
func TestALeaveThatIsBrokenOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Delays: talossim.Delays{Leave: time.Hour}})
	first := w.bootstrapped()
	second := w.joins()
	w.ready(second)
	w.voters(first, 2)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.admin(second).EtcdLeave(ctx) }()
	w.voters(first, 1)
	cancel()
	w.Expect(<-ended).To(HaveOccurred())
	w.Eventually(second.ServesAPI).Should(BeFalse())
	w.Expect(second.HasEtcdData()).To(BeTrue())
	w.status(second, talosclient.StageRunning, ContainElement("services: etcd not running"))
	_, err := w.admin(second).EtcdStatus(t.Context())
	w.Expect(err).To(HaveOccurred())
}

// leaves asks a machine to leave etcd, and tells how that ended.
func (w *world) leaves(m *talossim.Machine) chan error {
	w.t.Helper()
	node, ended := w.admin(m), make(chan error, 1)
	go func() { ended <- node.EtcdLeave(w.t.Context()) }()
	return ended
}

// TestALeaveIsTriedAgain: an etcd that ends may be there again soon. A removal is not.
func TestALeaveIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first, second, third := w.ofThree()
	third.Break(talossim.Faults{StoppingEtcd: true})
	ended := w.leaves(third)
	w.Consistently(ended).ShouldNot(Receive())
	w.voters(first, 3)
	w.Expect(w.admin(third).EtcdRemoveMember(t.Context(), w.member(second).ID)).To(MatchError(ContainSubstring("etcdserver: server stopped")))
	w.voters(first, 3)

	third.Break(talossim.Faults{})
	w.Eventually(ended).Should(Receive(BeNil()))
	w.voters(first, 2)
	w.Expect(third.HasEtcdData()).To(BeFalse())
	w.Expect(w.sim.Offences()).To(BeEmpty())
}

// TestALeaveIsGivenUp: Talos tries for five minutes.
func TestALeaveIsGivenUp(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, talossim.Options{Clock: clock})
	first := w.bootstrappedAt(clock)
	second := w.joins()
	w.voters(first, 2)
	second.Break(talossim.Faults{StoppingEtcd: true})
	ended := w.leaves(second)
	w.Consistently(ended).ShouldNot(Receive())
	w.Eventually(func() chan error {
		clock.Step(time.Minute)
		return ended
	}).Should(Receive(MatchError(And(ContainSubstring("etcdserver: server stopped"), ContainSubstring("timeout")))))
	w.voters(first, 2)
	w.Expect(second.HasEtcdData()).To(BeTrue())
}

func TestADeadEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second := w.joins()
	w.ready(second)
	w.voters(first, 2)

	second.Break(talossim.Faults{DeadEtcd: true})
	w.Eventually(func() error { _, err := w.admin(second).EtcdStatus(t.Context()); return err }).ShouldNot(Succeed())
	w.Eventually(func() error { _, err := w.admin(first).EtcdMembers(t.Context()); return err }).ShouldNot(Succeed(), "one of two is no quorum")
	w.Eventually(first.ServesAPI).Should(BeFalse())
	w.status(first, talosclient.StageRunning, ContainElement("services: etcd not healthy"))
	own, err := w.admin(first).EtcdStatus(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(own.Leader).To(BeZero())
	w.Expect(own.Errors).To(ContainElement("etcdserver: no leader"))

	second.Break(talossim.Faults{})
	w.voters(first, 2)
	w.ready(second)
	w.Eventually(func() (int, error) { return w.asksAPI(first, "/readyz") }).Should(Equal(http.StatusUnauthorized))
}

// TestASpoiltEtcd does not start, not after a restart either; once it is wiped it joins.
func TestASpoiltEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second, third := w.joins(), w.joins()
	w.ready(third)
	w.voters(first, 3)

	second.Break(talossim.Faults{SpoiltEtcd: true})
	w.Eventually(func() error { _, err := w.admin(second).EtcdStatus(t.Context()); return err }).ShouldNot(Succeed())
	w.Expect(w.admin(second).Restart(t.Context())).To(Succeed())
	w.Eventually(func() (bool, error) { return w.admin(second).EtcdDataExists(t.Context()) }).Should(BeTrue())
	w.Consistently(func() error { _, err := w.admin(second).EtcdStatus(t.Context()); return err }).ShouldNot(Succeed())
	w.Expect(w.admin(second).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(func() bool { return second.Faults().SpoiltEtcd }).Should(BeFalse())
	w.Expect(second.HasEtcdData()).To(BeFalse())
}

func TestARemovedMemberDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second := w.joins()
	w.ready(second)
	members := w.voters(first, 2)
	raw := w.raw(first, secrets.RoleAdmin).MachineClient
	_, err := raw.EtcdRemoveMemberByID(t.Context(), &machine.EtcdRemoveMemberByIDRequest{MemberId: 1})
	w.Expect(status.Code(err)).To(Equal(codes.NotFound))
	for _, member := range members {
		if member.Hostname == second.Hostname() {
			_, err := raw.EtcdRemoveMemberByID(t.Context(), &machine.EtcdRemoveMemberByIDRequest{MemberId: member.ID})
			w.Expect(err).NotTo(HaveOccurred())
		}
	}
	w.Eventually(second.ServesAPI).Should(BeFalse())
	w.voters(first, 1)
	second.PowerCycle()
	w.status(second, talosclient.StageBooting, ContainElement("services: etcd not running"))
	w.Expect(second.HasEtcdData()).To(BeTrue())
	w.Expect(w.admin(second).Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
}

func TestLeadershipIsForfeited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	raw := w.raw(first, secrets.RoleAdmin).MachineClient
	_, err := raw.EtcdForfeitLeadership(t.Context(), &machine.EtcdForfeitLeadershipRequest{})
	w.Expect(err).To(HaveOccurred(), "there is nobody else")
	second := w.joins()
	w.ready(second)
	w.voters(first, 2)
	answer, err := raw.EtcdForfeitLeadership(t.Context(), &machine.EtcdForfeitLeadershipRequest{})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(answer.GetMessages()[0].GetMember()).To(Equal(second.Hostname()))
	own, err := w.admin(second).EtcdStatus(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(own.Leader).To(Equal(own.MemberID))
}

func TestASecondBootstrapIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first, second := w.add(), w.add()
	w.configure(first, configgen.RoleControlPlane)
	w.configure(second, configgen.RoleControlPlane)
	creds := w.admin(second)
	second.Break(talossim.Faults{DeadEtcd: true}) // Else it joins before it is told.
	w.Eventually(func() error { return w.admin(first).Bootstrap(t.Context()) }).Should(Succeed())
	w.Eventually(func() error { return creds.Bootstrap(t.Context()) }).Should(Succeed(), "as in Talos")
	w.Expect(w.sim.Bootstraps()).To(Equal(2))
	w.voters(first, 1)
}

func TestAlarms(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	w.Expect(w.admin(m).EtcdAlarms(t.Context())).To(BeEmpty())
	m.Break(talossim.Faults{Alarm: "NOSPACE"})
	w.Expect(w.admin(m).EtcdAlarms(t.Context())).To(ConsistOf(HaveField("Alarm", "NOSPACE")))
}
