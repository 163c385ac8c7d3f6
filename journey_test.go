package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// The journey of a change in docs/internals/architecture.md is as the code goes.
func TestJourneysAreAsTheCodeGoes(t *testing.T) {
	const document = "docs/internals/architecture.md"
	journeys := readJourneys(t, document)
	if len(journeys) != 1 {
		t.Fatalf("there are %d journeys: that of a change is expected", len(journeys))
	}
	files := map[string]*ast.File{}
	checkJourneys(t, document, journeys, func(s step) (calls []string, defined bool) {
		if files[s.file] == nil {
			file, err := parser.ParseFile(token.NewFileSet(), s.file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatalf("%s names a file that cannot be read: %v", document, err)
			}
			files[s.file] = file
		}
		for _, d := range files[s.file].Decls {
			if f, is := d.(*ast.FuncDecl); is && nameOf(f) == s.name {
				return callsIn(f), true
			}
		}
		return nil, false
	})
}

// nameOf is a function's name, behind the type that it is a method of.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	of := f.Recv.List[0].Type
	if pointer, is := of.(*ast.StarExpr); is {
		of = pointer.X
	}
	if name, is := of.(*ast.Ident); is {
		return name.Name + "." + f.Name.Name
	}
	return ""
}

// callsIn returns the names of the functions that a function calls, also in the functions within it.
func callsIn(f *ast.FuncDecl) (calls []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		if c, is := n.(*ast.CallExpr); is {
			switch called := c.Fun.(type) {
			case *ast.Ident:
				calls = append(calls, called.Name)
			case *ast.SelectorExpr:
				calls = append(calls, called.Sel.Name)
			}
		}
		return true
	})
	return calls
}
