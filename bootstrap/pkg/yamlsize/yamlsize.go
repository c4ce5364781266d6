// Package yamlsize bounds YAML and JSON that users write before it is read. A text of a few
// kilobytes can stand for gigabytes: by aliases, which everything that makes JSON of YAML
// writes out, by very many empty lists, or by very deep values, each line of which is
// indented.
package yamlsize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

const (
	// perNode is how many bytes a value counts beside its text.
	perNode = 8
	// perLevel is by how many bytes a line is indented for each level, as YAML is encoded
	// by default.
	perLevel = 4
	// maxKeys is how many keys a map has at most that is written as YAML again: who reads
	// it compares each key to all others, which takes 0.1 s for so many, and minutes for
	// as many as a Secret holds.
	maxKeys = 4096
)

var (
	// ErrTooLarge says that a text stands for too much.
	ErrTooLarge = errors.New("it is too large when its aliases are written out, or has too many values")
	// ErrTooManyKeys says that a map of a text takes too long to read.
	ErrTooManyKeys = fmt.Errorf("it has a map of more than %d keys", maxKeys)
)

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
// aliases written out, or there may be more than an eighth as many. All documents of the
// text count. A text that is no YAML is for its reader to refuse.
func Check(text []byte, limit int) error {
	return check(text, &sizes{limit: limit, known: map[*yaml.Node]size{}})
}

// CheckIndented is Check for a text that is written as YAML again: each line counts with
// its indentation. It returns ErrTooManyKeys when a map has more than 4096 keys.
func CheckIndented(text []byte, limit int) error {
	return check(text, indented(limit))
}

// CheckJSON is CheckIndented for JSON, of which a reader of YAML refuses some.
func CheckJSON(text []byte, limit int) error {
	if err := CheckMarks(text, limit/perNode); err != nil {
		return err
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil //nolint:nilerr // Its reader says what is wrong, in words of its own.
	}
	sizes := indented(limit)

	return sizes.judge(sizes.of(nodeOf(value)).bytes)
}

func check(text []byte, sizes *sizes) error {
	if err := CheckMarks(text, sizes.limit/perNode); err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for total := 0; ; {
		document := yaml.Node{}
		if err := decoder.Decode(&document); err != nil {
			return nil //nolint:nilerr // The end, or what its reader says is wrong, in words of its own.
		}
		total += sizes.of(&document).bytes
		if err := sizes.judge(total); err != nil {
			return err
		}
	}
}

// nodeOf is a value of JSON as a node of YAML.
func nodeOf(value any) *yaml.Node {
	switch value := value.(type) {
	case map[string]any:
		node := &yaml.Node{Kind: yaml.MappingNode}
		for key, below := range value {
			node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, nodeOf(below))
		}
		return node
	case []any:
		node := &yaml.Node{Kind: yaml.SequenceNode}
		for _, below := range value {
			node.Content = append(node.Content, nodeOf(below))
		}
		return node
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(value)}
	}
}

// size is that of a node: its bytes, and how many lines it has below the one on which it
// begins.
type size struct{ bytes, lines int }

// sizes are those of nodes, each of which is measured once.
type sizes struct {
	limit, perLevel int
	known           map[*yaml.Node]size
	// keys is how many the largest map has.
	keys int
}

func indented(limit int) *sizes {
	return &sizes{limit: limit, perLevel: perLevel, known: map[*yaml.Node]size{}}
}

func (s *sizes) judge(bytes int) error {
	if s.perLevel > 0 && s.keys > maxKeys {
		return ErrTooManyKeys
	}
	if bytes > s.limit {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, s.limit)
	}

	return nil
}

// of is the size of a node, or more than the limit.
func (s *sizes) of(node *yaml.Node) size {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if size, isKnown := s.known[node]; isKnown {
		return size
	}
	// A node that contains itself is too large.
	tooLarge := size{bytes: s.limit + 1}
	s.known[node] = tooLarge
	if node.Kind == yaml.MappingNode {
		s.keys = max(s.keys, len(node.Content)/2)
	}
	whole := size{bytes: len(node.Value) + perNode, lines: strings.Count(node.Value, "\n")}
	for i, below := range node.Content {
		part := s.of(below)
		if node.Kind != yaml.DocumentNode {
			whole.bytes += part.lines * s.perLevel
		}
		whole.lines += part.lines
		// In a map the key begins a line, and its value what is below it.
		if node.Kind == yaml.SequenceNode || node.Kind == yaml.MappingNode && i%2 == 0 {
			whole.lines++
		}
		if whole.bytes += part.bytes; whole.bytes > s.limit {
			return tooLarge
		}
	}
	s.known[node] = whole

	return whole
}
