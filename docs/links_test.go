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
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
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
				g.Expect(anchors(g, target)).To(ContainElement(fragment), "link %s in %s", match[1], page)
			}
		}
	}
}

// anchors are the fragments that the headings of a page have.
func anchors(g Gomega, page string) []string {
	text, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	var found []string
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(text), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(match[1]), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}

	return found
}
