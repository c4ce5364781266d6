// Package yamlsize bounds YAML that users write before it is read. A text of a few
// kilobytes can stand for gigabytes: by aliases, which everything that makes JSON of YAML
// writes out, or by very many empty lists.
package yamlsize

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v4"
)

// perNode is how many bytes a value counts beside its text.
const perNode = 8

// ErrTooLarge says that a text stands for too much.
var ErrTooLarge = errors.New("it is too large when its aliases are written out, or has too many values")

// CheckMarks returns ErrTooLarge when a text may have more values than a limit. Each has a
// mark in the text: a line of its own, or what separates it from others.
func CheckMarks(text []byte, limit int) error {
	marks := bytes.Count(text, []byte("- "))
	for _, mark := range []byte("\n,:[{?") {
		marks += bytes.Count(text, []byte{mark})
	}
	if marks > limit {
		return ErrTooLarge
	}

	return nil
}

// Check returns ErrTooLarge when the values of a text take more than limit bytes with all
// aliases written out, or there may be more than an eighth as many. A text that is no YAML
// is for its reader to refuse.
func Check(text []byte, limit int) error {
	if err := CheckMarks(text, limit/perNode); err != nil {
		return err
	}
	document := yaml.Node{}
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil //nolint:nilerr // Its reader says what is wrong, in words of its own.
	}
	sizes := sizes{limit: limit, known: map[*yaml.Node]int{}}
	if size := sizes.of(&document); size > limit {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}

	return nil
}

// sizes are those of nodes, each of which is measured once.
type sizes struct {
	limit int
	known map[*yaml.Node]int
}

// of is the size of a node, or more than the limit.
func (s sizes) of(node *yaml.Node) int {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if size, isKnown := s.known[node]; isKnown {
		return size
	}
	// A node that contains itself is too large.
	s.known[node] = s.limit + 1
	size := len(node.Value) + perNode
	for _, below := range node.Content {
		if size += s.of(below); size > s.limit {
			return s.limit + 1
		}
	}
	s.known[node] = size

	return size
}
