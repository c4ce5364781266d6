package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const product = `package product

import "errors"

// Fits reports whether a number fits.
func Fits(n int) bool {
	if n > 2 && n != 7 {
		return true
	}
	return false
}

var errNegative = errors.New("negative")

// Count counts.
func Count(n int) (int, error) {
	if n < 0 {
		return 0, errors.Join(errNegative)
	}
	count := 0
	for range n {
		count += 1
	}
	return count, nil
}
`

// The test knows 3 and 7, but neither 2 nor what is negative.
const productTest = `package product

import "testing"

func TestFits(t *testing.T) {
	if !Fits(3) || Fits(7) || Fits(-1) {
		t.Fatal("wrong")
	}
	if n, err := Count(2); n != 2 || err != nil {
		t.Fatal("wrong")
	}
}
`

// module makes a module with one package, and a game in it.
func module(t *testing.T) (*game, *strings.Builder) {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/product\n\ngo 1.26\n", "product/product.go": product, "product/product_test.go": productTest,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := &strings.Builder{}

	return &game{root: root, work: t.TempDir(), timeout: time.Minute, sound: map[string]error{}, out: out}, out
}

// change is a mutant of the product as "place: old line -> new line".
func change(m mutant) string {
	before, after := m.lines()

	return fmt.Sprintf("%s: %s -> %s", m.place(), before, after)
}

func TestEachKindOfMutantIsFound(t *testing.T) {
	mutants, err := mutantsOf("product.go", []byte(product))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range mutants {
		found = append(found, change(m))
	}
	for what, want := range map[string]string{
		"a condition negated":      `product.go:7: if n > 2 && n != 7 { -> if !(n > 2 && n != 7) {`,
		"the left operand dropped": `product.go:7: if n > 2 && n != 7 { -> if n != 7 {`,
		"the right one":            `product.go:7: if n > 2 && n != 7 { -> if n > 2 {`,
		"an order swapped":         `product.go:7: if n > 2 && n != 7 { -> if n >= 2 && n != 7 {`,
		"an equality swapped":      `product.go:7: if n > 2 && n != 7 { -> if n > 2 && n == 7 {`,
		"one more":                 `product.go:7: if n > 2 && n != 7 { -> if n > 3 && n != 7 {`,
		"none":                     `product.go:7: if n > 2 && n != 7 { -> if n > 0 && n != 7 {`,
		"a return removed":         `product.go:8: return true -> {}`,
		"a literal flipped":        `product.go:10: return false -> return true`,
		"an error swallowed":       `product.go:18: return 0, errors.Join(errNegative) -> return 0, nil`,
		"an assignment removed":    `product.go:22: count += 1 -> {}`,
	} {
		if !slices.Contains(found, want) {
			t.Errorf("%s is not there: %s", what, want)
		}
	}
	if i := slices.IndexFunc(found, func(text string) bool { return strings.HasSuffix(text, "return count, nil -> {}") }); i >= 0 {
		t.Errorf("the last statement of a function is removed: %s", found[i])
	}
}

func TestAMutantIsKilledOrSurvives(t *testing.T) {
	game, out := module(t)
	mutants, err := mutantsOf("product/product.go", []byte(product))
	if err != nil {
		t.Fatal(err)
	}
	if err := game.play(t.Context(), at(mutants, "product.go"), len(mutants)); err == nil || !strings.Contains(err.Error(), "survive") {
		t.Errorf("too many survive, and it says: %v", err)
	}
	for _, want := range []string{
		"| product/product.go:7 | if n > 2 && n != 7 { | if n > 2 { | TestFits in product |",
		"| product/product.go:7 | if n > 2 && n != 7 { | if n >= 2 && n != 7 { | SURVIVED |",
		"| product/product.go:17 | if n < 0 { | if n <= 0 { | SURVIVED |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %s:\n%s", want, out)
		}
	}
	left, err := os.ReadFile(filepath.Join(game.root, "product/product.go"))
	if err != nil || string(left) != product {
		t.Errorf("the product was changed: %v", err)
	}
}

func TestAMutantThatDoesNotCompileIsNotCounted(t *testing.T) {
	game, out := module(t)
	broken := mutant{file: "product/product.go", source: []byte(product), start: 0, end: 7, text: "nonsense"}
	fine := mutant{file: "product/product.go", source: []byte(product), start: strings.Index(product, "true"), end: strings.Index(product, "true") + 4, text: "false"}
	if err := game.play(t.Context(), []mutant{broken, fine, fine}, 1); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "0 of 1 mutants survive") || strings.Contains(out.String(), "nonsense") {
		t.Errorf("it is counted:\n%s", out)
	}
	broken.meaning = "a named one"
	if err := game.play(t.Context(), []mutant{broken}, 1); !errors.Is(err, errNoMutant) {
		t.Errorf("a named one that does not compile: %v", err)
	}
}

func TestTestsThatFailAnywayKillNothing(t *testing.T) {
	game, _ := module(t)
	wrong := strings.Replace(productTest, "Fits(7)", "Fits(8)", 1)
	if err := os.WriteFile(filepath.Join(game.root, "product/product_test.go"), []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	mutants, err := mutantsOf("product/product.go", []byte(product))
	if err != nil {
		t.Fatal(err)
	}
	if err := game.play(t.Context(), mutants, 1); err == nil || !strings.Contains(err.Error(), "without a mutant") {
		t.Errorf("want a failure that says so, got %v", err)
	}
}

// TestWhatHasKilled tells a test that noticed from one that was too slow, as on a machine
// that does other things as well.
func TestWhatHasKilled(t *testing.T) {
	for output, want := range map[string]string{
		"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\nFAIL":              "TestA",
		"panic: index out of range\n\ngoroutine 1":                                  "panic: index out of range",
		"panic: test timed out after 1m0s\n\trunning tests:":                        "timeout",
		"*** Test killed with quit: ran too long (6m0s).\nFAIL\texample.com/a 360s": "timeout",
		"exit status 2\nFAIL": "a failure: exit status 2 FAIL",
	} {
		if got := killer([]byte(output)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestASeedChoosesTheSameEachTime(t *testing.T) {
	game, _ := module(t)
	order := func(seed uint64) string {
		mutants, err := choose(game.root, []string{"product"}, seed)
		if err != nil || len(mutants) == 0 {
			t.Fatalf("%d mutants: %v", len(mutants), err)
		}
		var places []string
		for _, m := range mutants {
			places = append(places, change(m))
		}

		return strings.Join(places, "\n")
	}
	first := order(1)
	if first != order(1) {
		t.Error("the same seed chooses others")
	}
	if first == order(2) {
		t.Error("another seed chooses the same")
	}
}

func TestANamedMutantIsReadOrRefused(t *testing.T) {
	game, _ := module(t)
	read := func(text string) ([]mutant, error) {
		file := filepath.Join(t.TempDir(), "named.txt")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		return readNamed(game.root, file)
	}
	mutants, err := read("# Seven fits\n# as well.\nproduct/product.go\n- && n != 7 {\n-\t\treturn true\n+ {\n+\t\treturn true\n")
	if err != nil || len(mutants) != 1 {
		t.Fatalf("%d mutants: %v", len(mutants), err)
	}
	if got, want := change(mutants[0]), "product/product.go:7: if n > 2 && n != 7 { return true -> if n > 2 { return true"; got != want || mutants[0].meaning != "Seven fits as well." {
		t.Errorf("%s\n%s\nwant\n%s", mutants[0].meaning, got, want)
	}
	for what, text := range map[string]string{
		"an old text that is not there any more":  "# A\nproduct/product.go\n-n > 5\n+n > 6",
		"an old text that is there several times": "# A\nproduct/product.go\n-return\n+",
		"no file":    "# A\n-n > 5\n+n > 6",
		"no meaning": "product/product.go\n-n > 2\n+n > 6",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), "named mutant") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTheNamedMutantsAreThere(t *testing.T) {
	if _, err := readNamed("../../..", "named.txt"); err != nil {
		t.Error(err)
	}
}
