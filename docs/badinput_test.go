package docs

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// declaredTests are the names of all tests of the repository.
func declaredTests(t *testing.T) []string {
	t.Helper()
	return inTests(t, `func (Test[A-Z]\w*)\(`)
}

// declaredSpecs are the names of all specs of Ginkgo.
func declaredSpecs(t *testing.T) []string {
	t.Helper()
	return inTests(t, `\bIt\("([^"]+)"`)
}

// inTests are what an expression finds in the sources of all tests.
func inTests(t *testing.T, expression string) []string {
	t.Helper()
	g := NewWithT(t)
	var names []string
	declared := regexp.MustCompile(expression)
	tree := os.DirFS("..")
	g.Expect(fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "docs/") || strings.HasPrefix(path, "out/") {
			return err
		}
		source, err := fs.ReadFile(tree, path)
		for _, match := range declared.FindAllStringSubmatch(string(source), -1) {
			names = append(names, match[1])
		}
		return err
	})).To(Succeed())

	return names
}

// namedTests are the names of the tests that a page names.
func namedTests(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return regexp.MustCompile(`\bTest[A-Z]\w*`).FindAllString(string(text), -1)
}

// TestPagesNameTestsThatExist: what a page says is shown is shown.
func TestPagesNameTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	for _, page := range []string{"addons-compared.md", "bad-input.md", "control-plane-tests.md", "tenants.md"} {
		named := namedTests(t, page)
		NewWithT(t).Expect(named).NotTo(BeEmpty())
		for _, name := range named {
			NewWithT(t).Expect(declared).To(ContainElement(name), "%s names a test that is not there", page)
		}
	}
}

// TestPagesNameSpecsThatExist: a suite of specs is one test, so a page says which of them it
// means.
func TestPagesNameSpecsThatExist(t *testing.T) {
	declared := declaredSpecs(t)
	suites := regexp.MustCompile("`(?:TestTalos|TestE2E)`((?:,? \"[^\"]+\")*)")
	for _, page := range []string{"addons-compared.md", "bad-input.md", "control-plane-tests.md", "tenants.md"} {
		text, err := os.ReadFile(page)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for _, mention := range suites.FindAllStringSubmatch(string(text), -1) {
			named := regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(mention[1], -1)
			NewWithT(t).Expect(named).NotTo(BeEmpty(), "%s names no spec beside %s", page, mention[0])
			for _, name := range named {
				NewWithT(t).Expect(declared).To(ContainElement(name[1]), "%s names a spec that is not there", page)
			}
		}
	}
}

// TestBadInputNamesItsTests: the page names all tests of bad input.
func TestBadInputNamesItsTests(t *testing.T) {
	named := namedTests(t, "bad-input.md")
	for _, name := range declaredTests(t) {
		if strings.HasPrefix(name, "TestBadInput") {
			NewWithT(t).Expect(named).To(ContainElement(name), "the page lacks a test")
		}
	}
}
