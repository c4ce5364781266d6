package docs

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/secret"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// section is a section of a page, from its heading to the next one of its level.
func section(g Gomega, page, heading string) string {
	text := regexp.MustCompile(`(?s)\n## ` + regexp.QuoteMeta(heading) + `\n(.*?)(?:\n## |\z)`).FindStringSubmatch(readAll(g, page))
	g.Expect(text).NotTo(BeNil(), "%s has no section %s", page, heading)

	return text[1]
}

// TestWhoWritesWhatNamesEachAnnotation: the table has one row for each annotation that
// the API packages declare, and for no other.
func TestWhoWritesWhatNamesEachAnnotation(t *testing.T) {
	g := NewWithT(t)
	declared := annotationsOf(strings.Join(found(`(?m)^\s*(?:const )?\w+Annotation *= ([^\n]+)$`, sources(g, "..", "backup/api", "bootstrap/api", "controlplane/api", "infrastructure/api")), "\n"))
	g.Expect(len(declared)).To(BeNumerically(">", 20))
	rows := found("(?m)^\\| `([a-z0-9.-]+/[a-z0-9-]+)` \\| ", section(g, "architecture.md", "Who writes what"))
	g.Expect(rows).To(ConsistOf(declared))
}

// TestWhoWritesWhatNamesEachSecret: the table has each Secret that the providers make.
func TestWhoWritesWhatNamesEachSecret(t *testing.T) {
	g := NewWithT(t)
	const cluster = "<cluster>"
	rows := found("(?m)^\\| `(<[^`]+)`", section(g, "architecture.md", "Who writes what"))
	g.Expect(rows).To(ConsistOf("<config>", secrets.BundleName(cluster), secrets.CAName(cluster), secrets.TalosconfigName(cluster),
		secret.Name(cluster, secret.Kubeconfig), "<talosmachine>"+infrav1.UserDataSecretSuffix, "<host>"+infrav1.AdminSecretSuffix))
}

// TestWhoWritesWhatNamesFieldsThatExist: each record of the table is a field.
func TestWhoWritesWhatNamesFieldsThatExist(t *testing.T) {
	g := NewWithT(t)
	kinds := map[string]reflect.Type{
		"TalosHost": reflect.TypeFor[infrav1.TalosHost](), "TalosMachine": reflect.TypeFor[infrav1.TalosMachine](), "TalosCluster": reflect.TypeFor[infrav1.TalosCluster](),
	}
	text := section(g, "architecture.md", "Who writes what")
	rows := found("(?m)^\\| `(Talos\\w+\\.spec\\.\\w+)`", text)
	g.Expect(rows).NotTo(BeEmpty())
	for _, row := range rows {
		names := strings.Split(row, ".")
		of := kinds[names[0]]
		g.Expect(of).NotTo(BeNil(), row)
		for _, name := range names[1:] {
			field, has := fieldOf(of, name)
			g.Expect(has).To(BeTrue(), row)
			of = field.Type
		}
	}
	// What admission keeps for the manager is there.
	for _, record := range found(`(?m)^\t\t\{"(\w+)", before\.`, sources(g, "..", "infrastructure/internal/webhooks")) {
		g.Expect(rows).To(ContainElement("TalosHost.spec." + record))
	}
}

// fieldOf is the field of a struct that has a name in JSON.
func fieldOf(of reflect.Type, name string) (reflect.StructField, bool) {
	for _, field := range reflect.VisibleFields(of) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); tag == name {
			return field, true
		}
	}

	return reflect.StructField{}, false
}

// TestPackagesAreMapped: each package of the product has its line, and no other.
func TestPackagesAreMapped(t *testing.T) {
	g := NewWithT(t)
	packages := map[string]bool{}
	tree := os.DirFS("..")
	for _, folder := range append(providerFolders(g), "cmd") {
		g.Expect(fs.WalkDir(tree, folder, func(file string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go") {
				packages[path.Dir(file)] = true
			}
			return err
		})).To(Succeed())
	}
	var mapped []string
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section(g, "architecture.md", "Packages"), -1) {
		mapped = append(mapped, found("`([a-z0-9/]+)`", row[1])...)
	}
	for name := range packages {
		g.Expect(mapped).To(ContainElement(name), "a package has no line")
	}
	for _, name := range mapped {
		g.Expect(packages).To(HaveKey(name), "a line is of no package")
	}
	g.Expect(slices.Compact(slices.Sorted(slices.Values(mapped)))).To(HaveLen(len(mapped)), "a package has two lines")
}
