package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	"sigs.k8s.io/cluster-api/util/flags"
)

// definedFlags are the names that the Go files of a pattern define as flags, in calls
// such as fs.BoolVar(&x, "name", …), fs.BoolVarP(&x, "name", "n", …) and
// pflag.String("name", …).
func definedFlags(g Gomega, pattern string) []string {
	files, err := filepath.Glob(pattern)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty(), pattern)
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		g.Expect(err).NotTo(HaveOccurred())
		ast.Inspect(parsed, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				names = append(names, flagOf(call)...)
			}
			return true
		})
	}

	return names
}

// flagOf is the name of the flag that a call defines, if it does.
func flagOf(call *ast.CallExpr) []string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	of := regexp.MustCompile(`^(Bool|Duration|Float32|Int(?:32|64)?|String|StringSlice|StringArray|Var)(Var)?P?$`).FindStringSubmatch(selector.Sel.Name)
	if of == nil {
		return nil
	}
	at := 0
	if of[1] == "Var" || of[2] == "Var" {
		at = 1
	}
	if len(call.Args) <= at+1 {
		return nil
	}
	literal, ok := call.Args[at].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return nil
	}
	name, err := strconv.Unquote(literal.Value)
	if err != nil {
		return nil
	}

	return []string{name}
}

// managerFlags are the flags of our managers: those of their mains, and those that
// libraries add.
func managerFlags(g Gomega) []string {
	libraries := pflag.NewFlagSet("libraries", pflag.ContinueOnError)
	logsv1.AddFlags(logs.NewOptions(), libraries)
	flags.AddManagerOptions(libraries, &flags.ManagerOptions{})
	names := slices.Concat(definedFlags(g, "../cmd/internal/startup/flags.go"), definedFlags(g, "../cmd/*/main.go"))
	g.Expect(names).To(ContainElements("namespace", "host-probe-interval"), "the flags were found")
	libraries.VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })

	return names
}

// flagRows are the rows of the tables of flags of a page.
func flagRows(text string) []string {
	var rows []string
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "| Flag |"):
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && !strings.HasPrefix(line, "|---"):
			rows = append(rows, line)
		}
	}

	return rows
}

// TestPagesNameFlagsThatManagersHave: each flag in a table of flags, and each in the
// text of the page about sizing, is one of a manager.
func TestPagesNameFlagsThatManagersHave(t *testing.T) {
	g := NewWithT(t)
	known := managerFlags(g)
	shown := 0
	for path, text := range allPages(g) {
		for _, row := range flagRows(text) {
			named := found("`--?([a-z][a-z-]*)`", row)
			g.Expect(named).NotTo(BeEmpty(), "%s in %s", row, path)
			for _, name := range named {
				g.Expect(known).To(ContainElement(name), "--%s in %s", name, path)
				shown++
			}
		}
		if path == "docs/sizing.md" {
			g.Expect(found("`--([a-z-]+)`", text)).To(HaveEach(BeElementOf(known)), path)
		}
	}
	g.Expect(shown).To(BeNumerically(">", 20))
}
