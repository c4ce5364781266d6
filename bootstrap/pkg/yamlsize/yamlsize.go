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
	// comparisons is how many keys of a map are compared in the time in which a byte is
	// read. Who decodes a map of YAML compares each key to all others: 0.1 s for 4096 of
	// them, and minutes for as many as a Secret holds.
	comparisons = 32
)

// ErrTooLarge says that a text stands for too much.
var ErrTooLarge = errors.New("it is too large when its aliases are written out, or has too many values, or too many keys in a map")

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
	_, err := measure(text, sizes{limit: limit, known: map[*yaml.Node]size{}})

	return err
}

// CheckIndented is Check for a text that is written as YAML again, and decoded: each line
// counts with its indentation, and each map with the time that its keys take.
func CheckIndented(text []byte, limit int) error {
	_, err := MeasureIndented(text, limit)

	return err
}

// MeasureIndented is CheckIndented, and returns how many bytes the text counts.
func MeasureIndented(text []byte, limit int) (int, error) {
	return measure(text, sizes{limit: limit, isIndented: true, known: map[*yaml.Node]size{}})
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
	sizes := sizes{limit: limit, isIndented: true, known: map[*yaml.Node]size{}}

	return sizes.judge(sizes.of(nodeOf(value)).bytes)
}

// measure is how many bytes all documents of a text count.
func measure(text []byte, sizes sizes) (total int, err error) {
	if err := CheckMarks(text, sizes.limit/perNode); err != nil {
		return 0, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		document := yaml.Node{}
		if err := decoder.Decode(&document); err != nil {
			return total, nil //nolint:nilerr // The end, or what its reader says is wrong, in words of its own.
		}
		total += sizes.of(&document).bytes
		if err := sizes.judge(total); err != nil {
			return total, err
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
	limit      int
	isIndented bool
	known      map[*yaml.Node]size
}

func (s sizes) judge(bytes int) error {
	if bytes > s.limit {
		return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, s.limit)
	}

	return nil
}

// of is the size of a node, or more than the limit.
func (s sizes) of(node *yaml.Node) size {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if size, isKnown := s.known[node]; isKnown {
		return size
	}
	// A node that contains itself is too large.
	tooLarge := size{bytes: s.limit + 1}
	s.known[node] = tooLarge
	whole := size{bytes: len(node.Value) + perNode, lines: strings.Count(node.Value, "\n")}
	if keys := len(node.Content) / 2; s.isIndented && node.Kind == yaml.MappingNode {
		whole.bytes += keys * keys / comparisons
	}
	for i, below := range node.Content {
		part := s.of(below)
		if s.isIndented && node.Kind != yaml.DocumentNode {
			whole.bytes += part.lines * perLevel
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
