package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"time"

	taloscontract "github.com/siderolabs/talos/pkg/machinery/config"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// Wanted is what a Machine is compared with.
type Wanted struct {
	// Version is the Kubernetes version.
	Version string
	// TemplateName and TemplateGroupKind name the infrastructure machine
	// template.
	TemplateName      string
	TemplateGroupKind schema.GroupKind
	// Infrastructure is the spec in that template; nil when it cannot be read.
	Infrastructure map[string]any
	// After is a time before which no Machine may have been created; zero when
	// there is none, or it is not over.
	After time.Time
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
	// Former is the spec in that template; nil when the template is gone.
	Former map[string]any
	// Infrastructure is what the infrastructure machine's spec has of a template's; nil
	// when there is none.
	Infrastructure map[string]any
	// Created is when the Machine was created.
	Created time.Time
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
	if !sameTemplate(wanted, found) {
		differences = append(differences, fmt.Sprintf("infrastructure machine template %s, %s required", found.TemplateName, wanted.TemplateName))
	}
	if found.Created.Before(wanted.After) {
		differences = append(differences, "created before spec.rollout.after")
	}
	if found.Config != nil {
		fields, err := differentFields(wanted.Config, found.Config)
		if err != nil {
			return nil, err
		}
		for _, field := range fields {
			differences = append(differences, "TalosConfig spec."+field+" differs")
		}
	}

	return differences, nil
}

// sameTemplate reports whether an infrastructure machine is as the wanted template
// would make it: from that template, or from one with the same content.
func sameTemplate(wanted Wanted, found Found) bool {
	switch {
	case found.TemplateName == "":
		return true
	case found.TemplateGroupKind != wanted.TemplateGroupKind.String():
		return false
	case found.TemplateName == wanted.TemplateName:
		return true
	case wanted.Infrastructure == nil:
		return false
	}
	from := found.Former
	if from == nil {
		from = found.Infrastructure
	}

	return from != nil && reflect.DeepEqual(pruned(wanted.Infrastructure), pruned(from))
}

// pruned is a value without fields that hold nothing.
func pruned(value any) any {
	switch typed := value.(type) {
	case map[string]any:
		full := map[string]any{}
		for name, inner := range typed {
			if !isEmpty(inner) {
				full[name] = pruned(inner)
			}
		}
		return full
	case []any:
		list := make([]any, 0, len(typed))
		for _, inner := range typed {
			list = append(list, pruned(inner))
		}
		return list
	default:
		return value
	}
}

// differentFields are the names of the fields in which two specs of a TalosConfig
// differ in meaning, sorted.
func differentFields(a, b any) ([]string, error) {
	left, err := meaning(a)
	if err != nil {
		return nil, fmt.Errorf("reading the wanted TalosConfig: %w", err)
	}
	right, err := meaning(b)
	if err != nil {
		return nil, fmt.Errorf("reading the present TalosConfig: %w", err)
	}
	names := maps.Clone(left)
	maps.Copy(names, right)
	var different []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !reflect.DeepEqual(left[name], right[name]) {
			different = append(different, name)
		}
	}

	return different, nil
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
	maps.DeleteFunc(fields, func(_ string, value any) bool { return isEmpty(value) })
	for name, value := range configDefaults() {
		if _, set := fields[name]; !set {
			fields[name] = value
		}
	}
	if version, ok := fields["talosVersion"].(string); ok {
		// It names a contract; what is rendered does not depend on the patch.
		if contract, err := taloscontract.ParseContractFromVersion(version); err == nil {
			fields["talosVersion"] = contract.String()
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

// configDefaults are what admission fills in, and what a field means that is left open:
// a TalosConfig that was made before a default existed means the same.
func configDefaults() map[string]any {
	return map[string]any{
		"generateType": string(bootstrapv1.GenerateTypeControlPlane),
		"hostname":     map[string]any{"source": string(bootstrapv1.HostnameSourceMachineName)},
		"cni":          string(bootstrapv1.CNIFlannel),
	}
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
