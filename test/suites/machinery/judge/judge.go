// Package judge asks the loaders of several Talos releases what they think of
// the machine configurations that we render. Each release has a module of its
// own beside this one, which links the machinery of that release; the
// configurations lie in testdata, where the tests of bootstrap/pkg/configgen
// write them.
package judge

import (
	"embed"
	"flag"
	"fmt"
	"path"
	"testing"
)

// testdata is part of this package, because the test cache does not look at
// files outside of a module.
//
//go:embed testdata
var testdata embed.FS

// stored is where testdata is, seen from the module of a release.
const stored = "../judge"

var update = flag.Bool("update", false, "write the list of fields that the release knows")

// Loader is the configuration loader of one release of Talos.
type Loader struct {
	// Minor is the release: 12 is Talos v1.12.
	Minor int
	// Judge loads a configuration strictly and validates it for a mode.
	Judge func(configuration []byte, mode Mode) error
	// Document loads one document and returns the loader's own type of it.
	Document func(document []byte) (any, error)
}

// Mode is where a configuration is to run, as the validation of Talos asks.
type Mode string

// Modes of the rows.
const (
	// Metal is a machine that Talos installs itself on.
	Metal Mode = "metal"
	// Container is Talos in a container.
	Container Mode = "container"
	// Rendered is a configuration that lacks what only a host knows.
	Rendered Mode = "rendered"
)

// String names the mode as Talos does.
func (m Mode) String() string {
	if m == Rendered {
		return string(Metal)
	}

	return string(m)
}

// RequiresInstall reports whether the configuration must say where to install.
func (m Mode) RequiresInstall() bool { return m == Metal }

// InContainer reports whether Talos runs in a container.
func (m Mode) InContainer() bool { return m == Container }

// Run judges all that was rendered for the release and for older ones, and
// compares what the release knows with what testdata says that it does.
func Run(t *testing.T, loader Loader) {
	t.Helper()
	t.Run("the loader refuses what it does not know", func(t *testing.T) { refuses(t, loader) })
	t.Run("rendered configurations", func(t *testing.T) { rendered(t, loader) })
	t.Run("fields", func(t *testing.T) { fields(t, loader) })
}

// refuses shows that the judge is one.
func refuses(t *testing.T, loader Loader) {
	t.Helper()
	for _, broken := range []string{
		"version: v1alpha1\nmachine:\n  type: worker\n  colour: red\n",
		"apiVersion: v1alpha1\nkind: NoSuchConfig\n",
		"machine: [",
	} {
		if err := loader.Judge([]byte(broken), Rendered); err == nil {
			t.Errorf("accepted %q", broken)
		}
	}
}

func rendered(t *testing.T, loader Loader) {
	t.Helper()
	accepted, refused := 0, 0
	for minor := 12; minor <= loader.Minor; minor++ {
		contract := fmt.Sprintf("v1.%d", minor)
		for _, row := range rowsOf(t, contract) {
			err := loader.Judge(row.Configuration, row.Mode)
			switch {
			case row.Refused == "" && err != nil:
				t.Errorf("contract %s, %s: Talos v1.%d refuses it: %v", contract, row.Name, loader.Minor, err)
			case row.Refused == "":
				accepted++
			// A newer release may know what that of the contract does not.
			case len(row.Configuration) == 0 || minor != loader.Minor:
			case err == nil:
				t.Errorf("contract %s, %s: Talos v1.%d accepts what we refuse: %s", contract, row.Name, loader.Minor, row.Refused)
			default:
				refused++
			}
		}
	}
	if accepted == 0 || refused == 0 {
		t.Error("there was nothing to judge")
	}
	t.Logf("Talos v1.%d accepts %d configurations that we render, and refuses %d that we refuse in its words", loader.Minor, accepted, refused)
}

func rowsOf(t *testing.T, contract string) []Row {
	t.Helper()
	rows, err := Parse(read(t, path.Join("rendered", contract+".txt")), read(t, "bundle.yaml"))
	if err != nil {
		t.Fatalf("reading what was rendered for %s: %v", contract, err)
	}

	return rows
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := testdata.ReadFile(path.Join("testdata", name))
	if err != nil {
		t.Fatalf("reading what is to be judged: %v", err)
	}

	return raw
}
