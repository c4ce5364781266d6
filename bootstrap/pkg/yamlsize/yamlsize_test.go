package yamlsize_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

const limit = 1 << 20

func TestSmallTextsThatStandForMuchAreRefused(t *testing.T) {
	laughs := "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"
	for i := range 9 {
		laughs += fmt.Sprintf("a%[2]d: &a%[2]d [*a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d]\n", i, i+1)
	}
	for name, text := range map[string]string{
		"lists of lists":       laughs,
		"a long text, often":   "a: &a " + strings.Repeat("x", 10_000) + "\nb: [" + strings.Repeat("*a,", 1000) + "]",
		"a map that is merged": "a: &a {k: " + strings.Repeat("x", 500_000) + "}\nb: {<<: *a}\nc: {<<: *a}\n",
		"a list of itself":     "a: &a [*a]",
		"very many lists":      "a: " + strings.Repeat("[", limit/8) + strings.Repeat("]", limit/8),
		"very many values":     "a: [" + strings.Repeat("b,", limit/8) + "]",
		"many lists on a line": "a:\n " + strings.Repeat("- ", limit/8) + "b",
		"very many lines":      strings.Repeat("\n", limit),
		"a second document":    "a: b\n---\na: &a " + strings.Repeat("x", limit/2) + "\nb: *a\n",
		"documents together":   "a: " + strings.Repeat("x", limit/2) + "\n---\na: " + strings.Repeat("x", limit/2),
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(yamlsize.Check([]byte(text), limit)).To(MatchError(yamlsize.ErrTooLarge))
		})
	}
}

func TestOtherTextsAreNot(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":           "",
		"values":            "image: {tag: v1}\nlist: [1, 2]\n",
		"aliases":           "a: &a {cpu: 1, memory: 1Gi}\nb: *a\nc: {<<: *a}\n",
		"a long text":       "a: " + strings.Repeat("x", limit-100),
		"what is no YAML":   "a: [",
		"two documents":     "a: b\n---\nc: d\n",
		"a certificate":     "a: |\n" + strings.Repeat("  -----BEGIN CERTIFICATE-----\n", 10_000),
		"an unknown anchor": "a: *b",
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(yamlsize.Check([]byte(text), limit)).To(Succeed())
		})
	}
}

// deep is a value in that many maps.
func deep(levels int, value string) string {
	return strings.Repeat(`{"a":`, levels) + value + strings.Repeat("}", levels)
}

// checks are those that count the indentation of lines.
var checks = map[string]func([]byte, int) error{"YAML": yamlsize.CheckIndented, "JSON": yamlsize.CheckJSON}

func TestDeepValuesCountTheirIndentation(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(check([]byte(deep(500, "1")), limit)).To(Succeed())
			g.Expect(check([]byte(deep(5000, "1")), limit)).To(MatchError(yamlsize.ErrTooLarge))
			g.Expect(check([]byte(deep(100, `"`+strings.Repeat(`x\n`, 10_000)+`"`)), limit)).To(MatchError(yamlsize.ErrTooLarge), "lines of a text")
			g.Expect(check([]byte(deep(100, "["+strings.Repeat("1,", 9_999)+"1]")), limit)).To(MatchError(yamlsize.ErrTooLarge), "items of a list")
			g.Expect(check([]byte(`{"a":"`+strings.Repeat("x", limit-100)+`","b":[1,true,null]}`), limit)).To(Succeed())
			g.Expect(check([]byte(`{"a":"`+strings.Repeat("x", limit)+`"}`), limit)).To(MatchError(yamlsize.ErrTooLarge))
			g.Expect(check([]byte(`{"a":`), limit)).To(Succeed(), "its reader refuses it")
		})
	}
	NewWithT(t).Expect(yamlsize.Check([]byte(deep(5000, "1")), limit)).To(Succeed(), "nothing is indented")
}

// TestJSONIsNotReadAsYAML: YAML knows fewer escapes, and no long keys.
func TestJSONIsNotReadAsYAML(t *testing.T) {
	for name, text := range map[string]string{
		"a long key":         `{"` + strings.Repeat("k", 2000) + `":` + deep(5000, "1") + "}",
		"half of a rune":     `{"a":"\ud800","b":` + deep(5000, "1") + "}",
		"very many numbers":  "[" + strings.Repeat("1,", limit/8) + "1]",
		"very long as a key": `{"` + strings.Repeat("k", limit) + `":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(yamlsize.CheckJSON([]byte(text), limit)).To(MatchError(yamlsize.ErrTooLarge))
		})
	}
}

// keys are a map of so many.
func keys(number int) string {
	var text strings.Builder
	for i := range number {
		fmt.Fprintf(&text, `,"k%d":1`, i)
	}

	return "{" + strings.TrimPrefix(text.String(), ",") + "}"
}

// TestMapsOfVeryManyKeysAreRefused: each is compared to all others.
func TestMapsOfVeryManyKeysAreRefused(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(check([]byte(keys(4000)), limit)).To(Succeed())
			g.Expect(check([]byte(keys(6000)), limit)).To(MatchError(yamlsize.ErrTooLarge))
			g.Expect(check([]byte(`{"a":[`+keys(6000)+`]}`), limit)).To(MatchError(yamlsize.ErrTooLarge), "below others")
			g.Expect(check([]byte("["+keys(4000)+","+keys(4000)+"]"), limit)).To(MatchError(yamlsize.ErrTooLarge), "in two maps")
			g.Expect(check([]byte("["+strings.Repeat(keys(10)+",", 1000)+"1]"), limit)).To(Succeed(), "in many small ones")
		})
	}
	g := NewWithT(t)
	g.Expect(yamlsize.Check([]byte(keys(6000)), limit)).To(Succeed(), "nobody writes it as YAML again")
	g.Expect(yamlsize.CheckIndented([]byte("a: &a "+keys(2000)+"\nb: [*a, *a, *a, *a, *a, *a]"), limit)).To(MatchError(yamlsize.ErrTooLarge), "in aliases")
}
