package yamlsize_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/addons/internal/yamlsize"
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
