package etcdmodel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Count is how many voters a cluster has, and how many of them answer.
type Count struct{ Voters, Answering int }

// HasQuorum reports whether a majority of the voters answers; where nobody votes
// nobody has a quorum.
func (c Count) HasQuorum() bool { return c.Answering >= quorum(c.Voters) }

// String reads as "2 of 3".
func (c Count) String() string { return fmt.Sprintf("%d of %d", c.Answering, c.Voters) }

// Count counts the voters of the cluster now.
func (c *Cluster) Count() Count {
	all, up := c.voters()
	return Count{Voters: all, Answering: up}
}

// without is the count once a member no longer answers, and is no member any
// more if it leaves.
func (c *Cluster) without(id uint64, leaves bool) Count {
	count := c.Count()
	member, found := c.Member(id)
	if !found || member.Learner {
		return count
	}
	if member.Up {
		count.Answering--
	}
	if leaves {
		count.Voters--
	}
	return count
}

// Call is a call that changes who is a member, or takes a member away.
type Call string

// The calls that are judged.
const (
	CallBootstrap Call = "Bootstrap"
	CallLeave     Call = "EtcdLeaveCluster"
	CallRemove    Call = "EtcdRemoveMemberByID"
	CallReset     Call = "Reset"
)

// Act is one such call as it reached a node.
type Act struct {
	Call Call
	// Node is the node that was called.
	Node string
	// Group is the group of the node.
	Group string
	// Member is the member that the call was about, and MemberName its name.
	Member     uint64
	MemberName string
	// Before and After are the voters of that member's cluster.
	Before, After Count
	// Learning are the names, else IDs, of other members that learnt before the act,
	// and had for as long as the judge is patient.
	Learning []string
	// Corrupt reports whether the alarm CORRUPT was raised before the act.
	Corrupt bool
	// Least is the number of voters that must be left of those that are asked for; 0
	// where nobody has said.
	Least int
	// Beside are the other nodes that had data of the group, or were listed in it, when
	// it was bootstrapped.
	Beside []string
	// Refusal is why nothing was done; nil when it was.
	Refusal error
}

// String is the act in one line.
func (a Act) String() string {
	text := fmt.Sprintf("%s on %s", a.Call, a.Node)
	if a.Call != CallBootstrap {
		text += fmt.Sprintf(" for member %x (%s), voters answering %s, then %s", a.Member, a.MemberName, a.Before, a.After)
	}
	if a.Refusal != nil {
		text += fmt.Sprintf(": refused, %v", a.Refusal)
	}
	return text
}

// Offence is what is wrong with the act; nil when nothing is. What was refused has
// done no harm. A group is bootstrapped once as long as any node has data of it. One
// member changes at a time: none leaves, or is removed, while another learns. No voter
// goes while the data of members differ, nor one that answers when fewer would be left
// than are asked for. And the quorum stays.
func (a Act) Offence() error {
	if a.Refusal != nil {
		return nil
	}
	answered := a.After.Answering < a.Before.Answering
	switch {
	case a.Call == CallBootstrap && len(a.Beside) > 0:
		return fmt.Errorf("%s bootstrapped a second time: %s had data of the same cluster", a, strings.Join(a.Beside, ", "))
	case a.Call == CallBootstrap:
		return nil
	case a.Call != CallReset && len(a.Learning) > 0:
		return fmt.Errorf("%s: a second change while %s learns", a, strings.Join(a.Learning, ", "))
	case a.Corrupt && (answered || a.After.Voters < a.Before.Voters):
		return fmt.Errorf("%s: it took a voter while the data of members differ", a)
	case answered && a.After.Voters < a.Least:
		return fmt.Errorf("%s: it left fewer than %d voters", a, a.Least)
	}
	return a.lostQuorum()
}

// lostQuorum is what is wrong when the act leaves fewer voters that answer than a
// quorum of the voters that are left: there was a quorum, or it takes one that
// answers.
func (a Act) lostQuorum() error {
	switch {
	case a.After.HasQuorum():
		return nil
	case a.Before.HasQuorum():
		return fmt.Errorf("%s: it took the quorum of %d away", a, quorum(a.After.Voters))
	case a.After.Answering < a.Before.Answering:
		return fmt.Errorf("%s: it took a voter that answered from a cluster without quorum", a)
	}
	return nil
}

// Judge writes down what is called for on nodes. It is not safe for concurrent
// use.
type Judge struct {
	// Patience is for how long a member must have learnt before a change beside it is
	// one too many: who acts has looked before. It needs the clock of the Nodes.
	Patience time.Duration
	// Least is the number of voters that acts must leave; 0 when any will do. Who asks
	// for fewer Machines, or takes some away, says so here before.
	Least int

	nodes *Nodes
	acts  []Act
}

// NewJudge judges what is done to nodes.
func NewJudge(nodes *Nodes) *Judge { return &Judge{nodes: nodes} }

// before is the act that is about a member, before it is done.
func (j *Judge) before(call Call, node, group string, cluster *Cluster, id uint64) Act {
	named, _ := cluster.Member(id)
	act := Act{
		Call: call, Node: node, Group: group, Member: id, MemberName: named.Name, Before: cluster.Count(), Least: j.Least,
		Corrupt: slices.ContainsFunc(cluster.alarms, func(alarm Alarm) bool { return alarm.Kind == Corrupt }),
	}
	for _, member := range cluster.members {
		if member.ID != id && member.Learner && j.nodes.now().Sub(member.Since) >= j.Patience {
			act.Learning = append(act.Learning, cmp.Or(member.Name, fmt.Sprintf("%x", member.ID)))
		}
	}
	return act
}

// Acts are what has been called for, in order.
func (j *Judge) Acts() []Act { return slices.Clone(j.acts) }

// Offences are the acts that were wrong.
func (j *Judge) Offences() []error {
	var found []error
	for _, act := range j.acts {
		if err := act.Offence(); err != nil {
			found = append(found, err)
		}
	}
	return found
}

// Bootstrap judges a bootstrap of a group on a node, which do does.
func (j *Judge) Bootstrap(group, node string, do func() error) error {
	act := Act{Call: CallBootstrap, Node: node, Group: group, Beside: j.nodes.beside(group, node)}
	act.Refusal = do()
	if data, found := j.nodes.Data(node); found {
		act.Member, act.After = data.ID, data.Cluster.Count()
	}
	j.acts = append(j.acts, act)
	return act.Refusal
}

// Change judges a call that takes a member out of its cluster, which do does.
func (j *Judge) Change(call Call, node string, cluster *Cluster, member uint64, do func() error) error {
	act := j.before(call, node, j.groupOf(cluster), cluster, member)
	act.Refusal = do()
	act.After = cluster.Count()
	if !j.repeats(act) {
		j.acts = append(j.acts, act)
	}
	return act.Refusal
}

// repeats reports whether an act was refused as it was just before: Talos tries to
// leave again and again.
func (j *Judge) repeats(act Act) bool {
	if act.Refusal == nil || len(j.acts) == 0 {
		return false
	}
	last := j.acts[len(j.acts)-1]
	return last.Call == act.Call && last.Node == act.Node && last.Member == act.Member && errors.Is(act.Refusal, last.Refusal)
}

// Reset judges the reset of a node when it is called for: its member, if it has
// one, will not answer any more. leaves tells that it leaves its cluster first.
func (j *Judge) Reset(node string, leaves bool) {
	data, found := j.nodes.Data(node)
	if !found {
		return
	}
	if _, member := data.Cluster.Member(data.ID); !member {
		return
	}
	act := j.before(CallReset, node, data.Group, data.Cluster, data.ID)
	act.After = data.Cluster.without(data.ID, leaves)
	j.acts = append(j.acts, act)
}

func (j *Judge) groupOf(cluster *Cluster) string {
	for _, data := range j.nodes.data {
		if data.Cluster == cluster {
			return data.Group
		}
	}
	return ""
}

// beside are the other nodes that have data of a group, or are listed in it, in the order
// of their names.
func (n *Nodes) beside(group, node string) []string {
	var found []string
	for other, data := range n.data {
		if data.Group == group && other != node {
			found = append(found, other)
		}
	}
	slices.Sort(found)
	return found
}
