package drift

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// escape writes a key in a JSON pointer (RFC 6901).
var escape = strings.NewReplacer("~", "~0", "/", "~1")

// unescape reads one.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// pointer are the keys of a JSON pointer; nil when it points to the whole.
func pointer(text string) []string {
	if text == "" {
		return nil
	}
	keys := strings.Split(strings.TrimPrefix(text, "/"), "/")
	for i := range keys {
		keys[i] = unescape.Replace(keys[i])
	}

	return keys
}

// sortForKeep sorts pointers so that an element that is taken out of a list moves none that is
// pointed to later.
func sortForKeep(pointers [][]string) {
	slices.SortFunc(pointers, func(a, b []string) int {
		return slices.CompareFunc(b, a, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	})
}

// keep has what is wanted have at a pointer what is live, or nothing where that has nothing
// there. It returns what is wanted then. Nothing is kept of an element of a list that is not live:
// it is made anew.
func keep(wanted, live any, keys []string) any {
	switch wanted := wanted.(type) {
	case map[string]any:
		has, _ := live.(map[string]any)
		below, there := has[keys[0]]
		switch inner, found := wanted[keys[0]]; {
		case len(keys) > 1 && found:
			wanted[keys[0]] = keep(inner, below, keys[1:])
		case len(keys) == 1 && there:
			wanted[keys[0]] = runtime.DeepCopyJSONValue(below)
		case len(keys) == 1:
			delete(wanted, keys[0])
		}
	case []any:
		return keepInList(wanted, live, keys)
	}

	return wanted
}

// keepInList is keep for a list.
func keepInList(wanted []any, live any, keys []string) any {
	index, err := strconv.Atoi(keys[0])
	if err != nil || index < 0 || index >= len(wanted) {
		return wanted
	}
	below, there := counterpart(wanted[index], index, live)
	switch {
	case len(keys) > 1 && there:
		wanted[index] = keep(wanted[index], below, keys[1:])
	case len(keys) == 1 && there:
		wanted[index] = runtime.DeepCopyJSONValue(below)
	case len(keys) == 1:
		return slices.Delete(wanted, index, index+1)
	}

	return wanted
}

// counterpart is the element of a live list that is that of an index in what is wanted: the one of
// the same name, wherever it is, or else the one of the same index.
func counterpart(wanted any, index int, live any) (any, bool) {
	list, _ := live.([]any)
	if name := nameIn(wanted); name != nil {
		index = slices.IndexFunc(list, func(element any) bool { return nameIn(element) == name })
	}
	if index < 0 || index >= len(list) {
		return nil, false
	}

	return list[index], true
}

// nameIn is the name that an element of a list has; nil when it has none.
func nameIn(element any) any {
	if fields, is := element.(map[string]any); is {
		if name, is := fields["name"].(string); is {
			return name
		}
	}

	return nil
}

// differences are JSON pointers to the fields in which two values differ. They have no
// values: those may be secret.
func differences(at string, a, b any) []string {
	if before, is := a.(map[string]any); is {
		if after, is := b.(map[string]any); is {
			return differencesOfMaps(at, before, after)
		}
	}
	if before, is := a.([]any); is {
		if after, is := b.([]any); is && len(before) == len(after) {
			var found []string
			for i := range before {
				found = append(found, differences(fmt.Sprintf("%s/%d", at, i), before[i], after[i])...)
			}
			return found
		}
	}
	if reflect.DeepEqual(a, b) {
		return nil
	}

	return []string{at}
}

func differencesOfMaps(at string, a, b map[string]any) []string {
	var found []string
	for key, before := range a {
		below := at + "/" + escape.Replace(key)
		if after, there := b[key]; there {
			found = append(found, differences(below, before, after)...)
		} else {
			found = append(found, below)
		}
	}
	for key := range b {
		if _, there := a[key]; !there {
			found = append(found, at+"/"+escape.Replace(key))
		}
	}

	return found
}
