package parts

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
)

// stringConstants reads the constants of the files const*.go of a folder of Go
// sources. They are internal to their program, so they cannot be imported.
func stringConstants(folder string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(folder, "const*.go"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("looking for constants in %s: none found: %w", folder, err)
	}
	set := token.NewFileSet()
	files := make([]*ast.File, 0, len(names))
	for _, name := range names {
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("reading constants: %w", err)
		}
		files = append(files, file)
	}
	// Errors are other files' names that these use; constants do not.
	config := types.Config{Error: func(error) {}}
	scope, _ := config.Check("constants", set, files, nil)
	values := map[string]string{}
	for _, name := range scope.Scope().Names() {
		if found, ok := scope.Scope().Lookup(name).(*types.Const); ok && found.Val().Kind() == constant.String {
			values[name] = constant.StringVal(found.Val())
		}
	}
	return values, nil
}
