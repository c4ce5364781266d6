package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/yaml"
)

// read is the content of a file, its path as seen from the root of the repository.
func read(g Gomega, path string) string {
	raw, err := os.ReadFile(filepath.Join("..", path))
	g.Expect(err).NotTo(HaveOccurred())

	return string(raw)
}

// only is what the first group of the pattern matches, which must be the same
// wherever it matches.
func only(g Gomega, path, pattern string) string {
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(read(g, path), -1)
	g.Expect(found).NotTo(BeEmpty(), "%s in %s", pattern, path)
	for _, match := range found {
		g.Expect(match[1]).To(Equal(found[0][1]), path)
	}

	return found[0][1]
}

// TestModulesAgreeOnVersions: the test bed is built from the versions of the
// product.
func TestModulesAgreeOnVersions(t *testing.T) {
	g := NewWithT(t)
	var modules []string
	// Those of test/suites/machinery are of other releases of Talos.
	for _, pattern := range []string{"../test/*/go.mod", "../test/sim/*/go.mod", "../test/suites/*/go.mod"} {
		found, err := filepath.Glob(pattern)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).NotTo(BeEmpty(), pattern)
		modules = append(modules, found...)
	}
	for _, pattern := range []string{
		`(?m)^go (\S+)$`,
		`(?m)^\t?(?:require )?sigs\.k8s\.io/cluster-api (v\S+)`,
		`(?m)^\t?(?:require )?sigs\.k8s\.io/cluster-api/api (v\S+)`,
		`(?m)^\t?(?:require )?sigs\.k8s\.io/controller-runtime (v\S+)`,
		`(?m)^\t?(?:require )?github\.com/siderolabs/talos/pkg/machinery (v\S+)`,
	} {
		want := only(g, "go.mod", pattern)
		for _, module := range modules {
			path := strings.TrimPrefix(module, "../")
			if regexp.MustCompile(pattern).MatchString(read(g, path)) {
				g.Expect(only(g, path, pattern)).To(Equal(want), path)
			}
		}
	}
}

// TestReleaseVersionsAgree: what the Makefile builds is what clusterctl is told
// about, and has a release series.
func TestReleaseVersionsAgree(t *testing.T) {
	g := NewWithT(t)
	version := only(g, "Makefile", `(?m)^VERSION \?= (\S+)$`)
	g.Expect(only(g, "clusterctl-settings.json", `"nextVersion": "([^"]+)"`)).To(Equal(version))

	metadata := &clusterctlv1.Metadata{}
	g.Expect(yaml.UnmarshalStrict([]byte(read(g, "metadata.yaml")), metadata)).To(Succeed())
	var series []string
	for _, entry := range metadata.ReleaseSeries {
		series = append(series, fmt.Sprintf("v%d.%d", entry.Major, entry.Minor))
	}
	g.Expect(series).To(ContainElement(version[:strings.LastIndex(version, ".")]), "metadata.yaml has the series of %s", version)
}
