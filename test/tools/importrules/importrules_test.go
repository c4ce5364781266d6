// Package importrules has the linter refuse an import against each rule of
// .golangci.yml about who may import whom.
package importrules

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var linter = flag.String("golangci-lint", "", "The version of golangci-lint; without it, the test is skipped.")

const module = "github.com/capi-talos/capi-talos"

// The rules, by how their findings begin.
const (
	none      = ""
	api       = "api packages import other api packages only"
	shared    = "what all providers share imports none of them"
	providers = "providers meet in api packages"
	managers  = "managers open the door setup"
	product   = "the product does not need the test bed"
)

// imports are the packages that a file imports, and the rule that refuses each.
type imports map[string]string

// planted are files, and what they import. Whatever the compiler refuses is left out.
func planted() map[string]imports {
	return map[string]imports{
		"bootstrap/api/v1/planted.go": {
			"backup/api/v1": none, "controlplane/api/v1": none, "infrastructure/api/v1": none, "bootstrap/pkg/objects": api, "bootstrap/internal/controllers": api, "test/support/builders": api,
		},
		"addons/api/v1/planted.go": {"infrastructure/api/v1": none, "bootstrap/pkg/objects": api},
		"addons/internal/planted/planted.go": {
			"bootstrap/pkg/objects": none, "controlplane/api/v1": none, "backup/api/v1": none, "addons/internal/controllers": none, "infrastructure/pkg/shared": providers, "addons/setup": providers,
		},
		"backup/api/v1/planted.go": {"infrastructure/api/v1": none, "bootstrap/pkg/objects": api},
		"backup/internal/planted/planted.go": {
			"bootstrap/pkg/objects": none, "controlplane/api/v1": none, "backup/internal/controllers": none, "infrastructure/pkg/shared": providers, "backup/setup": providers,
		},
		"controlplane/api/v1/planted_test.go": {"infrastructure/api/v1": none, "bootstrap/pkg/objects": api, "controlplane/internal/controllers": api},
		"bootstrap/pkg/planted/planted.go": {
			"bootstrap/api/v1": none, "bootstrap/pkg/objects": none, "bootstrap/internal/controllers": shared, "bootstrap/setup": shared,
			"controlplane/api/v1": shared, "controlplane/pkg/shared": shared, "infrastructure/api/v1": shared, "infrastructure/setup": shared, "test/support/builders": product,
		},
		"bootstrap/pkg/planted/planted_test.go": {"bootstrap/pkg/objects": none, "test/support/builders": none, "controlplane/api/v1": shared, "bootstrap/internal/controllers": shared},
		"bootstrap/internal/planted/planted.go": {
			"bootstrap/pkg/objects": none, "controlplane/api/v1": none, "bootstrap/internal/controllers": none, "controlplane/pkg/shared": providers, "bootstrap/setup": providers,
		},
		"controlplane/internal/planted/planted.go": {
			"bootstrap/pkg/objects": none, "bootstrap/api/v1": none, "infrastructure/api/v1": none, "controlplane/internal/controllers": none,
			"infrastructure/pkg/shared": providers, "bootstrap/setup": providers, "controlplane/setup": providers, "test/support/builders": product,
		},
		"controlplane/internal/planted/planted_test.go": {"test/support/builders": none, "infrastructure/pkg/shared": providers, "infrastructure/setup": providers},
		"infrastructure/internal/planted/planted.go": {
			"bootstrap/pkg/objects": none, "bootstrap/api/v1": none, "controlplane/api/v1": none, "infrastructure/internal/controllers": none,
			"controlplane/pkg/shared": providers, "controlplane/setup": providers,
		},
		"infrastructure/internal/planted/planted_test.go": {"test/support/builders": none, "controlplane/pkg/shared": providers},
		"infrastructure/setup/planted.go":                 {"infrastructure/internal/controllers": none, "bootstrap/pkg/objects": none, "controlplane/setup": providers},
		"cmd/planted/planted.go":                          {"backup/setup": none, "bootstrap/setup": none, "bootstrap/pkg/objects": none, "controlplane/api/v1": managers, "test/support/builders": managers},
	}
}

// TestTheLinterRefusesWhatIsPlanted: in a tree of empty packages, with the rules of this
// one. The linter runs once.
func TestTheLinterRefusesWhatIsPlanted(t *testing.T) {
	if *linter == "" {
		t.Skip("make lint runs it: it needs golangci-lint")
	}
	root := t.TempDir()
	write := func(file, content string) {
		file = filepath.Join(root, file)
		check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		check(t, os.WriteFile(file, []byte(content), 0o600))
	}
	rules, err := os.ReadFile("../../../.golangci.yml")
	check(t, err)
	write(".golangci.yml", string(rules))
	write("go.mod", "module "+module+"\n\ngo 1.26\n")
	for file, imported := range planted() {
		source := "package " + path.Base(path.Dir(file)) + "\n\nimport (\n"
		for _, name := range slices.Sorted(maps.Keys(imported)) {
			write(name+"/empty.go", "package "+path.Base(name)+"\n")
			source += "\t_ \"" + module + "/" + name + "\"\n"
		}
		write(file, source+")\n")
	}

	found := lint(t, root)
	for file, imported := range planted() {
		for name, rule := range imported {
			texts := strings.Join(found[file+" "+name], "; ")
			if (texts == "") != (rule == none) || !strings.Contains(texts, rule) {
				t.Errorf("%s imports %s: wanted %q, the linter says %q", file, name, rule, texts)
			}
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lint returns what depguard says, by file and imported package.
func lint(t *testing.T, root string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@"+*linter, //nolint:gosec // the version is that of the Makefile
		"run", "--config", ".golangci.yml", "--enable-only", "depguard", "--output.json.path", "stdout", "--show-stats=false", "--issues-exit-code", "0", "./...")
	cmd.Dir = root
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &messages)
	}
	var report struct {
		Issues []struct {
			FromLinter, Text string
			Pos              struct{ Filename string }
		}
	}
	check(t, json.Unmarshal(out, &report))
	found := map[string][]string{}
	for _, issue := range report.Issues {
		// Of what does not compile it judges nothing.
		if issue.FromLinter != "depguard" {
			t.Fatalf("%s: %s", issue.Pos.Filename, issue.Text)
		}
		_, rest, _ := strings.Cut(issue.Text, "'"+module+"/")
		name, _, _ := strings.Cut(rest, "'")
		key := filepath.ToSlash(issue.Pos.Filename) + " " + name
		found[key] = append(found[key], issue.Text)
	}

	return found
}
