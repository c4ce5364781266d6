package drift

import (
	"testing"

	. "github.com/onsi/gomega"
)

func object() map[string]any {
	return map[string]any{
		"spec": map[string]any{"replicas": int64(3), "list": []any{map[string]any{"a": "b"}, "c"}},
		"data": map[string]any{"a/b": "1", "c~d": "2"},
	}
}

func TestFieldsAreFoundByTheirPointer(t *testing.T) {
	for path, want := range map[string]map[string]any{
		"/spec":            {"data": object()["data"]},
		"/spec/replicas":   {"spec": map[string]any{"list": []any{map[string]any{"a": "b"}, "c"}}, "data": object()["data"]},
		"/spec/list/0/a":   {"spec": map[string]any{"replicas": int64(3), "list": []any{map[string]any{}, "c"}}, "data": object()["data"]},
		"/spec/list/1":     {"spec": map[string]any{"replicas": int64(3), "list": []any{map[string]any{"a": "b"}}}, "data": object()["data"]},
		"/data/a~1b":       {"spec": object()["spec"], "data": map[string]any{"c~d": "2"}},
		"/data/c~0d":       {"spec": object()["spec"], "data": map[string]any{"a/b": "1"}},
		"/none/of/it":      object(),
		"/spec/list/9":     object(),
		"/spec/list/x":     object(),
		"/spec/replicas/x": object(),
	} {
		t.Run(path, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(remove(object(), pointer(path))).To(Equal(want))
		})
	}
}

func TestDifferencesAreToldByTheirPointer(t *testing.T) {
	g := NewWithT(t)
	g.Expect(differences("", object(), object())).To(BeEmpty())
	changed := object()
	changed["spec"] = map[string]any{"replicas": int64(4), "list": []any{map[string]any{"a": "x"}, "c"}, "new": "secret"}
	changed["data"] = map[string]any{"a/b": "hunter2"}
	g.Expect(differences("", object(), changed)).To(ConsistOf("/spec/replicas", "/spec/list/0/a", "/spec/new", "/data/a~1b", "/data/c~0d"))
	changed["spec"] = map[string]any{"replicas": "3", "list": []any{"c"}}
	g.Expect(differences("", object(), changed)).To(ContainElements("/spec/replicas", "/spec/list"))
	g.Expect(differences("", map[string]any{"a": nil}, map[string]any{"a": map[string]any{}})).To(ConsistOf("/a"))
}
