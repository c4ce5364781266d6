package docs

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestBadInputNamesItsTests: the page names tests that exist, and all of them.
func TestBadInputNamesItsTests(t *testing.T) {
	g := NewWithT(t)
	name := regexp.MustCompile(`\bTestBadInput[A-Z]\w*`)
	page, err := os.ReadFile("bad-input.md")
	g.Expect(err).NotTo(HaveOccurred())
	var written []string
	declared := regexp.MustCompile(`func (TestBadInput\w*)\(`)
	tree := os.DirFS("..")
	g.Expect(fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "docs/") || strings.HasPrefix(path, "out/") {
			return err
		}
		source, err := fs.ReadFile(tree, path)
		for _, match := range declared.FindAllStringSubmatch(string(source), -1) {
			written = append(written, match[1])
		}
		return err
	})).To(Succeed())
	named := map[string]bool{}
	for _, match := range name.FindAllString(string(page), -1) {
		named[match] = true
		g.Expect(written).To(ContainElement(match), "the page names a test that is not there")
	}
	for _, test := range written {
		g.Expect(named).To(HaveKey(test), "the page lacks a test")
	}
}
