package etcdmodel_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

const group = "a"

// grown is a cluster of that many voters, on nodes n0, n1 and so on.
func grown(g *WithT, voters int) (*etcdmodel.Nodes, *etcdmodel.Cluster, []uint64) {
	nodes := &etcdmodel.Nodes{}
	var ids []uint64
	for i := range voters {
		name := fmt.Sprintf("n%d", i)
		if i == 0 {
			g.Expect(nodes.Bootstrap(group, name, name, "https://"+name)).To(Succeed())
		} else {
			g.Expect(nodes.Join(group, name, name, "https://"+name)).To(Succeed())
		}
		data, _ := nodes.Data(name)
		if i > 0 {
			g.Expect(data.Cluster.Promote(data.ID)).To(Succeed())
		}
		ids = append(ids, data.ID)
	}
	return nodes, nodes.Answering(group), ids
}

// TestRemovals has etcd's answer for each size of a cluster, number of members
// that are down, and kind of the member to remove.
func TestRemovals(t *testing.T) {
	for name, test := range map[string]struct {
		voters, down int
		removeDown   bool
		want         error
	}{
		"the only member":                  {voters: 1, want: etcdmodel.ErrNotEnoughStarted},
		"one of two":                       {voters: 2},
		"one of two without quorum":        {voters: 2, down: 1, removeDown: true, want: etcdmodel.ErrNoLeader},
		"one of three":                     {voters: 3},
		"the one of three that is down":    {voters: 3, down: 1, removeDown: true},
		"one of the two of three still up": {voters: 3, down: 1, want: etcdmodel.ErrUnhealthy},
		"one of three without quorum":      {voters: 3, down: 2, removeDown: true, want: etcdmodel.ErrNoLeader},
		"one of four, another is down":     {voters: 4, down: 1},
		"one of five, another is down":     {voters: 5, down: 1},
		"one of five, two others are down": {voters: 5, down: 2, want: etcdmodel.ErrUnhealthy},
		"one of the two of five down":      {voters: 5, down: 2, removeDown: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, cluster, ids := grown(g, test.voters)
			for _, id := range ids[:test.down] {
				cluster.Stop(id)
			}
			target := ids[len(ids)-1]
			if test.removeDown {
				target = ids[0]
			}
			if test.want != nil {
				g.Expect(cluster.Remove(target)).To(MatchError(test.want))
				g.Expect(cluster.Members()).To(HaveLen(test.voters))
				return
			}
			g.Expect(cluster.Remove(target)).To(Succeed())
			g.Expect(cluster.HasQuorum()).To(BeTrue())
			g.Expect(cluster.Remove(target)).To(MatchError(etcdmodel.ErrMemberNotFound))
		})
	}
}

func TestAdditions(t *testing.T) {
	for name, test := range map[string]struct {
		voters, down int
		url          string
		want         error
	}{
		"to one":                        {voters: 1},
		"to two":                        {voters: 2},
		"to three":                      {voters: 3},
		"to three, one is down":         {voters: 3, down: 1, want: etcdmodel.ErrUnhealthy},
		"to five, one is down":          {voters: 5, down: 1},
		"to five, two are down":         {voters: 5, down: 2, want: etcdmodel.ErrUnhealthy},
		"without quorum":                {voters: 3, down: 2, want: etcdmodel.ErrNoLeader},
		"of a peer URL that is another": {voters: 1, url: "https://n0", want: etcdmodel.ErrPeerURLExists},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, cluster, ids := grown(g, test.voters)
			for _, id := range ids[:test.down] {
				cluster.Stop(id)
			}
			if test.url == "" {
				test.url = "https://new"
			}
			_, err := cluster.AddLearner(test.url)
			if test.want != nil {
				g.Expect(err).To(MatchError(test.want))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestALearner(t *testing.T) {
	g := NewWithT(t)
	_, cluster, ids := grown(g, 3)
	learner, err := cluster.AddLearner("https://new")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = cluster.AddLearner("https://newer")
	g.Expect(err).To(MatchError(etcdmodel.ErrTooManyLearners), "one at a time")
	member, found := cluster.Member(learner)
	g.Expect(found).To(BeTrue())
	g.Expect(member.Name).To(BeEmpty(), "it has not run yet")
	g.Expect(cluster.Promote(learner)).To(MatchError(etcdmodel.ErrLearnerNotReady))
	g.Expect(cluster.MoveLeader(learner)).To(MatchError(etcdmodel.ErrMemberNotFound))
	g.Expect(cluster.Start(learner, "new")).To(Succeed())

	cluster.Stop(ids[0])
	cluster.Stop(ids[1])
	g.Expect(cluster.HasQuorum()).To(BeFalse(), "a learner does not vote")
	g.Expect(cluster.Start(ids[0], "n0")).To(Succeed())
	g.Expect(cluster.Promote(ids[0])).To(MatchError(etcdmodel.ErrNotLearner))
	g.Expect(cluster.Promote(learner)).To(Succeed())
	g.Expect(cluster.Remove(ids[1])).To(Succeed())
}

func TestTheLeader(t *testing.T) {
	g := NewWithT(t)
	_, cluster, ids := grown(g, 3)
	g.Expect(cluster.Leader()).To(Equal(ids[0]))
	g.Expect(cluster.MoveLeader(ids[2])).To(Succeed())
	term := cluster.Term()
	cluster.Stop(ids[0])
	g.Expect(cluster.Leader()).To(Equal(ids[2]), "nothing has happened to the leader")
	g.Expect(cluster.Term()).To(Equal(term))
	g.Expect(cluster.MoveLeader(ids[0])).To(MatchError(etcdmodel.ErrUnhealthy))
	g.Expect(cluster.Start(ids[0], "n0")).To(Succeed())
	cluster.Stop(ids[2])
	g.Expect(cluster.Leader()).To(Equal(ids[0]))
	g.Expect(cluster.Term()).To(BeNumerically(">", term))
	cluster.Stop(ids[0])
	g.Expect(cluster.Leader()).To(BeZero())
	g.Expect(cluster.MoveLeader(ids[1])).To(MatchError(etcdmodel.ErrNoLeader))
}

// TestALearnerThatNoLongerAnswers may be promoted all the same as long as the
// leader is the one that has seen it in sync.
func TestALearnerThatNoLongerAnswers(t *testing.T) {
	g := NewWithT(t)
	_, cluster, ids := grown(g, 3)
	learner, err := cluster.AddLearner("https://new")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cluster.Start(learner, "new")).To(Succeed())
	cluster.Stop(learner)
	g.Expect(cluster.MoveLeader(ids[1])).To(Succeed())
	g.Expect(cluster.Promote(learner)).To(MatchError(etcdmodel.ErrLearnerNotReady), "this leader has not seen it")
	cluster.Stop(ids[0])
	g.Expect(cluster.MoveLeader(ids[2])).To(Succeed())
	g.Expect(cluster.Promote(ids[0])).To(MatchError(etcdmodel.ErrLearnerNotReady), "asked before whether it is a learner")
	g.Expect(cluster.Start(ids[0], "n0")).To(Succeed())
	g.Expect(cluster.Promote(ids[0])).To(MatchError(etcdmodel.ErrNotLearner))

	g.Expect(cluster.Start(learner, "new")).To(Succeed())
	cluster.Stop(learner)
	cluster.Stop(ids[0])
	g.Expect(cluster.Promote(learner)).To(Succeed())
	g.Expect(cluster.HasQuorum()).To(BeFalse(), "two of four")
}

// TestALeaderThatWasSilentGoesOn, unless others could elect another one meanwhile, or it
// was ended: then the new one has not seen a learner that no longer answers.
func TestALeaderThatWasSilentGoesOn(t *testing.T) {
	for name, tt := range map[string]struct {
		voters int
		happen func(g *WithT, cluster *etcdmodel.Cluster, ids []uint64)
		still  bool
	}{
		"nobody else could be elected": {2, func(*WithT, *etcdmodel.Cluster, []uint64) {}, true},
		"the others were restarted, one at a time": {2, func(g *WithT, cluster *etcdmodel.Cluster, ids []uint64) {
			cluster.Stop(ids[1])
			g.Expect(cluster.Start(ids[1], "n1")).To(Succeed())
		}, true},
		"the others had a majority": {3, func(*WithT, *etcdmodel.Cluster, []uint64) {}, false},
		"it was ended":              {2, func(_ *WithT, cluster *etcdmodel.Cluster, ids []uint64) { cluster.Stop(ids[0]) }, false},
		"it found nobody": {2, func(g *WithT, cluster *etcdmodel.Cluster, ids []uint64) {
			cluster.Stop(ids[1])
			g.Expect(cluster.Start(ids[0], "n0")).To(Succeed())
			g.Expect(cluster.Leader()).To(BeZero())
			g.Expect(cluster.Start(ids[1], "n1")).To(Succeed())
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, cluster, ids := grown(g, tt.voters)
			learner, err := cluster.AddLearner("https://new")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cluster.Start(learner, "new")).To(Succeed())
			cluster.Stop(learner)
			term := cluster.Term()
			cluster.Silence(ids[0])
			tt.happen(g, cluster, ids)
			g.Expect(cluster.Start(ids[0], "n0")).To(Succeed())
			if !tt.still {
				g.Expect(cluster.Term()).To(BeNumerically(">", term))
				g.Expect(cluster.Promote(learner)).To(MatchError(etcdmodel.ErrLearnerNotReady))
				return
			}
			g.Expect(cluster.Leader()).To(Equal(ids[0]))
			g.Expect(cluster.Term()).To(Equal(term))
			g.Expect(cluster.Promote(learner)).To(Succeed())
		})
	}
}

// TestQuorumSurvivesEveryChangeThatIsAllowed does random changes: one that is
// not refused must leave a cluster that can go on. The exception is etcd's own:
// a learner that no longer answers may be promoted.
func TestQuorumSurvivesEveryChangeThatIsAllowed(t *testing.T) {
	const seeds, steps = 200, 60
	for seed := range uint64(seeds) {
		g := NewWithT(t)
		random := rand.New(rand.NewPCG(seed, seed))
		_, cluster, _ := grown(g, 1+random.IntN(5))
		for step := range steps {
			members := cluster.Members()
			chosen := members[random.IntN(len(members))]
			id := chosen.ID
			var err error
			switch random.IntN(5) {
			case 0:
				_, err = cluster.AddLearner(fmt.Sprintf("https://%d", step))
			case 1:
				if !chosen.Up {
					continue
				}
				err = cluster.Promote(id)
			case 2:
				err = cluster.Remove(id)
			case 3:
				g.Expect(cluster.Start(id, fmt.Sprintf("node-%d", id))).To(Succeed())
				continue
			case 4:
				cluster.Stop(id)
				continue
			}
			if err == nil {
				g.Expect(cluster.HasQuorum()).To(BeTrue(), "seed %d, step %d: %+v became %+v", seed, step, members, cluster.Members())
			}
			g.Expect(cluster.Leader() != 0).To(Equal(cluster.HasQuorum()))
		}
	}
}

// TestAMemberMoves: another address needs a quorum without the member, unless it is
// alone, and is never that of another one.
func TestAMemberMoves(t *testing.T) {
	g := NewWithT(t)
	_, cluster, ids := grown(g, 3)
	cluster.Stop(ids[2])
	g.Expect(cluster.Readdress(ids[2], "https://n1")).To(MatchError(etcdmodel.ErrPeerURLExists))
	g.Expect(cluster.Readdress(ids[2], "https://moved")).To(Succeed())
	g.Expect(cluster.Members()[2].PeerURL).To(Equal("https://moved"))
	g.Expect(cluster.Readdress(0, "https://none")).To(MatchError(etcdmodel.ErrMemberNotFound))
	cluster.Stop(ids[1])
	g.Expect(cluster.Readdress(ids[2], "https://again")).To(MatchError(etcdmodel.ErrNoLeader))

	_, alone, ids := grown(g, 1)
	alone.Stop(ids[0])
	g.Expect(alone.Readdress(ids[0], "https://moved")).To(Succeed())
}

// TestAMemberThatRunsIsNotStartedAnew: it goes on to count a peer as connected that
// became silent; only one that was started since does not.
func TestAMemberThatRunsIsNotStartedAnew(t *testing.T) {
	g := NewWithT(t)
	nodes, cluster, ids := grown(g, 3)
	nodes.Silence("n2")
	g.Expect(nodes.Start("n0", "n0")).To(Succeed())
	g.Expect(cluster.Connected(ids[0], ids[2])).To(BeTrue())

	nodes.Stop("n0")
	g.Expect(nodes.Start("n0", "n0")).To(Succeed())
	g.Expect(cluster.Connected(ids[0], ids[2])).To(BeFalse())
	g.Expect(cluster.Connected(ids[1], ids[2])).To(BeTrue())
}
