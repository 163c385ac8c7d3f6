package weir_test

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tracked returns the files of the repository with one of the suffixes: those that
// git has or would add. Generated ones are left out.
func tracked(t *testing.T, suffixes ...string) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal("list the files:", err)
	}
	var files []string
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		wanted := slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(file, s) })
		if wanted && !generated(t, file) {
			files = append(files, file)
		}
	}
	if len(files) == 0 {
		t.Fatalf("found no %q", suffixes)
	}
	return files
}

func generated(t *testing.T, file string) bool {
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return true // deleted, and not yet committed
	}
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := bytes.Cut(data, []byte("\npackage ")) // some say first what they are built for
	return bytes.HasPrefix(head, []byte("// Code generated ")) || bytes.Contains(head, []byte("\n// Code generated "))
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		files := p.GoFiles
		if len(files) == 0 {
			files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		}
		want := "Package " + p.Name
		if p.Name == "main" {
			want = "Command " + filepath.Base(p.Dir) + " "
		}
		var comments []string
		for _, name := range files {
			file := parse(t, filepath.Join(p.Dir, name), parser.PackageClauseOnly|parser.ParseComments)
			if file.Doc != nil {
				comments = append(comments, file.Doc.Text())
			}
		}
		switch {
		case len(comments) != 1:
			t.Errorf("%s has %d package comments, want one", p.path(), len(comments))
		case !strings.HasPrefix(comments[0], want):
			t.Errorf("%s: the package comment does not begin with %q", p.path(), want)
		}
	}
}

func parse(t *testing.T, path string, mode parser.Mode) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, path := range tracked(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, decl := range parse(t, path, parser.ParseComments).Decls {
			for _, name := range undocumented(decl) {
				t.Errorf("%s: exported %s has no comment", path, name)
			}
		}
	}
}

// undocumented returns the exported names of a declaration that have no comment: of
// their own, beside them, or for the group of constants or variables.
func undocumented(decl ast.Decl) []string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || receiverExported(d.Recv.List[0].Type)) {
			return []string{d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
					names = append(names, s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						names = append(names, n.Name)
					}
				}
			}
		}
		return names
	}
	return nil
}

func receiverExported(receiver ast.Expr) bool {
	switch r := receiver.(type) {
	case *ast.StarExpr:
		return receiverExported(r.X)
	case *ast.IndexExpr:
		return receiverExported(r.X)
	case *ast.IndexListExpr:
		return receiverExported(r.X)
	case *ast.Ident:
		return r.IsExported()
	}
	return false
}

func TestFilesAreFormatted(t *testing.T) {
	for _, path := range tracked(t, ".go") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		formatted, err := format.Source(data)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		} else if !bytes.Equal(data, formatted) {
			t.Errorf("%s is not gofmt's format", path)
		}
	}
}

func TestFirstPageIsShort(t *testing.T) {
	if n := lines(t, "README.md"); n > 80 {
		t.Errorf("README.md has %d lines; 80 is the most that a newcomer reads", n)
	}
}

func lines(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// A test that sleeps until something is surely ready is slow and fails on a slower
// machine. A sleep with another purpose (between two looks at a condition with a
// deadline, say) carries a comment on its line that tells it.
func TestNoUnexplainedSleeps(t *testing.T) {
	for _, path := range tracked(t, "_test.go") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			_, rest, found := strings.Cut(line, "time.Sleep"+"(")
			if found && !strings.Contains(rest, "//") {
				t.Errorf("%s:%d sleeps and does not say why", path, number)
			}
		}
	}
}

// The BPF C is one program, not one per combination of switches; and every file says
// under which licences it may be used.
func TestBPFSources(t *testing.T) {
	const licence = "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */\n"
	for _, path := range tracked(t, ".c", ".h") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(data, []byte(licence)) {
			t.Errorf("%s does not begin with %q", path, licence)
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "#if") {
				t.Errorf("%s: %s: a switch makes programs that nobody tests", path, strings.TrimSpace(line))
			}
		}
	}
}
