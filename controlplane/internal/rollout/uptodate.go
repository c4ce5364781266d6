package rollout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Wanted is what a Machine is compared with.
type Wanted struct {
	// Version is the Kubernetes version.
	Version string
	// TemplateName and TemplateGroupKind name the infrastructure machine
	// template.
	TemplateName      string
	TemplateGroupKind schema.GroupKind
	// Config is the TalosConfig's spec.
	Config any
}

// Found is what a Machine is made of.
type Found struct {
	// Version is the Kubernetes version in the Machine's spec.
	Version string
	// TemplateName and TemplateGroupKind are what the infrastructure machine
	// says that it was made from; both are empty when it does not say.
	TemplateName      string
	TemplateGroupKind string
	// Config is the TalosConfig's spec; nil when there is no TalosConfig.
	Config any
}

// Differences says in words what of a Machine is outdated; nothing when it is
// up to date. What is missing in found is not compared. Configurations are
// compared by their meaning: order of keys, comments and the form of patches
// make no difference.
func Differences(wanted Wanted, found Found) ([]string, error) {
	var differences []string
	if wanted.Version != found.Version {
		differences = append(differences, fmt.Sprintf("Version %s, %s required", found.Version, wanted.Version))
	}
	if found.TemplateName != "" && (found.TemplateName != wanted.TemplateName || found.TemplateGroupKind != wanted.TemplateGroupKind.String()) {
		differences = append(differences, "the infrastructure machine template is another one")
	}
	if found.Config != nil {
		same, err := SameConfig(wanted.Config, found.Config)
		if err != nil {
			return nil, err
		}
		if !same {
			differences = append(differences, "the TalosConfig is another one")
		}
	}

	return differences, nil
}

// SameConfig tells whether two specs of a TalosConfig mean the same.
func SameConfig(a, b any) (bool, error) {
	left, err := meaning(a)
	if err != nil {
		return false, fmt.Errorf("reading the wanted TalosConfig: %w", err)
	}
	right, err := meaning(b)
	if err != nil {
		return false, fmt.Errorf("reading the present TalosConfig: %w", err)
	}

	return reflect.DeepEqual(left, right), nil
}

// meaning is a spec in a form in which equal meaning is deep equality: fields
// without a value are left out, and text that is YAML is parsed.
func meaning(spec any) (map[string]any, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	for name, value := range fields {
		if isEmpty(value) {
			delete(fields, name)
		}
	}
	if data, ok := fields["data"].(string); ok {
		fields["data"] = documents(data)
	}
	if patches, ok := fields["strategicPatches"].([]any); ok {
		var parsed []any
		for _, patch := range patches {
			if text, ok := patch.(string); ok {
				parsed = append(parsed, documents(text)...)
			}
		}
		fields["strategicPatches"] = parsed
	}

	return fields, nil
}

func isEmpty(value any) bool {
	switch typed := value.(type) {
	case nil:
		return true
	case string:
		return typed == ""
	case []any:
		return len(typed) == 0
	case map[string]any:
		for _, inner := range typed {
			if !isEmpty(inner) {
				return false
			}
		}
		return true
	default:
		return false
	}
}

// documents are the YAML documents of a text, parsed; the text itself when it
// is none.
func documents(text string) []any {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewBufferString(text), len(text)+1)
	var parsed []any
	for {
		var document any
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return parsed
		case err != nil:
			return []any{text}
		case document != nil:
			parsed = append(parsed, document)
		}
	}
}
