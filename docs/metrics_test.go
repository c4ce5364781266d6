package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// found are the different first groups of an expression in a text.
func found(expression, text string) []string {
	names := map[string]bool{}
	for _, match := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		names[match[1]] = true
	}

	return slices.Sorted(maps.Keys(names))
}

// TestMetricsAreDocumented: each metric that the managers show has a row, and each
// row is of one.
func TestMetricsAreDocumented(t *testing.T) {
	g := NewWithT(t)
	var source strings.Builder
	repository := os.DirFS("..")
	for _, folder := range append(providerFolders(g), "cmd") {
		g.Expect(fs.WalkDir(repository, folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := fs.ReadFile(repository, path)
			source.Write(text)
			return err
		})).To(Succeed())
	}
	page, err := os.ReadFile("metrics.md")
	g.Expect(err).NotTo(HaveOccurred())
	shown := found(`"(capi_talos_[a-z0-9_]+)"`, source.String())
	g.Expect(shown).NotTo(BeEmpty())
	g.Expect(found("(?m)^\\| `(capi_talos_[a-z0-9_]+)` \\|", string(page))).To(Equal(shown))
}

// TestAlertsHaveACure: the page tells what to do about each alert, and about no other.
func TestAlertsHaveACure(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("metrics.md")
	g.Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(filepath.Join("..", "config", "metrics", "alerts.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	rules := struct {
		Groups []struct {
			Rules []struct {
				Alert string `json:"alert"`
			} `json:"rules"`
		} `json:"groups"`
	}{}
	g.Expect(yaml.Unmarshal(text, &rules)).To(Succeed())
	var alerts []string
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alerts = append(alerts, rule.Alert)
		}
	}
	g.Expect(alerts).NotTo(BeEmpty())
	g.Expect(found("(?m)^\\| `(Talos[A-Za-z]+)` \\|", string(page))).To(ConsistOf(alerts))
}
