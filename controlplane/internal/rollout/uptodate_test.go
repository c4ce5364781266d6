package rollout

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type config map[string]any

func TestSameConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b config
		want bool
	}{
		"equal":                               {config{"talosVersion": "v1.13"}, config{"talosVersion": "v1.13"}, true},
		"another version":                     {config{"talosVersion": "v1.13"}, config{"talosVersion": "v1.14"}, false},
		"another patch of the contract":       {config{"talosVersion": "v1.13.1"}, config{"talosVersion": "v1.13.2"}, true},
		"the contract with and without patch": {config{"talosVersion": "v1.13"}, config{"talosVersion": "v1.13.9"}, true},
		"a contract that is none":             {config{"talosVersion": "x1"}, config{"talosVersion": "x2"}, false},
		"empty fields are no fields":          {config{"configPatches": []any{}, "data": "", "hostname": config{}}, config{}, true},
		"a field more":                        {config{"data": "version: v1alpha1"}, config{}, false},
		"a field that has its default":        {config{"hostname": config{"source": "MachineName"}, "generateType": "controlplane"}, config{}, true},
		"patches with comments":               {config{"strategicPatches": []string{"# why\na: 1\n"}}, config{"strategicPatches": []string{"a: 1"}}, true},
		"patches with another order of keys":  {config{"strategicPatches": []string{"a: 1\nb: 2"}}, config{"strategicPatches": []string{"b: 2\na: 1"}}, true},
		"patches in JSON":                     {config{"strategicPatches": []string{`{"a": 1}`}}, config{"strategicPatches": []string{"a: 1"}}, true},
		"one patch of two documents":          {config{"strategicPatches": []string{"a: 1\n---\nb: 2"}}, config{"strategicPatches": []string{"a: 1", "b: 2"}}, true},
		"patches in another order":            {config{"strategicPatches": []string{"a: 1", "a: 2"}}, config{"strategicPatches": []string{"a: 2", "a: 1"}}, false},
		"a value that means something else":   {config{"strategicPatches": []string{"a: '1'"}}, config{"strategicPatches": []string{"a: 1"}}, false},
		"an empty value within a patch":       {config{"strategicPatches": []string{"a: {}"}}, config{"strategicPatches": []string{"{}"}}, false},
		"patches that are no YAML":            {config{"strategicPatches": []string{"a: ["}}, config{"strategicPatches": []string{"a: [ "}}, false},
		"data with comments":                  {config{"data": "# x\nversion: v1alpha1"}, config{"data": "version: v1alpha1"}, true},
		"RFC 6902 values of another form":     {config{"configPatches": []any{config{"op": "add", "value": config{"a": 1, "b": 2}}}}, config{"configPatches": []any{config{"value": config{"b": 2, "a": 1}, "op": "add"}}}, true},
		"RFC 6902 patches with other content": {config{"configPatches": []any{config{"op": "add", "value": 1}}}, config{"configPatches": []any{config{"op": "add", "value": 2}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			different, err := differentFields(tc.a, tc.b)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(len(different) == 0).To(Equal(tc.want))
		})
	}
}

func TestDifferences(t *testing.T) {
	wanted := Wanted{
		Version: "v1.36.3", TemplateName: "large", TemplateGroupKind: schema.GroupKind{Group: "g", Kind: "T"},
		Infrastructure: map[string]any{"size": "large", "none": map[string]any{}}, After: time.Unix(100, 0),
		Config: config{"talosVersion": "v1.13"},
	}
	same := Found{Version: "v1.36.3", TemplateName: "large", TemplateGroupKind: "T.g", Config: config{"talosVersion": "v1.13"}, Created: time.Unix(100, 0)}
	for name, tc := range map[string]struct {
		edit func(*Found)
		want int
	}{
		"none":                                 {func(*Found) {}, 0},
		"another version":                      {func(f *Found) { f.Version = "v1.35.0" }, 1},
		"another template":                     {func(f *Found) { f.TemplateName = "small" }, 1},
		"another kind of template":             {func(f *Found) { f.TemplateGroupKind = "U.g" }, 1},
		"another template of the same content": {func(f *Found) { f.TemplateName, f.Former = "small", map[string]any{"size": "large"} }, 0},
		"another template of other content":    {func(f *Found) { f.TemplateName, f.Former = "small", map[string]any{"size": "small"} }, 1},
		"a template that is gone, same content": {func(f *Found) {
			f.TemplateName, f.Infrastructure = "small", map[string]any{"size": "large", "providerID": "x"}
		}, 0},
		"a template that is gone, and what the provider has recorded": {func(f *Found) {
			f.TemplateName, f.Infrastructure = "small", map[string]any{
				"size": "large", "providerID": "x", "failureDomain": "rack-1",
				"hostRef": map[string]any{"name": "host", "claim": "Bound"}, "pod": map[string]any{"etcdAddress": "10.96.0.7"},
			}
		}, 0},
		"a template that is gone, other content": {func(f *Found) { f.TemplateName, f.Infrastructure = "small", map[string]any{"size": "small"} }, 1},
		"a Machine that is too old":              {func(f *Found) { f.Created = time.Unix(99, 0) }, 1},
		"another configuration":                  {func(f *Found) { f.Config = config{"talosVersion": "v1.12"} }, 1},
		"all of it": {func(f *Found) {
			*f = Found{Version: "v1", TemplateName: "x", Config: config{}, Created: time.Unix(100, 0)}
		}, 3},
		"what is not known is no outdate": {func(f *Found) { f.TemplateName, f.TemplateGroupKind, f.Config = "", "", nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found := same
			tc.edit(&found)
			differences, err := Differences(wanted, found)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(differences).To(HaveLen(tc.want))
		})
	}
}
