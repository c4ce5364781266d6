package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestClustersAreMadeWhereTheirHostsAre: TalosMachines take hosts of their own
// namespace only. Whoever copies what the pages show has both in one.
func TestClustersAreMadeWhereTheirHostsAre(t *testing.T) {
	g := NewWithT(t)
	hosts, err := os.ReadFile("hosts.md")
	g.Expect(err).NotTo(HaveOccurred())
	namespaces := found(`(?m)^kind: TalosHost\nmetadata:\n  name: \S+\n  namespace: (\S+)$`, string(hosts))
	g.Expect(namespaces).NotTo(BeEmpty())
	shown := 0
	command := regexp.MustCompile(`(?m)^ *clusterctl generate cluster (?:[^\n]*\\\n)*[^\n]*`)
	for path, text := range allPages(g) {
		for _, typed := range command.FindAllString(text, -1) {
			if !regexp.MustCompile(`--flavor (metal|metal-vip|topology)\s`).MatchString(typed) {
				continue
			}
			shown++
			g.Expect(found(`--target-namespace (\S+)`, typed)).To(Equal(namespaces), "%s in %s", typed, path)
		}
	}
	g.Expect(shown).To(BeNumerically(">=", 2))
}

// TestPagesSayWhichReleasesWereRun: what the test bed runs, and that the others are
// only generated.
func TestPagesSayWhichReleasesWereRun(t *testing.T) {
	g := NewWithT(t)
	table, err := os.ReadFile("../test/stack/parts/table_node.go")
	g.Expect(err).NotTo(HaveOccurred())
	run := found(`\tTalosVersion = "v([^"]+)"`, string(table))
	g.Expect(run).To(HaveLen(1))
	before := found(`\tPreviousTalosVersion = "v([^"]+)"`, string(table))
	g.Expect(before).To(HaveLen(1))
	pages := allPages(g)
	for _, path := range []string{"README.md", "docs/install.md", "docs/testing.md"} {
		g.Expect(pages[path]).To(ContainSubstring("Talos "+run[0]+" is the release that the tests run"), path)
		g.Expect(pages[path]).To(MatchRegexp(`1\.14[^.\n]* configurations are generated[^.\n]*no machine of it was run`), path)
		g.Expect(pages[path]).To(ContainSubstring(before[0]), path)
	}
	g.Expect(strings.ToLower(pages["docs/quick-start.md"])).NotTo(ContainSubstring("as they are, into"), "the test takes amended templates")
}
