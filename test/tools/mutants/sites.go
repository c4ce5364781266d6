package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// choose puts the mutants of packages into an order that depends on the seed alone,
// in which the packages take turns.
func choose(root string, packages []string, seed uint64) ([]mutant, error) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // The same each time is what is wanted.
	perPackage := make([][]mutant, len(packages))
	for i, pkg := range packages {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			mutants, err := mutantsOf(filepath.Join(pkg, filepath.Base(file)), source)
			if err != nil {
				return nil, err
			}
			perPackage[i] = append(perPackage[i], mutants...)
		}
		random.Shuffle(len(perPackage[i]), func(a, b int) {
			perPackage[i][a], perPackage[i][b] = perPackage[i][b], perPackage[i][a]
		})
	}
	var order []mutant
	for turn := 0; ; turn++ {
		before := len(order)
		for _, mutants := range perPackage {
			if turn < len(mutants) {
				order = append(order, mutants[turn])
			}
		}
		if len(order) == before {
			return order, nil
		}
	}
}

// mutantsOf are all mutants of a file, in the order of their places. Not all compile.
func mutantsOf(file string, source []byte) ([]mutant, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &finder{file: file, source: source, set: set, ends: map[ast.Stmt]bool{}}
	ast.Inspect(parsed, func(node ast.Node) bool {
		f.inStatement(node)
		f.inExpression(node)
		return true
	})

	return f.found, nil
}

// finder finds the mutants of a file.
type finder struct {
	file   string
	source []byte
	set    *token.FileSet
	// ends are the last statements of functions: without them most do not compile.
	ends  map[ast.Stmt]bool
	found []mutant
}

func (f *finder) offset(pos token.Pos) int { return f.set.Position(pos).Offset }

func (f *finder) text(node ast.Node) string {
	return string(f.source[f.offset(node.Pos()):f.offset(node.End())])
}

func (f *finder) replace(node ast.Node, texts ...string) {
	for _, text := range texts {
		f.found = append(f.found, mutant{file: f.file, source: f.source, start: f.offset(node.Pos()), end: f.offset(node.End()), text: text})
	}
}

func (f *finder) inStatement(node ast.Node) {
	switch typed := node.(type) {
	case *ast.FuncDecl:
		f.markEnd(typed.Body)
	case *ast.FuncLit:
		f.markEnd(typed.Body)
	case *ast.BlockStmt:
		f.remove(typed.List)
	case *ast.CaseClause:
		f.remove(typed.Body)
	case *ast.CommClause:
		f.remove(typed.Body)
	case *ast.IfStmt:
		f.negate(typed.Cond)
	case *ast.SwitchStmt:
		for _, clause := range typed.Body.List {
			for _, cond := range clause.(*ast.CaseClause).List {
				if typed.Tag == nil {
					f.negate(cond)
				}
			}
		}
	case *ast.ReturnStmt:
		if n := len(typed.Results); n > 0 && isError(f.text(typed.Results[n-1])) {
			f.replace(typed.Results[n-1], "nil")
		}
	}
}

func (f *finder) inExpression(node ast.Node) {
	switch typed := node.(type) {
	case *ast.BinaryExpr:
		if typed.Op == token.LAND || typed.Op == token.LOR {
			f.replace(typed, f.text(typed.X), f.text(typed.Y))
		}
		if swapped, ok := swaps[typed.Op]; ok {
			f.replace(typed, f.text(typed.X)+" "+swapped.String()+" "+f.text(typed.Y))
		}
	case *ast.Ident:
		if typed.Name == "true" || typed.Name == "false" {
			f.replace(typed, strconv.FormatBool(typed.Name == "false"))
		}
	case *ast.BasicLit:
		n, err := strconv.ParseInt(typed.Value, 0, 64)
		if typed.Kind != token.INT || err != nil {
			return
		}
		f.replace(typed, strconv.FormatInt(n+1, 10))
		if n != 0 {
			f.replace(typed, "0")
		}
	case *ast.SelectorExpr:
		if unit := f.text(typed); slices.Contains([]string{"time.Second", "time.Minute", "time.Hour"}, unit) {
			f.replace(typed, "0*"+unit, "2*"+unit)
		}
	}
}

var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
}

func (f *finder) markEnd(body *ast.BlockStmt) {
	if body != nil && len(body.List) > 0 {
		f.ends[body.List[len(body.List)-1]] = true
	}
}

// negate negates a condition, unless the swap of its comparison does the same.
func (f *finder) negate(cond ast.Expr) {
	if comparison, ok := cond.(*ast.BinaryExpr); ok && (comparison.Op == token.EQL || comparison.Op == token.NEQ) {
		return
	}
	f.replace(cond, "!("+f.text(cond)+")")
}

// remove removes calls, assignments, returns and jumps.
func (f *finder) remove(list []ast.Stmt) {
	for _, statement := range list {
		removable := false
		switch typed := statement.(type) {
		case *ast.AssignStmt:
			removable = typed.Tok != token.DEFINE
		case *ast.ReturnStmt:
			removable = !f.ends[statement]
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt:
			removable = true
		}
		if removable {
			f.replace(statement, "{}")
		}
	}
}

// isError reports whether a result is an error, as far as that can be seen without
// types.
func isError(result string) bool {
	return result == "err" || strings.HasPrefix(result, "Err") || strings.HasPrefix(result, "fmt.Errorf(") || strings.HasPrefix(result, "errors.")
}
