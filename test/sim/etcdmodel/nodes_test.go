package etcdmodel_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

func TestBootstrapIsRefusedWhereDataIs(t *testing.T) {
	g := NewWithT(t)
	nodes := &etcdmodel.Nodes{}
	g.Expect(nodes.Join(group, "n0", "n0", "https://n0")).To(MatchError(etcdmodel.ErrNoCluster))
	g.Expect(nodes.Bootstrap(group, "n0", "n0", "https://n0")).To(Succeed())
	g.Expect(nodes.Bootstrap(group, "n0", "n0", "https://n0")).To(MatchError(etcdmodel.ErrDataExists))
	g.Expect(nodes.Join(group, "n0", "n0", "https://n0")).To(MatchError(etcdmodel.ErrDataExists))
	g.Expect(nodes.Bootstraps(group)).To(Equal(1))

	nodes.Stop("n0")
	g.Expect(nodes.Bootstrap(group, "n0", "n0", "https://n0")).To(MatchError(etcdmodel.ErrDataExists), "it is about data, not about what runs")
	nodes.Wipe("n0")
	g.Expect(nodes.HasData(group)).To(BeFalse())
	g.Expect(nodes.Start("n0", "n0")).To(MatchError(etcdmodel.ErrNoData))
	g.Expect(nodes.Bootstrap(group, "n0", "n0", "https://n0")).To(Succeed())
	g.Expect(nodes.Bootstraps(group)).To(Equal(2))
	g.Expect(nodes.Bootstraps("")).To(Equal(2))
	g.Expect(nodes.Bootstraps("b")).To(BeZero())
}

func TestARecoveryIsABootstrap(t *testing.T) {
	g := NewWithT(t)
	nodes := &etcdmodel.Nodes{}
	g.Expect(nodes.Bootstrap(group, "n0", "n0", "https://n0")).To(Succeed())
	g.Expect(nodes.Recover(group, "n0", "n0", "https://n0")).To(MatchError(etcdmodel.ErrDataExists))
	g.Expect(nodes.Recoveries(group)).To(BeZero())
	before, _ := nodes.Data("n0")
	nodes.Wipe("n0")
	g.Expect(nodes.Recover(group, "n0", "n0", "https://n0")).To(Succeed())
	after, _ := nodes.Data("n0")
	g.Expect(after.ID).NotTo(Equal(before.ID))
	g.Expect(after.Cluster.Members()).To(HaveExactElements(And(HaveField("ID", after.ID), HaveField("Up", true), HaveField("Learner", false))))
	g.Expect([]int{nodes.Bootstraps(group), nodes.Recoveries(group), nodes.Recoveries("b")}).To(Equal([]int{2, 1, 0}))
	g.Expect(nodes.Recover("b", "x", "x", "https://x")).To(Succeed())
	g.Expect([]int{nodes.Bootstraps(""), nodes.Recoveries("")}).To(Equal([]int{3, 2}))
}

func TestASecondBootstrapSplitsAGroup(t *testing.T) {
	g := NewWithT(t)
	nodes, first, _ := grown(g, 1)
	g.Expect(nodes.Bootstrap(group, "other", "other", "https://other")).To(Succeed(), "Talos does not protect against it")
	second, _ := nodes.Data("other")
	g.Expect(second.Cluster).NotTo(BeIdenticalTo(first))
	g.Expect(first.Members()).To(HaveLen(1))
	g.Expect(second.Cluster.Members()).To(HaveLen(1))
	g.Expect(nodes.Bootstraps(group)).To(Equal(2))
	g.Expect(nodes.Answering(group)).To(BeIdenticalTo(first), "the older one")
}

// TestAListedNodeHasNoData: Talos looks at its directory, and bootstraps it.
func TestAListedNodeHasNoData(t *testing.T) {
	g := NewWithT(t)
	nodes, first, _ := grown(g, 1)
	g.Expect(nodes.Add(group, "n1", "n1", "https://n1")).To(Succeed())
	g.Expect(nodes.Add(group, "n1", "n1", "https://n1")).To(MatchError(etcdmodel.ErrDataExists), "it is listed once")
	nodes.Wipe("n0")
	g.Expect(nodes.HasData(group)).To(BeFalse())

	g.Expect(nodes.Bootstrap(group, "n1", "n1", "https://n1")).To(Succeed())
	own, _ := nodes.Data("n1")
	g.Expect(own).To(And(HaveField("Listed", false), HaveField("Cluster", Not(BeIdenticalTo(first)))))
	g.Expect(first.Members()).To(ContainElement(And(HaveField("Name", ""), HaveField("Learner", true))), "it stays in the other list")
	g.Expect(nodes.HasData(group)).To(BeTrue())
	g.Expect(nodes.Bootstrap(group, "n1", "n1", "https://n1")).To(MatchError(etcdmodel.ErrDataExists))
}

// TestAListedNodeHasDataOnceItHasRun is about the other half of a join.
func TestAListedNodeHasDataOnceItHasRun(t *testing.T) {
	g := NewWithT(t)
	nodes, cluster, _ := grown(g, 1)
	g.Expect(nodes.Add(group, "n1", "n1", "https://n1")).To(Succeed())
	listed, _ := nodes.Data("n1")
	g.Expect(listed.Listed).To(BeTrue())
	g.Expect(cluster.Remove(listed.ID)).To(Succeed())
	g.Expect(nodes.Start("n1", "n1")).To(MatchError(etcdmodel.ErrMemberNotFound))
	still, _ := nodes.Data("n1")
	g.Expect(still.Listed).To(BeTrue())

	nodes.Wipe("n1")
	g.Expect(nodes.Join(group, "n1", "n1", "https://n1")).To(Succeed())
	joined, _ := nodes.Data("n1")
	g.Expect(joined.Listed).To(BeFalse())
	g.Expect(nodes.Bootstrap(group, "n1", "n1", "https://n1")).To(MatchError(etcdmodel.ErrDataExists))
}

func TestGroupsKnowNothingOfEachOther(t *testing.T) {
	g := NewWithT(t)
	nodes, _, _ := grown(g, 3)
	g.Expect(nodes.Join("b", "x", "x", "https://x")).To(MatchError(etcdmodel.ErrNoCluster))
	g.Expect(nodes.HasData("b")).To(BeFalse())
}

func TestLeaving(t *testing.T) {
	g := NewWithT(t)
	nodes, cluster, _ := grown(g, 3)
	g.Expect(nodes.Leave("n2")).To(Succeed())
	g.Expect(nodes.Leave("n2")).To(MatchError(etcdmodel.ErrNoData))
	g.Expect(cluster.Members()).To(HaveLen(2))
	nodes.Stop("n0")
	g.Expect(nodes.Leave("n1")).To(MatchError(etcdmodel.ErrNoLeader))
	_, kept := nodes.Data("n1")
	g.Expect(kept).To(BeTrue())
	g.Expect(nodes.Start("n0", "n0")).To(Succeed())
	data, _ := nodes.Data("n1")
	g.Expect(cluster.Remove(data.ID)).To(Succeed())
	g.Expect(nodes.Start("n1", "n1")).To(MatchError(etcdmodel.ErrMemberNotFound), "who was removed does not start")
	g.Expect(nodes.Leave("n1")).To(Succeed(), "it is out already")
}

func TestAWipedNodeOfTheSameNameTakesItsPlace(t *testing.T) {
	g := NewWithT(t)
	nodes, cluster, ids := grown(g, 3)
	nodes.Wipe("n2")
	g.Expect(cluster.Members()).To(HaveLen(3), "its member is down, but listed")
	g.Expect(nodes.Join(group, "n2", "n2", "https://n2")).To(Succeed())
	data, _ := nodes.Data("n2")
	g.Expect(data.ID).NotTo(Equal(ids[2]))
	g.Expect(cluster.Members()).To(HaveLen(3))
	member, _ := cluster.Member(data.ID)
	g.Expect(member).To(And(HaveField("Learner", true), HaveField("Up", true), HaveField("Name", "n2")))
}
