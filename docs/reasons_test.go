package docs

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// declaredReasons are the conditions, reasons and events that a file declares.
func declaredReasons(g Gomega, file string) []string {
	source, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())

	return found(`(?m)^\t\w+ = "([A-Z]\w+)"$`, string(source))
}

// TestPagesNameEachReason: whoever meets a condition, a reason or an event of ours
// finds it on a page. The generated reference lists values and explains no reason.
func TestPagesNameEachReason(t *testing.T) {
	g := NewWithT(t)
	all := allPages(g)
	maps.DeleteFunc(all, func(path, _ string) bool { return strings.HasPrefix(path, "docs/api/") })
	pages := strings.Join(slices.Collect(maps.Values(all)), "\n")
	for _, file := range []string{
		"../bootstrap/api/v1beta1/conditions.go", "../controlplane/api/v1beta1/conditions.go", "../infrastructure/api/v1alpha1/conditions.go",
		"../addons/api/v1alpha1/conditions.go", "../backup/api/v1alpha1/conditions.go",
	} {
		reasons := declaredReasons(g, file)
		g.Expect(reasons).NotTo(BeEmpty(), file)
		g.Expect(unnamed(pages, reasons)).To(BeEmpty(), file)
	}
}

// TestTroubleshootingNamesEachReasonOfAddons: whoever meets one that is not good finds its
// cause and cure.
func TestTroubleshootingNamesEachReasonOfAddons(t *testing.T) {
	g := NewWithT(t)
	reasons := declaredReasons(g, "../addons/api/v1alpha1/conditions.go")
	g.Expect(reasons).NotTo(BeEmpty())
	good := []string{"ReleasesReady", "ClusterReachable", "Released", "NotDrifted", "NotYetKnown"}
	g.Expect(reasons).To(ContainElements(good))
	page, err := os.ReadFile("troubleshooting.md")
	g.Expect(err).NotTo(HaveOccurred())
	section := regexp.MustCompile(`(?s)## An add-on is not ready.*?\n## A backup is not made`).FindString(string(page))
	g.Expect(unnamed(section, slices.DeleteFunc(reasons, func(reason string) bool { return slices.Contains(good, reason) }))).To(BeEmpty())
}

// TestPagesOfKindsNameEachReasonOfBackups: whoever meets one, of ours or of the server of a
// store, finds its cause and what to do in a row of a table.
func TestPagesOfKindsNameEachReasonOfBackups(t *testing.T) {
	g := NewWithT(t)
	rows := strings.Join(regexp.MustCompile(`(?m)^\|.*$`).FindAllString(readAll(g, "kinds/talosbackupstore.md", "kinds/talosetcdbackup.md", "kinds/talosetcdbackupschedule.md", "kinds/talosetcdrestore.md"), -1), "\n")
	ofServers, err := os.ReadFile("../backup/internal/store/errors.go")
	g.Expect(err).NotTo(HaveOccurred())
	servers := found(`(?m)^\t\w+ Reason = "([A-Z]\w+)"$`, string(ofServers))
	g.Expect(servers).To(ContainElements("AlreadyExists", "StoreUnavailable"))
	// A backup calls it NameTaken. NotYetKnown is in the text.
	notThere := []string{"AlreadyExists", "NotYetKnown"}
	reasons := slices.Concat(declaredReasons(g, "../backup/api/v1alpha1/conditions.go"), servers)
	g.Expect(len(reasons)).To(BeNumerically(">", 30))
	g.Expect(unnamed(rows, slices.DeleteFunc(reasons, func(reason string) bool { return slices.Contains(notThere, reason) }))).To(BeEmpty())
}

// unnamed are the reasons that a text does not name.
func unnamed(text string, reasons []string) []string {
	named := found("`([A-Z]\\w+)`", text)

	return slices.DeleteFunc(reasons, func(reason string) bool { return slices.Contains(named, reason) })
}

// TestTheRunBookOfPodsNamesEachReason: whoever meets a reason of a machine in a Pod
// finds its cause and cure.
func TestTheRunBookOfPodsNamesEachReason(t *testing.T) {
	g := NewWithT(t)
	reasons := declaredReasons(g, "../infrastructure/api/v1alpha1/container_conditions.go")
	g.Expect(reasons).NotTo(BeEmpty())
	page, err := os.ReadFile("container.md")
	g.Expect(err).NotTo(HaveOccurred())
	runBook := regexp.MustCompile(`(?s)## Run-book.*`).FindString(string(page))
	g.Expect(unnamed(runBook, reasons)).To(BeEmpty())
}
