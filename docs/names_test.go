package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// sources is the Go code below folders of this repository, or of a module, without
// tests.
func sources(g Gomega, root string, folders ...string) string {
	var text strings.Builder
	tree := os.DirFS(root)
	for _, folder := range folders {
		g.Expect(fs.WalkDir(tree, folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := fs.ReadFile(tree, path)
			text.Write(source)
			return err
		})).To(Succeed())
	}

	return text.String()
}

// Modules whose source is read.
const (
	clusterAPIModule      = "sigs.k8s.io/cluster-api"
	clusterAPITypesModule = "sigs.k8s.io/cluster-api/api"
	machineryModule       = "github.com/siderolabs/talos/pkg/machinery"
)

// moduleFolders are where Go keeps these modules, in their order.
func moduleFolders(t *testing.T) []string {
	t.Helper()
	folders, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", clusterAPIModule, clusterAPITypesModule, machineryModule).Output()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return strings.Fields(string(folders))
}

// pagesForUsers are those that name conditions, reasons, annotations and metrics so
// that people find out what is wrong, or what to do.
var pagesForUsers = []string{
	"access.md", "airgap.md", "backups.md", "cni.md", "maintenance.md", "network.md", "troubleshooting.md", "upgrade.md",
	"kinds/talosbackupstore.md", "kinds/talosetcdbackup.md", "kinds/talosetcdbackupschedule.md", "kinds/talosetcdrestore.md",
}

// TestPagesNameOnlyWhatExists: each condition, reason, event, annotation, metric and
// alert that these pages name is one of ours, or of Cluster API.
func TestPagesNameOnlyWhatExists(t *testing.T) {
	g := NewWithT(t)
	ours := sources(g, "..", providerFolders(g)...)
	modules := moduleFolders(t)
	clusterAPI, talos := sources(g, modules[1], "core", "addons"), sources(g, modules[2], "config/types")
	metrics := readAll(g, "../config/metrics/alerts.yaml", "metrics.md")

	constant := `(?m)^\s*(?:const )?\w+(?: \w+)? *= "([A-Z]\w+)"`
	words := slices.Concat(found(constant, ours), found(constant, clusterAPI), found(constant, talos),
		found(`\.event\(s, \w+, "(\w+)"`, ours), found(`Eventf\([^"]*"(\w+)"`, ours), found(`\| .(Talos[A-Za-z]+). \|`, metrics),
		// Of Kubernetes, and what consoles and charts say.
		[]string{"Maintenance", "Ready", "Reason", "ConfigMap"})
	annotations := slices.Concat(annotationsOf(ours), annotationsOf(clusterAPI), []string{"pod-security.kubernetes.io/enforce"})
	for _, page := range pagesForUsers {
		text := readAll(g, page)
		g.Expect(text).NotTo(BeEmpty())
		g.Expect(missing(found("`([A-Z][A-Za-z]*[a-z][A-Za-z]*)`", text), words)).To(BeEmpty(), "conditions, reasons, events and alerts of %s", page)
		g.Expect(missing(annotationsOf(text), annotations)).To(BeEmpty(), "annotations of %s", page)
		for _, metric := range found(`\b(capi_[a-z_]+)\b`, text) {
			g.Expect(metrics).To(ContainSubstring("`"+metric+"`"), "a metric of %s", page)
		}
	}
}

// TestTroubleshootingNamesWhatNeedsSomebody: whoever meets a reason for which something
// is to be done finds it there, or a link to the run-book that has it.
func TestTroubleshootingNamesWhatNeedsSomebody(t *testing.T) {
	g := NewWithT(t)
	page := readAll(g, "troubleshooting.md")
	for _, kind := range []string{
		"TalosHost", "TalosMachine", "TalosConfig", "TalosCluster", "TalosControlPlane", "TalosClusterAddon", "TalosClusterAddonRelease",
		"TalosBackupStore", "TalosEtcdBackup", "TalosEtcdBackupSchedule", "TalosEtcdRestore",
	} {
		g.Expect(page).To(ContainSubstring("| "+kind+" |"), "which conditions tell most")
	}
	for _, runBook := range []string{
		"hosts.md#a-host-is-in-error", "hosts.md#a-host-is-not-claimed", "container.md#run-book", "kinds/taloscontrolplane.md#run-book", "metrics.md#alerts", "move.md#a-move-that-was-interrupted", "upgrade.md#it-stands-still",
		"kinds/talosbackupstore.md#conditions", "kinds/talosetcdbackup.md#conditions", "kinds/talosetcdbackupschedule.md#conditions",
		"kinds/talosetcdrestore.md#conditions", "kinds/talosetcdrestore.md#run-book",
	} {
		g.Expect(page).To(ContainSubstring("(" + runBook + ")"))
	}
}

func readAll(g Gomega, files ...string) string {
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		all.Write(text)
	}

	return all.String()
}

// annotationsOf are the annotations and labels of Cluster API's groups that a text
// names, without the API groups of kinds.
func annotationsOf(text string) []string {
	text = strings.ReplaceAll(text, `PreTerminateDeleteHookAnnotationPrefix + "`, `PreTerminateDeleteHookAnnotationPrefix = "`+clusterv1.PreTerminateDeleteHookAnnotationPrefix)
	names := found(`\b((?:[a-z0-9-]+\.)*(?:cluster\.x-k8s\.io|pod-security\.kubernetes\.io)/[a-z](?:[a-z0-9-]*[a-z0-9])?)`, text)

	return slices.DeleteFunc(names, func(name string) bool { return regexp.MustCompile(`/v\d\w*$`).MatchString(name) })
}

// missing are the names that are not among the known ones.
func missing(names, known []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(known, name) })
}
