package etcdhistory

import (
	"slices"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// group is the name of the one cluster of a history in the model.
const group = "history"

// activity is the state of etcd on a node, as the model has it.
type activity int

const (
	ended activity = iota
	running
	frozen
)

// judge is the model side of a history.
type judge struct {
	url     func(node int) string
	nodes   etcdmodel.Nodes
	cluster *etcdmodel.Cluster
	// names are those under which nodes have joined, processes what runs there,
	// and ids the members that they are or were last.
	names     map[int]string
	processes map[int]activity
	ids       map[int]uint64
}

// newJudge is a cluster of that many voters, all of which run.
func newJudge(voters int, url func(node int) string) (*judge, error) {
	j := &judge{url: url, names: map[int]string{}, processes: map[int]activity{}, ids: map[int]uint64{}}
	for node := range voters {
		name := nodeName(node)
		found := j.nodes.Join
		if node == 0 {
			found = j.nodes.Bootstrap
		}
		if err := found(group, name, name, url(node)); err != nil {
			return nil, err
		}
		data, _ := j.nodes.Data(name)
		if node > 0 {
			if err := data.Cluster.Promote(data.ID); err != nil {
				return nil, err
			}
		}
		j.cluster = data.Cluster
		j.names[node], j.processes[node] = name, running
	}
	j.note()
	return j, nil
}

// note keeps the IDs of the members, and ends what was removed.
func (j *judge) note() {
	for node, was := range j.processes {
		if _, found := j.member(node); was == running && !found {
			j.processes[node] = ended
		}
	}
	for _, member := range j.cluster.Members() {
		for node := range maxNodes {
			if j.url(node) == member.PeerURL {
				j.ids[node] = member.ID
			}
		}
	}
}

// member is the member whose data a node has.
func (j *judge) member(node int) (etcdmodel.Member, bool) {
	data, found := j.nodes.Data(nodeName(node))
	if !found {
		return etcdmodel.Member{}, false
	}
	return j.cluster.Member(data.ID)
}

// listed is the member with the address of a node.
func (j *judge) listed(node int) (etcdmodel.Member, bool) {
	for _, member := range j.cluster.Members() {
		if member.PeerURL == j.url(node) {
			return member, true
		}
	}
	return etcdmodel.Member{}, false
}

// possible reports whether a step makes sense now.
func (j *judge) possible(step Step) bool {
	_, data := j.nodes.Data(nodeName(step.Node))
	_, known := j.ids[step.Node]
	member, listed := j.listed(step.Node)
	_, own := j.member(step.Node)
	switch step.Kind {
	case Join:
		return !data
	case Announce:
		return true
	case Promote, Remove:
		return known
	case Lead:
		// Etcd waits in vain for a leader that does not answer, and blocks meanwhile.
		return listed && (member.Up || member.Learner) && j.cluster.Leader() != 0
	case Leave:
		return own && j.processes[step.Node] == running
	case Stop, Silence:
		return j.processes[step.Node] == running
	case Start:
		return data && j.processes[step.Node] != running
	case Wipe:
		return data
	}
	return false
}

// apply does a step, and returns the refusal. Of a change of the membership the
// asked node is asked; -1 is nobody.
func (j *judge) apply(step Step, asked int) error {
	member, _ := j.member(asked)
	err := j.change(step, member.ID)
	j.note()
	return err
}

// ask chooses who is asked: by chance, but a node asks its own etcd to leave,
// and one that joins does not ask the member that it takes the name of, if there
// is another. Learners are never asked.
func (j *judge) ask(step Step) int {
	up := j.up(false)
	if step.Kind == Leave && slices.Contains(up, step.Node) {
		return step.Node
	}
	others := slices.DeleteFunc(slices.Clone(up), func(node int) bool { return step.Kind == Join && j.names[node] == step.Name })
	if len(others) > 0 {
		up = others
	}
	if len(up) == 0 {
		return -1
	}
	return up[step.Via%len(up)]
}

func (j *judge) change(step Step, asked uint64) error {
	name := nodeName(step.Node)
	switch step.Kind {
	case Join:
		err := j.nodes.JoinAt(asked, group, name, step.Name, j.url(step.Node))
		if err == nil {
			j.names[step.Node], j.processes[step.Node] = step.Name, running
		}
		return err
	case Announce:
		_, err := j.cluster.AddLearnerAt(asked, j.url(step.Node))
		return err
	case Promote:
		return j.cluster.Promote(j.ids[step.Node])
	case Remove:
		return j.cluster.RemoveAt(asked, j.ids[step.Node])
	case Lead:
		return j.cluster.MoveLeader(j.ids[step.Node])
	case Leave:
		err := j.nodes.LeaveAt(asked, name)
		if err == nil {
			j.processes[step.Node] = ended
		}
		return err
	case Stop:
		j.nodes.Stop(name)
		j.processes[step.Node] = ended
	case Silence:
		j.nodes.Silence(name)
		j.processes[step.Node] = frozen
	case Start:
		err := j.nodes.Start(name, j.names[step.Node])
		j.processes[step.Node] = ended
		if err == nil {
			j.processes[step.Node] = running
		}
		return err
	case Wipe:
		j.nodes.Wipe(name)
		j.processes[step.Node] = ended
	}
	return nil
}

// answering are the nodes whose members answer, the voters first.
func (j *judge) answering() []int { return append(j.up(false), j.up(true)...) }

// up are the nodes whose members answer: the voters, or the learners.
func (j *judge) up(learners bool) []int {
	var up []int
	for node := range maxNodes {
		if member, found := j.member(node); found && member.Up && member.Learner == learners {
			up = append(up, node)
		}
	}
	return up
}

// leader is the node of the leader; -1 without one.
func (j *judge) leader() int {
	for node := range maxNodes {
		if member, found := j.member(node); found && member.ID == j.cluster.Leader() {
			return node
		}
	}
	return -1
}

// connected reports whether a node's member counts the one with the address of
// another node as connected.
func (j *judge) connected(node, other int) bool {
	from, _ := j.member(node)
	to, _ := j.listed(other)
	return j.cluster.Connected(from.ID, to.ID)
}
