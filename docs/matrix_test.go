package docs

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
)

const (
	// untested marks what is supported and was never run, unsupported what Talos
	// does not run.
	untested, unsupported = "untested", "–"
	// lastMinor bounds the search for the Kubernetes versions that Talos runs.
	lastMinor = 60
)

// source is the content of a file of the repository.
func source(g Gomega, path string) string {
	text, err := os.ReadFile("../" + path)
	g.Expect(err).NotTo(HaveOccurred())

	return string(text)
}

// pinned is the one value that an expression finds in a file of the repository.
func pinned(g Gomega, path, expression string) string {
	values := found(expression, source(g, path))
	g.Expect(values).To(HaveLen(1), "%s in %s", expression, path)

	return values[0]
}

// table is the table of a page whose header begins with some cells, without its
// header: the cells of each row.
func table(g Gomega, page string, header ...string) (columns []string, rows [][]string) {
	cells := func(line string) []string {
		all := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range all {
			all[i] = strings.TrimSpace(all[i])
		}
		return all
	}
	inside := false
	for line := range strings.Lines(page) {
		switch {
		case !strings.HasPrefix(line, "|"):
			if inside {
				return columns, rows
			}
		case inside && !strings.HasPrefix(line, "|---"):
			rows = append(rows, cells(line))
		case !inside && len(cells(line)) >= len(header) && slices.Equal(cells(line)[:len(header)], header):
			columns, inside = cells(line), true
		}
	}
	g.Expect(inside).To(BeTrue(), "a table that begins with %v", header)

	return columns, rows
}

func minorOf(version string) string {
	return strings.Join(strings.Split(strings.TrimPrefix(version, "v"), ".")[:2], ".")
}

// TestTheSupportMatrix: rows are the contracts that can be rendered, columns the
// Kubernetes versions that one of these Talos releases runs, and tested is what real
// nodes of the test bed run.
func TestTheSupportMatrix(t *testing.T) {
	g := NewWithT(t)
	const node, kubernetes = "test/stack/parts/table_node.go", "test/stack/parts/table_kubernetes.go"
	tested := map[[2]string]string{}
	for talos, versions := range map[string][]string{
		"TalosVersion": {"KubernetesVersion", "PreviousKubernetesVersion"}, "PreviousTalosVersion": {"PreviousKubernetesVersion"},
	} {
		release := minorOf(pinned(g, node, `\t`+talos+` = "v([^"]+)"`))
		g.Expect(source(g, "test/stack/nodes/nodes.go")).To(ContainSubstring("parts."+talos), "real nodes run it")
		for _, name := range versions {
			version := pinned(g, kubernetes, `\t`+name+` = "v([^"]+)"`)
			tested[[2]string{release, minorOf(version)}] = version
			g.Expect(source(g, "test/stack/nodes/nodes.go")).To(ContainSubstring("parts."+name), "real nodes run it")
		}
	}
	supported := func(contract string, minor int) bool {
		return versions.Supports(contract+".0", fmt.Sprintf("v1.%d.0", minor)) == nil
	}
	want := []string{"Talos"}
	var minors []int
	for minor := range lastMinor {
		if slices.ContainsFunc(configgen.Contracts(), func(contract string) bool { return supported(contract, minor) }) {
			minors = append(minors, minor)
			want = append(want, fmt.Sprintf("1.%d", minor))
		}
	}
	columns, rows := table(g, source(g, "README.md"), "Talos", want[1])
	g.Expect(columns).To(Equal(want))
	g.Expect(rows).To(HaveLen(len(configgen.Contracts())))
	for i, contract := range configgen.Contracts() {
		row := []string{strings.TrimPrefix(contract, "v")}
		for _, minor := range minors {
			cell := untested
			if version := tested[[2]string{row[0], fmt.Sprintf("1.%d", minor)}]; version != "" {
				cell = version
			}
			if !supported(contract, minor) {
				cell = unsupported
			}
			row = append(row, cell)
		}
		g.Expect(rows[i]).To(Equal(row))
	}
}

// TestTheMatrixOfTheManagementCluster: what the test bed is built of.
func TestTheMatrixOfTheManagementCluster(t *testing.T) {
	g := NewWithT(t)
	const clusterAPI = "test/stack/parts/table_clusterapi.go"
	core := pinned(g, clusterAPI, `ClusterAPIVersion = "v([^"]+)"`)
	g.Expect(pinned(g, "go.mod", `\tsigs\.k8s\.io/cluster-api v(\S+)`)).To(Equal(core))
	contract := pinned(g, "metadata.yaml", `(?m)^  contract: (\S+)$`)
	management := pinned(g, "test/stack/parts/table_kubernetes.go", `\tKubernetesVersion = "v([^"]+)"`)
	install := regexp.MustCompile(`management cluster of Kubernetes (1\.\d+) to (1\.\d+),`).FindStringSubmatch(source(g, "docs/install.md"))
	g.Expect(install).NotTo(BeNil())
	g.Expect(install[2]).To(Equal(minorOf(management)), "the newest one is tested")
	var newest int
	_, err := fmt.Sscanf(install[2], "1.%d", &newest)
	g.Expect(err).NotTo(HaveOccurred())

	columns, rows := table(g, source(g, "README.md"), "", "Tested")
	g.Expect(columns).To(Equal([]string{"", "Tested", "Untested"}))
	g.Expect(rows).To(Equal([][]string{
		{"Cluster API core, contract " + contract, core, "all others"},
		{"clusterctl", core, "all others"},
		{"Kubernetes of the management cluster", management, fmt.Sprintf("%s to 1.%d", install[1], newest-1)},
		{"cert-manager", pinned(g, clusterAPI, `CertManagerVersion = "v([^"]+)"`), "all others"},
	}))
}

// TestTheReadmeBeginsWithWhatStrangersLookFor: in this order.
func TestTheReadmeBeginsWithWhatStrangersLookFor(t *testing.T) {
	g := NewWithT(t)
	headings := regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(source(g, "README.md"), -1)
	var names []string
	for _, heading := range headings {
		names = append(names, heading[1])
	}
	g.Expect(names).To(Equal([]string{"Status", "See it work", "Install", "Use", "Other providers", "Help"}))
}
