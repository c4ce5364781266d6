package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// allPages are the README and all pages, by their paths as seen from here.
func allPages(g Gomega) map[string]string {
	pages := map[string]string{}
	tree := os.DirFS("..")
	g.Expect(fs.WalkDir(tree, "docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := fs.ReadFile(tree, path)
		pages[path] = string(text)
		return err
	})).To(Succeed())
	readme, err := fs.ReadFile(tree, "README.md")
	g.Expect(err).NotTo(HaveOccurred())
	pages["README.md"] = string(readme)

	return pages
}

// TestPagesNameTargetsThatExist: what readers are told to make can be made.
func TestPagesNameTargetsThatExist(t *testing.T) {
	g := NewWithT(t)
	makefile, err := os.ReadFile("../Makefile")
	g.Expect(err).NotTo(HaveOccurred())
	targets := found(`(?m)^([a-z][a-z0-9-]*):`, string(makefile))
	command := regexp.MustCompile("(?m)(?:`|^    |^\\t)(?:[A-Z_]+=\\S+ )*make ((?:[A-Za-z][\\w=<>/.-]* ?)+)")
	for path, text := range allPages(g) {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			for word := range strings.FieldsSeq(match[1]) {
				g.Expect(strings.Contains(word, "=") || slices.Contains(targets, word)).To(BeTrue(), "make %s in %s", word, path)
			}
		}
	}
}

// TestClustersAreGeneratedOfFlavorsThatExist: a page that shows how a cluster is made
// says how many workers it has, because clusterctl makes none by itself, and gives what
// its template cannot do without.
func TestClustersAreGeneratedOfFlavorsThatExist(t *testing.T) {
	g := NewWithT(t)
	shown := 0
	// A command may go on in the next line.
	command := regexp.MustCompile(`(?m)^ *clusterctl generate cluster (?:[^\n]*\\\n)*[^\n]*`)
	for path, text := range allPages(g) {
		for _, typed := range command.FindAllString(text, -1) {
			flavors := found(`--flavor (\S+)`, typed)
			g.Expect(flavors).To(HaveLen(1), "%s in %s", typed, path)
			template, err := os.ReadFile("../templates/cluster-template-" + flavors[0] + ".yaml")
			g.Expect(err).NotTo(HaveOccurred(), path)
			g.Expect(typed).To(And(ContainSubstring("--worker-machine-count "), ContainSubstring("--kubernetes-version v")), path)
			for _, name := range found(`\$\{([A-Z_]+)\}`, string(template)) {
				given := slices.Contains([]string{"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION"}, name)
				g.Expect(given || strings.Contains(text, "export "+name+"=")).To(BeTrue(), "%s of flavor %s in %s", name, flavors[0], path)
			}
			shown++
		}
	}
	g.Expect(shown).NotTo(BeZero())
}
