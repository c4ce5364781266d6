package values

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestLaterPartsGoBeforeEarlierOnes(t *testing.T) {
	g := NewWithT(t)
	merged, err := Merge([]Part{
		{Text: []byte(`{"image":{"name":"a","tag":"1"},"replicas":1,"ports":[1,2],"big":10000000000}`)},
		{Text: []byte("image:\n  tag: \"2\"\nports: [3]\n")},
		{Text: []byte("replicas: null\nimage:\n  pull: Always\n")},
		{Text: nil},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(merged).To(Equal(map[string]any{
		"image": map[string]any{"name": "a", "tag": "2", "pull": "Always"}, "replicas": nil,
		"ports": []any{3.0}, "big": 1e10,
	}))
}

func TestWhatIsNoValuesIsNamedAndNotShown(t *testing.T) {
	for name, tt := range map[string]struct {
		text, message string
	}{
		"no map":  {"- hunter2", "valuesFrom[0]: Secret s, key k: is no YAML with values by name"},
		"no YAML": {"a: b\nhunter2: [", "valuesFrom[0]: Secret s, key k: is no YAML with values by name, line 2"},
		"a text":  {"hunter2", "valuesFrom[0]: Secret s, key k: is no YAML with values by name"},
		"aliases that stand for much": {"a: &a hunter2" + strings.Repeat("x", 10_000) + "\nb: [" + strings.Repeat("*a,", 1000) + "]",
			"valuesFrom[0]: Secret s, key k: it is too large when its aliases are written out, or has too many values, or too many keys in a map: more than 1048576 bytes"},
		"too long": {"a: " + strings.Repeat("x", maxBytes), "valuesFrom[0]: Secret s, key k: is longer than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Merge([]Part{{From: "valuesFrom[0]: Secret s, key k", Text: []byte(tt.text)}})
			NewWithT(t).Expect(err).To(MatchError(tt.message))
		})
	}
}
