package startup

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	logsv1 "k8s.io/component-base/logs/api/v1"
)

// notOurs are flags of all of Cluster API's managers that ours do not have.
func notOurs() map[string]string {
	return map[string]string{
		"skip-crd-migration-phases": "our kinds have one version each, nothing migrates",
	}
}

// TestFlagsAreThoseOfClusterAPI: what all of Cluster API's managers take, ours take
// too, with the same default: one set of arguments fits all managers of a management
// cluster. Only leader election has several defaults there.
func TestFlagsAreThoseOfClusterAPI(t *testing.T) {
	g, ours := NewWithT(t), pflag.NewFlagSet("ours", pflag.ContinueOnError)
	(&options{}).addTo(ours, Program{})
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	g.Expect(err).NotTo(HaveOccurred())
	source := strings.TrimSpace(string(out))
	common := flagsOf(g, filepath.Join(source, "core", "main.go"))
	for _, manager := range []string{"bootstrap", "controlplane"} {
		other := flagsOf(g, filepath.Join(source, manager, "kubeadm", "main.go"))
		maps.DeleteFunc(common, func(name string, _ ast.Expr) bool { return other[name] == nil })
	}
	g.Expect(len(common)).To(BeNumerically(">", 10), "the flags of Cluster API's managers were not found")
	for _, name := range slices.Sorted(maps.Keys(common)) {
		if notOurs()[name] != "" {
			g.Expect(ours.Lookup(name)).To(BeNil(), name)
			continue
		}
		found := ours.Lookup(name)
		g.Expect(found).NotTo(BeNil(), "--%s", name)
		if literal, ok := common[name].(*ast.BasicLit); ok {
			want := literal.Value
			if literal.Kind == token.STRING {
				want, err = strconv.Unquote(want)
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(found.DefValue).To(Equal(want), "--%s", name)
		}
	}
}

// flagsOf are the flags that a main program defines, and what it gives them by
// default.
func flagsOf(g Gomega, file string) map[string]ast.Expr {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string]ast.Expr{}
	ast.Inspect(parsed, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !strings.HasSuffix(selector.Sel.Name, "Var") || len(call.Args) != 4 {
			return true
		}
		if name, ok := call.Args[1].(*ast.BasicLit); ok && name.Kind == token.STRING {
			text, err := strconv.Unquote(name.Value)
			g.Expect(err).NotTo(HaveOccurred())
			found[text] = call.Args[2]
		}
		return true
	})

	return found
}

// TestDiagnosticsAreProtectedByDefault: what the manifests do not say is safe.
func TestDiagnosticsAreProtectedByDefault(t *testing.T) {
	g, opts := NewWithT(t), &options{}
	fs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	opts.addTo(fs, Program{})
	g.Expect(fs.Parse(nil)).To(Succeed())
	g.Expect(opts.manager.DiagnosticsAddress).To(Equal(":8443"))
	g.Expect(opts.manager.InsecureDiagnostics).To(BeFalse())
	g.Expect(opts.profilerAddress).To(BeEmpty(), "it has no authentication")
}

// TestLogFormats: what --help lists is accepted, as by Cluster API's own managers.
func TestLogFormats(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			g, opts := NewWithT(t), &options{}
			fs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
			opts.addTo(fs, Program{})
			g.Expect(fs.Parse([]string{"--logging-format=" + format})).To(Succeed())
			g.Expect(logsv1.Validate(opts.logs, nil, nil)).To(BeEmpty())
		})
	}
}

// TestPagesTellTheDefaults: the tables of flags say what the flags of all managers are
// by default, or say it in words.
func TestPagesTellTheDefaults(t *testing.T) {
	g, ours := NewWithT(t), pflag.NewFlagSet("ours", pflag.ContinueOnError)
	(&options{}).addTo(ours, Program{})
	compared := 0
	for _, page := range []string{"install.md", "sizing.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", page))
		g.Expect(err).NotTo(HaveOccurred())
		row := regexp.MustCompile("(?m)^\\| (`--[^|]*) \\| ([^|]*) \\|")
		for _, cells := range row.FindAllStringSubmatch(string(text), -1) {
			names, values := strings.Split(cells[1], ", "), strings.Split(cells[2], ", ")
			for i, name := range names {
				flag := ours.Lookup(strings.Trim(name, "`-"))
				if flag == nil || i >= len(values) || !regexp.MustCompile(`^\d`).MatchString(values[i]) {
					continue
				}
				// Written as 10m, and kept as 10m0s.
				told := pflag.NewFlagSet("told", pflag.ContinueOnError)
				(&options{}).addTo(told, Program{})
				g.Expect(told.Set(flag.Name, values[i])).To(Succeed(), "%s in %s", name, page)
				g.Expect(told.Lookup(flag.Name).Value.String()).To(Equal(flag.DefValue), "%s in %s", name, page)
				compared++
			}
		}
	}
	g.Expect(compared).To(BeNumerically(">", 12))
}
