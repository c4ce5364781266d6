package drift

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// escape writes a key in a JSON pointer (RFC 6901).
var escape = strings.NewReplacer("~", "~0", "/", "~1")

// unescape reads one.
var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// pointer are the keys of a JSON pointer.
func pointer(text string) []string {
	keys := strings.Split(strings.TrimPrefix(text, "/"), "/")
	for i := range keys {
		keys[i] = unescape.Replace(keys[i])
	}

	return keys
}

// remove removes what is at a pointer, and returns what is left.
func remove(from any, keys []string) any {
	switch value := from.(type) {
	case map[string]any:
		if len(keys) == 1 {
			delete(value, keys[0])
		} else if below, found := value[keys[0]]; found {
			value[keys[0]] = remove(below, keys[1:])
		}
	case []any:
		index, err := strconv.Atoi(keys[0])
		if err != nil || index < 0 || index >= len(value) {
			break
		}
		if len(keys) == 1 {
			return slices.Delete(value, index, index+1)
		}
		value[index] = remove(value[index], keys[1:])
	}

	return from
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
