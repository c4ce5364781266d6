// Package docs holds the documentation to its links.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestLinksLeadSomewhere: each relative link names a file, and its fragment a
// heading of that file.
func TestLinksLeadSomewhere(t *testing.T) {
	g := NewWithT(t)
	link, headings := regexp.MustCompile(`\]\(([^)\s]+)\)`), map[string][]string{}
	for page, text := range allPages(g) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			path, fragment, _ := strings.Cut(match[1], "#")
			target := filepath.Join("..", page)
			if path != "" {
				target = filepath.Join(filepath.Dir(target), path)
			}
			g.Expect(target).To(Or(BeAnExistingFile(), BeADirectory()), "link %s in %s", match[1], page)
			if fragment != "" {
				if headings[target] == nil {
					headings[target] = anchors(g, target)
				}
				g.Expect(headings[target]).To(ContainElement(fragment), "link %s in %s", match[1], page)
			}
		}
	}
}

// TestTheIndexListsAllPages: but for the decisions, which have a list of their own.
func TestTheIndexListsAllPages(t *testing.T) {
	g := NewWithT(t)
	listed := found(`\]\(([^)#\s]+\.md)\)`, source(g, "docs/index.md"))
	for path := range allPages(g) {
		page, ok := strings.CutPrefix(path, "docs/")
		if !ok || page == "index.md" || strings.HasPrefix(page, "decisions/0") {
			continue
		}
		g.Expect(listed).To(ContainElement(page))
	}
}

// anchors are the fragments that the headings of a page have.
func anchors(g Gomega, page string) []string {
	text, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	found, mark := []string{}, regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		name := mark.ReplaceAllString(strings.ToLower(match[1]), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}

	return found
}
