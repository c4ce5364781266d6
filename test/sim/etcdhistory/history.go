// Package etcdhistory runs seeded histories of membership changes on the model
// of etcd and on real etcd processes, in step, and tells where they differ: in
// what is accepted and refused and in which words, in whether the cluster takes
// writes, and in the list of members.
package etcdhistory

import (
	"fmt"
	"strings"
)

// Kind is what happens in one step of a history.
type Kind string

// The kinds of steps. A node is known by its number, and a member by the node
// whose address is its peer URL.
const (
	// Join starts etcd on a node without data as Talos does: a member of its name
	// is removed, then it is added as a learner.
	Join Kind = "join"
	// Announce adds the node's address as a learner, and starts nothing.
	Announce Kind = "announce"
	// Promote makes the node's member vote.
	Promote Kind = "promote"
	// Remove takes the node's member, or the last one that it was, out through
	// another node.
	Remove Kind = "remove"
	// Leave takes the node's own member out, then ends its etcd and wipes it.
	Leave Kind = "leave"
	// Stop kills the node's etcd. The data stays.
	Stop Kind = "stop"
	// Silence freezes the node's etcd: its connections stay open.
	Silence Kind = "silence"
	// Start runs the node's etcd again on its data.
	Start Kind = "start"
	// Wipe kills the node's etcd and removes its data.
	Wipe Kind = "wipe"
	// Lead makes the node's member the leader.
	Lead Kind = "lead"
)

// Step is one step of a history.
type Step struct {
	Kind Kind
	// Node is whom it is about.
	Node int
	// Name is the name under which a node joins.
	Name string
	// Via chooses who is asked among those that answer.
	Via int
}

// String tells the step in a form for people.
func (s Step) String() string {
	text := fmt.Sprintf("%s n%d", s.Kind, s.Node)
	if s.Name != "" {
		text += " as " + s.Name
	}
	return text
}

// History is what happens to one cluster.
type History struct {
	// Seed is what it was generated from.
	Seed uint64
	// Voters is how many nodes, from 0 on, are voters at the beginning.
	Voters int
	Steps  []Step
}

// String tells the history in a form for people, a line each.
func (h History) String() string {
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "seed %d: %d voters\n", h.Seed, h.Voters)
	for i, step := range h.Steps {
		_, _ = fmt.Fprintf(&text, "%3d. %s\n", i+1, step)
	}
	return text.String()
}

// without is the history less one step.
func (h History) without(step int) History {
	less := h
	less.Steps = append(append([]Step(nil), h.Steps[:step]...), h.Steps[step+1:]...)
	return less
}

// nodeName is the name of a node that has no other.
func nodeName(node int) string { return fmt.Sprintf("n%d", node) }
