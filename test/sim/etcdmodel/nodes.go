package etcdmodel

import (
	"errors"
	"time"
)

// Errors of what a node does with its etcd.
var (
	// ErrDataExists says that a node has data already.
	ErrDataExists = errors.New("etcd data directory is not empty")
	// ErrNoData says that a node has no data.
	ErrNoData = errors.New("etcd data directory is empty")
	// ErrNoCluster says that no etcd of the group answers: nothing to join.
	ErrNoCluster = errors.New("no etcd cluster answers")
)

// Nodes are the nodes of a fleet as far as etcd's data goes. Nodes that share
// the CA of their etcd are a group: a node joins what answers within its group.
// The zero value is a fleet without data. It is not safe for concurrent use.
type Nodes struct {
	// Clock tells when a member is added; nil leaves that unknown.
	Clock func() time.Time

	data       map[string]Data
	lastID     uint64
	bootstraps map[string]int
	recoveries map[string]int
}

// Data is what lies in etcd's directory of one node.
type Data struct {
	// Group is the group in which it was made.
	Group string
	// Cluster is the cluster that it belongs to. Two clusters in one group are
	// what a second bootstrap makes: they know nothing of each other.
	Cluster *Cluster
	// ID is the member whose data it is. That member may have been removed.
	ID uint64
	// Listed reports whether the node has joined and its etcd has not run: the others have
	// it in their list, and its directory is empty.
	Listed bool
}

// firstID makes IDs look like etcd's own.
const firstID = 0x8e9e05c52164694d

func (n *Nodes) newID() uint64 {
	n.lastID++
	return firstID + n.lastID
}

func (n *Nodes) now() time.Time {
	if n.Clock == nil {
		return time.Time{}
	}
	return n.Clock()
}

func (n *Nodes) keep(node string, data Data) {
	if n.data == nil {
		n.data = map[string]Data{}
	}
	n.data[node] = data
}

// Data is what a node has, also when it is no more than listed.
func (n *Nodes) Data(node string) (Data, bool) {
	data, found := n.data[node]
	return data, found
}

// Bootstrap makes a new cluster with the node as its one member, which runs. As
// in Talos only data on this very node stands in the way, and one that is listed has
// none, so the callers must see to it that a group is bootstrapped once.
func (n *Nodes) Bootstrap(group, node, name, peerURL string) error {
	if data, found := n.data[node]; found && !data.Listed {
		return ErrDataExists
	}
	if n.bootstraps == nil {
		n.bootstraps = map[string]int{}
	}
	n.bootstraps[group]++
	cluster := newCluster(n.newID, n.now, name, peerURL)
	n.keep(node, Data{Group: group, Cluster: cluster, ID: cluster.members[0].ID})
	return nil
}

// Recover is Bootstrap on data of an older cluster: nothing but its members is new.
func (n *Nodes) Recover(group, node, name, peerURL string) error {
	if err := n.Bootstrap(group, node, name, peerURL); err != nil {
		return err
	}
	if n.recoveries == nil {
		n.recoveries = map[string]int{}
	}
	n.recoveries[group]++
	return nil
}

// Join makes the node a learner, which runs, of the cluster that answers in its
// group. A member of the same name goes first, as Talos v1.13.9 does when a node
// joins without data (internal/app/machined/pkg/system/services/etcd.go,
// addMember). That removal stays even when the rest is refused.
func (n *Nodes) Join(group, node, name, peerURL string) error {
	if err := n.Add(group, node, name, peerURL); err != nil {
		return err
	}
	return n.Start(node, name)
}

// JoinAt is Join when a certain member is asked.
func (n *Nodes) JoinAt(asked uint64, group, node, name, peerURL string) error {
	if err := n.AddAt(asked, group, node, name, peerURL); err != nil {
		return err
	}
	return n.Start(node, name)
}

// Add is the first half of Join: the node is listed as a learner without a name,
// which has not run. Start is the other half.
func (n *Nodes) Add(group, node, name, peerURL string) error {
	cluster := n.Answering(group)
	if cluster == nil {
		return n.AddAt(0, group, node, name, peerURL)
	}
	return n.AddAt(cluster.leader, group, node, name, peerURL)
}

// AddAt is Add when a certain member is asked.
func (n *Nodes) AddAt(asked uint64, group, node, name, peerURL string) error {
	if _, found := n.data[node]; found {
		return ErrDataExists
	}
	cluster := n.Answering(group)
	if cluster == nil {
		return ErrNoCluster
	}
	for _, member := range cluster.Members() {
		if member.Name != name {
			continue
		}
		if err := cluster.RemoveAt(asked, member.ID); err != nil {
			return err
		}
		if member.ID == asked {
			asked = cluster.leader
		}
	}
	id, err := cluster.AddLearnerAt(asked, peerURL)
	if err != nil {
		return err
	}
	n.keep(node, Data{Group: group, Cluster: cluster, ID: id, Listed: true})
	return nil
}

// Answering is the oldest cluster of a group that has a leader, as far as data
// of it lies on any node; nil when there is none.
func (n *Nodes) Answering(group string) *Cluster {
	var found *Cluster
	for _, data := range n.data {
		if data.Group == group && data.Cluster.Leader() != 0 && (found == nil || data.Cluster.members[0].ID < found.members[0].ID) {
			found = data.Cluster
		}
	}
	return found
}

// Start runs the member whose data the node has, under that name.
func (n *Nodes) Start(node, name string) error {
	data, found := n.data[node]
	if !found {
		return ErrNoData
	}
	if err := data.Cluster.Start(data.ID, name); err != nil {
		return err
	}
	data.Listed = false
	n.keep(node, data)
	return nil
}

// Stop ends etcd on the node, if it runs. The data stays.
func (n *Nodes) Stop(node string) {
	if data, found := n.data[node]; found {
		data.Cluster.Stop(data.ID)
	}
}

// Silence makes etcd on the node not answer, if it runs.
func (n *Nodes) Silence(node string) {
	if data, found := n.data[node]; found {
		data.Cluster.Silence(data.ID)
	}
}

// Leave takes the node's member out of its cluster, and then wipes the node. A
// member that is out already is no error.
func (n *Nodes) Leave(node string) error {
	data, found := n.data[node]
	if !found {
		return ErrNoData
	}
	return n.LeaveAt(data.Cluster.leader, node)
}

// LeaveAt is Leave when a certain member is asked.
func (n *Nodes) LeaveAt(asked uint64, node string) error {
	data, found := n.data[node]
	if !found {
		return ErrNoData
	}
	if err := data.Cluster.RemoveAt(asked, data.ID); err != nil && !errors.Is(err, ErrMemberNotFound) {
		return err
	}
	delete(n.data, node)
	return nil
}

// Wipe takes the data from the node. Its member stays in the list, and is down.
func (n *Nodes) Wipe(node string) {
	n.Stop(node)
	delete(n.data, node)
}

// HasData reports whether any node has data of the group.
func (n *Nodes) HasData(group string) bool {
	for _, data := range n.data {
		if data.Group == group && !data.Listed {
			return true
		}
	}
	return false
}

// Bootstraps counts how often a group was bootstrapped, also on data of an older
// cluster; all groups together for an empty name.
func (n *Nodes) Bootstraps(group string) int { return count(n.bootstraps, group) }

// Recoveries counts how many of the Bootstraps were on data of an older cluster.
func (n *Nodes) Recoveries(group string) int { return count(n.recoveries, group) }

func count(by map[string]int, group string) int {
	if group != "" {
		return by[group]
	}
	all := 0
	for _, times := range by {
		all += times
	}
	return all
}
