// Package parts builds the real programs the test bed is made of (API server,
// etcd, Cluster API, Talos, ...) from Go modules, once, and keeps them in a
// cache that is keyed by everything that goes into them.
//
// What there is to build stands in the tables of this package (table_*.go):
// one Part per line of it. Most parts are plain "go build" of packages of a
// pinned wrapper module in modules/<name>/; a part that needs more than that
// has a Go function of its own.
package parts

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
)

// Part is one thing that is built and cached as a whole: a folder of files.
type Part struct {
	// Name is the part's name, unique in the table.
	Name string
	// Version is the version of what is built. It is shown to people and is
	// part of the cache path.
	Version string
	// Module is the folder below modules/ that holds the wrapper module (go.mod
	// and go.sum, and sources when there are any). Empty means there is none.
	Module string
	// Commands are the main packages to build with "go build" in the wrapper
	// module.
	Commands []Command
	// LDFlags are linker flags beyond "-s -w".
	LDFlags string
	// Tags are build tags.
	Tags []string
	// Env is added to the environment of the build, as KEY=value. CGO_ENABLED=0
	// holds unless it says otherwise.
	Env []string
	// Needs names the parts that Build uses. They are built first, and their
	// keys are part of this part's key.
	Needs []string
	// Inputs are further values that the result depends on, for the key: what
	// the machine is like, contents of files outside the wrapper module, the
	// revision of Build when only its code changed.
	Inputs []string
	// Build makes the part when "go build" is not enough. It runs after
	// Commands, if there are any, and puts its files into Workspace.Out.
	Build func(context.Context, *Workspace) error
}

// Command is a main package and the name of the program made of it.
type Command struct {
	// Package is an import path, or a path relative to the wrapper module.
	Package string
	// Binary is the file name of the program.
	Binary string
}

// Table returns all parts, those of the management cluster first. A part comes
// after the parts that it needs.
func Table() []Part {
	return slices.Concat(kubernetesParts(), clusterAPIParts(), previousKubernetesParts(), nodeParts(), storeParts(), []Part{tiltPart(), caaphPart()}, vmParts())
}

// Built tells where the parts are: the folder of each, by part name.
type Built map[string]string

// Dir is the folder that holds the files of a part.
func (b Built) Dir(part string) string { return b[part] }

// Path is the path of a file of a part. With no file given it is the file that
// is named like the part, which is what most parts consist of.
func (b Built) Path(part string, file ...string) string {
	if len(file) == 0 {
		file = []string{part}
	}
	return filepath.Join(append([]string{b[part]}, file...)...)
}

// find returns the wanted parts and all that they need, in the order of the
// table.
func find(table []Part, names []string) ([]Part, error) {
	byName := map[string]Part{}
	for _, part := range table {
		byName[part.Name] = part
	}
	wanted := map[string]bool{}
	var want func(name, by string) error
	want = func(name, by string) error {
		part, ok := byName[name]
		if !ok {
			return fmt.Errorf("part %q, which %s, does not exist", name, by)
		}
		wanted[name] = true
		for _, need := range part.Needs {
			if err := want(need, "part "+name+" needs"); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		if err := want(name, "was asked for"); err != nil {
			return nil, err
		}
	}
	found := make([]Part, 0, len(wanted))
	for _, part := range table {
		if wanted[part.Name] {
			found = append(found, part)
		}
	}
	return found, nil
}
