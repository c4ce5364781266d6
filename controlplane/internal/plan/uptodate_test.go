package plan

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
		"a field without a value":             {config{"data": nil}, config{}, true},
		"a field that is false":               {config{"data": false}, config{}, false},
		"a field of fields, one of which is":  {config{"hostname": config{"source": "", "ready": false}}, config{}, false},
		"a patch that is no text":             {config{"strategicPatches": []any{1, "a: 1"}}, config{"strategicPatches": []string{"a: 1"}}, true},
		"a field more":                        {config{"data": "version: v1alpha1"}, config{}, false},
		"a field that has its default":        {config{"hostname": config{"source": "MachineName"}, "generateType": "controlplane"}, config{}, true},
		"the CNI that is the default":         {config{"cni": "flannel"}, config{}, true},
		"another CNI":                         {config{"cni": "none"}, config{}, false},
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
		"another template, in which empty fields are stated": {func(f *Found) {
			f.TemplateName = "small"
			f.Former = map[string]any{"size": "large", "tags": []any{}, "deep": map[string]any{"a": "", "b": map[string]any{}}}
		}, 0},
		"another template of other content": {func(f *Found) { f.TemplateName, f.Former = "small", map[string]any{"size": "small"} }, 1},
		"a template that is gone, same content": {func(f *Found) {
			f.TemplateName, f.Infrastructure = "small", map[string]any{"size": "large"}
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

// TestTemplatesAreComparedThroughAndThrough: fields without a value count nowhere.
func TestTemplatesAreComparedThroughAndThrough(t *testing.T) {
	disk := func(size int, more ...any) map[string]any {
		made := map[string]any{"size": size, "tags": more}
		return made
	}
	wanted := Wanted{TemplateName: "large", TemplateGroupKind: schema.GroupKind{Group: "g", Kind: "T"}, Infrastructure: map[string]any{"disks": []any{disk(1), disk(2, "x")}}}
	for name, tc := range map[string]struct {
		wanted, former map[string]any
		want           int
	}{
		"the same":                    {wanted.Infrastructure, map[string]any{"disks": []any{map[string]any{"size": 1}, disk(2, "x")}}, 0},
		"another value in a list":     {wanted.Infrastructure, map[string]any{"disks": []any{disk(1), disk(3, "x")}}, 1},
		"another order":               {wanted.Infrastructure, map[string]any{"disks": []any{disk(2, "x"), disk(1)}}, 1},
		"one of a list more":          {wanted.Infrastructure, map[string]any{"disks": []any{disk(1), disk(2, "x"), disk(3)}}, 1},
		"a template that nobody read": {nil, map[string]any{"disks": []any{}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			now := wanted
			now.Infrastructure = tc.wanted
			differences, err := Differences(now, Found{TemplateName: "small", TemplateGroupKind: "T.g", Former: tc.former})
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(differences).To(HaveLen(tc.want))
		})
	}
	differences, err := Differences(wanted, Found{TemplateName: "small", TemplateGroupKind: "T.g"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(differences).To(HaveLen(1), "nothing is known of what it was made from")
}

// TestWhatCannotBeComparedIsAnError, and no outdated Machine.
func TestWhatCannotBeComparedIsAnError(t *testing.T) {
	for name, tc := range map[string]struct{ wanted, found any }{
		"what is wanted cannot be encoded":   {func() {}, config{}},
		"what is there cannot be encoded":    {config{}, func() {}},
		"what is wanted is no set of fields": {"text", config{}},
		"what is there is no set of fields":  {config{}, []string{"text"}},
	} {
		t.Run(name, func(t *testing.T) {
			differences, err := Differences(Wanted{Config: tc.wanted}, Found{Config: tc.found})
			NewWithT(t).Expect(err).To(HaveOccurred())
			NewWithT(t).Expect(differences).To(BeEmpty())
		})
	}
}
