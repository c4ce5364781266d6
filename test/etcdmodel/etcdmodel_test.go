package etcdmodel_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/etcdmodel"
)

func grow(g *WithT, c *etcdmodel.Cluster, names ...string) []uint64 {
	var ids []uint64
	for i, name := range names {
		if i == 0 {
			ids = append(ids, c.Bootstrap(name, "https://"+name))
			continue
		}
		id, err := c.AddLearner(name, "https://"+name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.Promote(id)).To(Succeed())
		ids = append(ids, id)
	}
	return ids
}

func TestQuorum(t *testing.T) {
	g := NewWithT(t)
	c := &etcdmodel.Cluster{}
	g.Expect(c.HasQuorum()).To(BeFalse(), "nothing was bootstrapped")
	ids := grow(g, c, "a", "b", "c")
	g.Expect(c.Bootstraps()).To(Equal(1))
	g.Expect(c.Leader()).To(Equal(ids[0]))

	c.SetUp(ids[0], false)
	g.Expect(c.Leader()).To(Equal(ids[1]))
	g.Expect(c.Remove(ids[1])).To(MatchError(etcdmodel.ErrWouldLoseQuorum))
	g.Expect(c.Remove(ids[0])).To(Succeed(), "a member that does not answer may go while two of two answer")
	c.SetUp(ids[1], false)
	g.Expect(c.HasQuorum()).To(BeFalse())
	_, err := c.AddLearner("d", "https://d")
	g.Expect(err).To(MatchError(etcdmodel.ErrNoQuorum))
}

func TestLearners(t *testing.T) {
	g := NewWithT(t)
	c := &etcdmodel.Cluster{}
	ids := grow(g, c, "a", "b", "c")
	learner, err := c.AddLearner("d", "https://d")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.AddLearner("e", "https://e")
	g.Expect(err).To(MatchError(etcdmodel.ErrTooManyLearners))
	c.SetUp(ids[0], false)
	c.SetUp(ids[1], false)
	g.Expect(c.HasQuorum()).To(BeFalse(), "a learner does not vote")
	c.SetUp(ids[0], true)
	g.Expect(c.Promote(ids[0])).To(MatchError(etcdmodel.ErrNotLearner))
	g.Expect(c.Promote(learner)).To(Succeed())
	g.Expect(c.Promote(1)).To(MatchError(etcdmodel.ErrMemberNotFound))
}

func TestAMemberOfTheSameNameIsEvicted(t *testing.T) {
	g := NewWithT(t)
	c := &etcdmodel.Cluster{}
	ids := grow(g, c, "a", "b", "c")
	id, err := c.AddLearner("c", "https://other")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(id).NotTo(Equal(ids[2]))
	g.Expect(c.Members()).To(HaveLen(3))
}
