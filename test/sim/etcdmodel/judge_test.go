package etcdmodel_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// judged are nodes a, b, c … of a cluster of so many voters, and their judge.
func judged(g *WithT, voters int) (*etcdmodel.Nodes, *etcdmodel.Judge, []string) {
	nodes := &etcdmodel.Nodes{}
	judge := etcdmodel.NewJudge(nodes)
	names := []string{"a", "b", "c", "d", "e"}[:voters]
	g.Expect(judge.Bootstrap("x", "a", func() error { return nodes.Bootstrap("x", "a", "a", "https://a") })).To(Succeed())
	for _, name := range names[1:] {
		g.Expect(nodes.Join("x", name, name, "https://"+name)).To(Succeed())
		data, _ := nodes.Data(name)
		g.Expect(data.Cluster.Promote(data.ID)).To(Succeed())
	}
	return nodes, judge, names
}

// TestOffences has all calls that can do harm, and such that look like it.
func TestOffences(t *testing.T) {
	data := func(nodes *etcdmodel.Nodes, node string) etcdmodel.Data {
		found, _ := nodes.Data(node)
		return found
	}
	remove := func(nodes *etcdmodel.Nodes, judge *etcdmodel.Judge, node string) error {
		of := data(nodes, node)
		return judge.Change(etcdmodel.CallRemove, "a", of.Cluster, of.ID, func() error { return of.Cluster.Remove(of.ID) })
	}
	leave := func(nodes *etcdmodel.Nodes, judge *etcdmodel.Judge, node string) error {
		of := data(nodes, node)
		return judge.Change(etcdmodel.CallLeave, node, of.Cluster, of.ID, func() error { return nodes.Leave(node) })
	}
	for name, test := range map[string]struct {
		voters  int
		act     func(*WithT, *etcdmodel.Nodes, *etcdmodel.Judge)
		offence string
	}{
		"a member of three leaves": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(leave(nodes, judge, "c")).To(Succeed())
			judge.Reset("c", false)
		}},
		"a dead member of three is removed": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Stop("c")
			g.Expect(remove(nodes, judge, "c")).To(Succeed())
		}},
		"a member is removed while another is dead": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Stop("c")
			g.Expect(remove(nodes, judge, "b")).To(MatchError(etcdmodel.ErrUnhealthy), "etcd itself sees that one")
		}},
		"a member is removed while another is silent": {
			voters: 3, offence: "voters answering 2 of 3, then 1 of 2: it took the quorum of 2 away",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				nodes.Silence("c")
				g.Expect(remove(nodes, judge, "b")).To(Succeed(), "etcd does not see it")
			},
		},
		"one of five leaves while two are silent": {
			voters: 5, offence: "EtcdLeaveCluster on b for member",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				nodes.Silence("d")
				nodes.Silence("e")
				g.Expect(leave(nodes, judge, "b")).To(Succeed())
			},
		},
		"one of five leaves while one is silent": {voters: 5, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Silence("e")
			g.Expect(leave(nodes, judge, "b")).To(Succeed())
		}},
		"a member is wiped without leaving": {voters: 3, act: func(_ *WithT, _ *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			judge.Reset("b", false)
		}},
		"a member is wiped while another is dead": {
			voters: 3, offence: "Reset on b for member",
			act: func(_ *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				nodes.Stop("c")
				judge.Reset("b", false)
			},
		},
		"the only member is wiped": {
			voters: 1, offence: "voters answering 1 of 1, then 0 of 1",
			act: func(_ *WithT, _ *etcdmodel.Nodes, judge *etcdmodel.Judge) { judge.Reset("a", false) },
		},
		"a dead member is wiped where there is no quorum": {voters: 3, act: func(_ *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Stop("b")
			nodes.Stop("c")
			judge.Reset("c", false)
		}},
		"the last one that answers is wiped where there is no quorum": {
			voters: 3, offence: "it took a voter that answered from a cluster without quorum",
			act: func(_ *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				nodes.Stop("b")
				nodes.Stop("c")
				judge.Reset("a", false)
			},
		},
		"a removed member is wiped": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Stop("c")
			g.Expect(remove(nodes, judge, "c")).To(Succeed())
			judge.Reset("c", false)
		}},
		"a learner is removed while one is dead": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
			nodes.Stop("c")
			g.Expect(remove(nodes, judge, "l")).To(Succeed())
		}},
		"a member is removed while another learns": {
			voters: 3, offence: "a second change while l learns",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
				g.Expect(remove(nodes, judge, "c")).To(Succeed())
			},
		},
		"a member leaves while another is listed": {
			voters: 3, offence: "a second change while 8e9e05c521646951 learns",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				g.Expect(nodes.Add("x", "l", "l", "https://l")).To(Succeed())
				g.Expect(leave(nodes, judge, "c")).To(Succeed())
			},
		},
		"a learner leaves": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
			g.Expect(leave(nodes, judge, "l")).To(Succeed())
		}},
		"a member leaves while another has begun to learn": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			judge.Patience = time.Second // Nobody has had the time to see it.
			g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
			g.Expect(leave(nodes, judge, "c")).To(Succeed())
		}},
		"a member leaves while another has learnt for long": {
			voters: 3, offence: "a second change while l learns",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				now := time.Unix(0, 0)
				judge.Patience, nodes.Clock = time.Second, func() time.Time { return now }
				g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
				now = now.Add(time.Second)
				g.Expect(leave(nodes, judge, "c")).To(Succeed())
			},
		},
		"a member is wiped while another learns": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
			judge.Reset("c", false)
		}},
		"a member leaves while the data of members differ": {
			voters: 3, offence: "it took a voter while the data of members differ",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				of := data(nodes, "a")
				g.Expect(of.Cluster.Raise(etcdmodel.Alarm{Member: of.ID, Kind: etcdmodel.Corrupt})).To(Succeed())
				g.Expect(leave(nodes, judge, "c")).To(Succeed())
			},
		},
		"a dead member is removed while the data of members differ": {
			voters: 3, offence: "it took a voter while the data of members differ",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				of := data(nodes, "a")
				g.Expect(of.Cluster.Raise(etcdmodel.Alarm{Member: of.ID, Kind: etcdmodel.Corrupt})).To(Succeed())
				nodes.Stop("c")
				g.Expect(remove(nodes, judge, "c")).To(Succeed())
			},
		},
		"a learner is removed while the data of members differ": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			of := data(nodes, "a")
			g.Expect(nodes.Join("x", "l", "l", "https://l")).To(Succeed())
			g.Expect(of.Cluster.Raise(etcdmodel.Alarm{Member: of.ID, Kind: etcdmodel.Corrupt})).To(Succeed())
			g.Expect(remove(nodes, judge, "l")).To(Succeed())
		}},
		"a member leaves while the database of one is full": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			of := data(nodes, "a")
			g.Expect(of.Cluster.Raise(etcdmodel.Alarm{Member: of.ID, Kind: etcdmodel.NoSpace})).To(Succeed())
			g.Expect(leave(nodes, judge, "c")).To(Succeed())
		}},
		"as many are left as must be": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			judge.Least = 2
			g.Expect(leave(nodes, judge, "c")).To(Succeed())
		}},
		"fewer are left than must be": {
			voters: 3, offence: "EtcdLeaveCluster on b for member 8e9e05c52164694f (b), voters answering 2 of 2, then 1 of 1: it left fewer than 2 voters",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				judge.Least = 2
				g.Expect(leave(nodes, judge, "c")).To(Succeed())
				g.Expect(leave(nodes, judge, "b")).To(Succeed())
			},
		},
		"fewer are asked for meanwhile": {voters: 3, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			judge.Least = 2
			g.Expect(leave(nodes, judge, "c")).To(Succeed())
			judge.Least = 0
			g.Expect(leave(nodes, judge, "b")).To(Succeed())
		}},
		"dead members are removed": {voters: 5, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			judge.Least = 4
			nodes.Stop("d")
			nodes.Stop("e")
			g.Expect(remove(nodes, judge, "d")).To(Succeed())
			g.Expect(remove(nodes, judge, "e")).To(Succeed())
		}},
		"the same node is bootstrapped again": {voters: 1, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(judge.Bootstrap("x", "a", func() error { return nodes.Bootstrap("x", "a", "a", "https://a") })).To(MatchError(etcdmodel.ErrDataExists))
		}},
		"another node is bootstrapped": {
			voters: 1, offence: "Bootstrap on b bootstrapped a second time: a had data of the same cluster",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				nodes.Stop("a")
				g.Expect(judge.Bootstrap("x", "b", func() error { return nodes.Bootstrap("x", "b", "b", "https://b") })).To(Succeed())
			},
		},
		"a node that is listed, and has no data yet, is bootstrapped": {
			voters: 3, offence: "Bootstrap on l bootstrapped a second time: a, b, c had data of the same cluster",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				g.Expect(nodes.Add("x", "l", "l", "https://l")).To(Succeed())
				g.Expect(judge.Bootstrap("x", "l", func() error { return nodes.Bootstrap("x", "l", "l", "https://l") })).To(Succeed())
			},
		},
		"another node is bootstrapped while one is listed": {
			voters: 1, offence: "Bootstrap on b bootstrapped a second time: l had data of the same cluster",
			act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
				g.Expect(nodes.Add("x", "l", "l", "https://l")).To(Succeed())
				nodes.Wipe("a")
				g.Expect(judge.Bootstrap("x", "b", func() error { return nodes.Bootstrap("x", "b", "b", "https://b") })).To(Succeed())
			},
		},
		"another cluster is bootstrapped": {voters: 1, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			g.Expect(judge.Bootstrap("y", "b", func() error { return nodes.Bootstrap("y", "b", "b", "https://b") })).To(Succeed())
		}},
		"another node is bootstrapped once all data is gone": {voters: 1, act: func(g *WithT, nodes *etcdmodel.Nodes, judge *etcdmodel.Judge) {
			nodes.Wipe("a")
			g.Expect(judge.Bootstrap("x", "b", func() error { return nodes.Bootstrap("x", "b", "b", "https://b") })).To(Succeed())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			nodes, judge, _ := judged(g, test.voters)
			test.act(g, nodes, judge)
			if test.offence == "" {
				g.Expect(judge.Offences()).To(BeEmpty())
				return
			}
			g.Expect(judge.Offences()).To(ConsistOf(MatchError(ContainSubstring(test.offence))))
		})
	}
}

func TestActsTellTheVoters(t *testing.T) {
	g := NewWithT(t)
	nodes, judge, names := judged(g, 3)
	last, _ := nodes.Data(names[2])
	g.Expect(judge.Change(etcdmodel.CallRemove, "a", last.Cluster, last.ID, func() error { return last.Cluster.Remove(last.ID) })).To(Succeed())
	g.Expect(judge.Acts()).To(HaveExactElements(
		And(HaveField("Call", etcdmodel.CallBootstrap), HaveField("Beside", BeEmpty())),
		And(
			HaveField("Group", "x"), HaveField("MemberName", "c"), HaveField("Member", last.ID),
			HaveField("Before", etcdmodel.Count{Voters: 3, Answering: 3}), HaveField("After", etcdmodel.Count{Voters: 2, Answering: 2}),
		),
	))
}

func TestAlarmsStayUntilTheyAreDisarmed(t *testing.T) {
	g := NewWithT(t)
	nodes, _, _ := judged(g, 3)
	full, _ := nodes.Data("c")
	alarm := etcdmodel.Alarm{Member: full.ID, Kind: etcdmodel.NoSpace}
	g.Expect(full.Cluster.Raise(alarm)).To(Succeed())
	g.Expect(full.Cluster.Raise(alarm)).To(Succeed())
	g.Expect(full.Cluster.Alarms()).To(ConsistOf(alarm))
	g.Expect(full.Cluster.Writable()).To(BeFalse())
	g.Expect(nodes.Leave("c")).To(Succeed(), "membership changes are accepted")
	g.Expect(full.Cluster.Alarms()).To(ConsistOf(alarm), "nobody has disarmed it")
	g.Expect(full.Cluster.Disarm(full.ID)).To(Succeed())
	g.Expect(full.Cluster.Writable()).To(BeTrue())
	nodes.Stop("b")
	g.Expect(full.Cluster.Raise(alarm)).To(MatchError(etcdmodel.ErrNoLeader))
	g.Expect(full.Cluster.Disarm(full.ID)).To(MatchError(etcdmodel.ErrNoLeader))
	g.Expect(full.Cluster.Writable()).To(BeFalse())
}
