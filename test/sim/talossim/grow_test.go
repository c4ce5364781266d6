package talossim_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestAControlPlaneGrowsToFive has four nodes that want to join at once: etcd
// takes one learner at a time, and the voters become 2, 3, 4 and 5.
func TestAControlPlaneGrowsToFive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Delays: talossim.Delays{Promote: 100 * time.Millisecond}})
	first := w.bootstrapped()
	machines := []*talossim.Machine{first, w.joins(), w.joins(), w.joins(), w.joins()}
	w.Eventually(func(g Gomega) {
		members, err := w.admin(first).EtcdMembers(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		learners := 0
		for _, member := range members {
			if member.Learner {
				learners++
			}
		}
		w.Expect(learners).To(BeNumerically("<=", 1), "one learner at a time")
		g.Expect(members).To(HaveLen(5))
		g.Expect(learners).To(BeZero())
	}).Should(Succeed())
	members := w.voters(first, 5)
	for i, m := range machines {
		w.ready(m)
		w.Eventually(m.ServesAPI).Should(BeTrue())
		w.Expect(m.Hostname()).To(Equal(fmt.Sprintf("m%d", i+1)))
		w.Expect(w.voters(m, 5)).To(Equal(members), "all tell the same")
	}
	leaders := map[uint64]int{}
	for _, m := range machines {
		own, err := w.admin(m).EtcdStatus(t.Context())
		w.Expect(err).NotTo(HaveOccurred())
		leaders[own.Leader]++
	}
	w.Expect(leaders).To(HaveLen(1))
	w.Expect(w.sim.Bootstraps()).To(Equal(1))
}

// TestANodeOfTheSameNameEvictsTheOlder is what Talos does when a node joins under
// a name that a member has.
func TestANodeOfTheSameNameEvictsTheOlder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	older := w.joins()
	w.ready(older)
	w.joins()
	before := w.voters(first, 3)

	newer := w.add()
	w.configureAs(newer, older.Hostname())
	var after []talosclient.EtcdMember
	w.Eventually(func() []talosclient.EtcdMember {
		after = w.voters(first, 3)
		return after
	}).ShouldNot(Equal(before))
	w.Expect(after).To(ContainElement(And(
		HaveField("Hostname", older.Hostname()), HaveField("PeerURLs", ConsistOf(ContainSubstring(newer.Spec().Address))))))
	w.Eventually(older.ServesAPI).Should(BeFalse())
	w.Expect(older.HasEtcdData()).To(BeTrue())
}
