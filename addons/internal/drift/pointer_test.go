package drift

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
)

func object() map[string]any {
	return map[string]any{
		"spec": map[string]any{"replicas": int64(3), "list": []any{map[string]any{"a": "b"}, "c"}},
		"data": map[string]any{"a/b": "1", "c~d": "2"},
	}
}

func TestFieldsAreKeptByTheirPointer(t *testing.T) {
	wanted := func(changes ...func(map[string]any)) map[string]any {
		made := map[string]any{
			"replicas": int64(3), "args": []any{"a", "b", "c"}, "rules": []any{map[string]any{"host": "a", "path": "/"}},
			"data":       map[string]any{"a/b": "1", "c~d": "2"},
			"containers": []any{map[string]any{"name": "app", "image": "app"}, map[string]any{"name": "new", "image": "new"}},
		}
		for _, change := range changes {
			change(made)
		}
		return made
	}
	live := map[string]any{
		"replicas": int64(5), "args": []any{"a", "x"}, "rules": []any{map[string]any{"host": "b", "port": int64(80)}, map[string]any{"host": "c"}},
		"data":       map[string]any{"a/b": "9"},
		"containers": []any{map[string]any{"name": "sidecar", "image": "sidecar"}, map[string]any{"name": "app", "image": "theirs"}},
		"more":       "theirs",
	}
	set := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) { m[key] = value }
	}
	for name, tt := range map[string]struct {
		paths []string
		want  map[string]any
	}{
		"a field":                            {[]string{"/replicas"}, wanted(set("replicas", int64(5)))},
		"one with a slash":                   {[]string{"/data/a~1b"}, wanted(set("data", map[string]any{"a/b": "9", "c~d": "2"}))},
		"one that is not live":               {[]string{"/data/c~0d"}, wanted(set("data", map[string]any{"a/b": "1"}))},
		"one that is not wanted":             {[]string{"/more"}, wanted(set("more", "theirs"))},
		"all that is below":                  {[]string{"/data"}, wanted(set("data", map[string]any{"a/b": "9"}))},
		"an element":                         {[]string{"/args/1"}, wanted(set("args", []any{"a", "x", "c"}))},
		"one that others have taken away":    {[]string{"/args/2"}, wanted(set("args", []any{"a", "b"}))},
		"some of a list":                     {[]string{"/args/1", "/args/2"}, wanted(set("args", []any{"a", "x"}))},
		"a field of an element":              {[]string{"/rules/0/host"}, wanted(set("rules", []any{map[string]any{"host": "b", "path": "/"}}))},
		"one of it that is not wanted":       {[]string{"/rules/0/port"}, wanted(set("rules", []any{map[string]any{"host": "a", "path": "/", "port": int64(80)}}))},
		"a field of an element with a name":  {[]string{"/containers/0/image"}, wanted(set("containers", []any{map[string]any{"name": "app", "image": "theirs"}, map[string]any{"name": "new", "image": "new"}}))},
		"one of an element that is not live": {[]string{"/containers/1/image"}, wanted()},
		"such an element":                    {[]string{"/containers/1"}, wanted(set("containers", []any{map[string]any{"name": "app", "image": "app"}}))},
		"nothing that is there":              {[]string{"/none/of/it", "/args/9", "/args/x", "/replicas/x"}, wanted()},
	} {
		t.Run(name, func(t *testing.T) {
			g, got := NewWithT(t), wanted()
			var pointers [][]string
			for _, path := range tt.paths {
				pointers = append(pointers, pointer(path))
			}
			sortForKeep(pointers)
			for _, keys := range pointers {
				keep(got, live, keys)
			}
			g.Expect(got).To(Equal(tt.want))
		})
	}
}

// TestManyElementsOfAListAreTakenOut, each by the index that it has had.
func TestManyElementsOfAListAreTakenOut(t *testing.T) {
	g := NewWithT(t)
	var list []any
	var pointers [][]string
	for i := range 12 {
		list = append(list, i)
		if i != 3 {
			pointers = append(pointers, pointer(fmt.Sprintf("/list/%d", i)))
		}
	}
	wanted := map[string]any{"list": list}
	sortForKeep(pointers)
	for _, keys := range pointers {
		keep(wanted, map[string]any{}, keys)
	}
	g.Expect(wanted).To(Equal(map[string]any{"list": []any{3}}))
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
