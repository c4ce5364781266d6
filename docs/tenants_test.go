package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// triedByTenants are the names of the attacks of TestWhatATenantCannotDo: the keys of its
// tables, without what is counted up behind a colon, and its other rows.
func triedByTenants(g *WithT) []string {
	var names []string
	row := regexp.MustCompile(`(?m)^\t\t"([^"]+)":\s+(?:\{?func\(\)|n\.hijack)|(?:\["|n\.row\(")([^"]+)"`)
	for _, file := range []string{"tenants_test.go", "tenants_beside_test.go", "tenants_crowd_test.go"} {
		source, err := os.ReadFile("../test/suites/integration/" + file)
		g.Expect(err).NotTo(HaveOccurred())
		for _, match := range row.FindAllStringSubmatch(string(source), -1) {
			name, _, _ := strings.Cut(match[1]+match[2], ":")
			names = append(names, name)
		}
	}

	return names
}

// TestTenantsListsWhatIsTried: the page and the test have the same attacks.
func TestTenantsListsWhatIsTried(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("tenants.md")
	g.Expect(err).NotTo(HaveOccurred())
	var listed []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \|.*TestWhatATenantCannotDo`).FindAllStringSubmatch(string(page), -1) {
		name, _, _ := strings.Cut(row[1], ":")
		listed = append(listed, name)
	}
	g.Expect(listed).NotTo(BeEmpty())
	g.Expect(triedByTenants(g)).To(ConsistOf(listed))
}
