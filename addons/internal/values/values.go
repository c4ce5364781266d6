// Package values makes the values of a chart out of what a user has written: inline ones,
// a template, and those of Secrets and ConfigMaps.
package values

import (
	"fmt"
	"regexp"

	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

// maxBytes is how long a text of values may be: the objects of Kubernetes that they come
// from are no longer.
const maxBytes = 1 << 20

// Part is a text of values, as YAML, and where it comes from.
type Part struct {
	// From names it in errors: valuesFrom[1]: Secret tokens, key values.yaml.
	From string
	Text []byte
}

// Error says which part is no values, without any of its content.
type Error struct {
	From, Message string
}

// Error implements error.
func (e *Error) Error() string { return e.From + ": " + e.Message }

// Merge makes values of parts. Maps are merged; of everything else a later part replaces
// what an earlier one has, and null removes it.
func Merge(parts []Part) (map[string]any, error) {
	merged := map[string]any{}
	for _, part := range parts {
		more, err := read(part)
		if err != nil {
			return nil, err
		}
		merged = merge(merged, more)
	}

	return merged, nil
}

func read(part Part) (map[string]any, error) {
	if len(part.Text) > maxBytes {
		return nil, &Error{part.From, fmt.Sprintf("is longer than %d bytes", maxBytes)}
	}
	if err := yamlsize.Check(part.Text, maxBytes); err != nil {
		return nil, &Error{part.From, err.Error()}
	}
	// As Helm reads them: templates of charts compare numbers with 1.0 and the like.
	made := map[string]any{}
	err := yaml.Unmarshal(part.Text, &made)
	if err != nil {
		// The errors of the parser cite what they cannot read.
		return nil, &Error{part.From, "is no YAML with values by name" + lineOf(err)}
	}

	return made, nil
}

// merge is a map with what is in base and over. A null in over stays, for Helm to remove
// what the chart has there.
func merge(base, over map[string]any) map[string]any {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		former, wasMap := base[key].(map[string]any)
		if isMap && wasMap {
			base[key] = merge(former, below)
			continue
		}
		base[key] = value
	}

	return base
}

// atLine is where in a text the parser has stopped.
var atLine = regexp.MustCompile(`line \d+`)

func lineOf(err error) string {
	if line := atLine.FindString(err.Error()); line != "" {
		return ", " + line
	}

	return ""
}
