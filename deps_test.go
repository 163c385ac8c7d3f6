// Package weir_test holds the rules of the house as tests: which package may import which,
// what is documented, how long a file may be, and that what the documents say is true.
package weir_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "weir.io/weir/"

// tables are those of docs/internals/architecture.md: the libraries by their names there, and the whole of what
// each package of weir may import besides the standard library. Packages of internal/ are named
// without it.
type tables struct {
	libraries map[string]string
	mayImport map[string][]string
}

var (
	libraryRow = regexp.MustCompile("(?m)^\\| ([\\w./-]+) \\| `([\\w./-]+)` \\| \\S.* \\|$")
	packageRow = regexp.MustCompile("(?m)^\\| `([\\w/-]+)` \\| \\S.* \\|(.*)\\|$")
)

// readTables reads them. A name in a row is a library's, a package's, or a package's of internal/.
func readTables(t *testing.T) tables {
	t.Helper()
	text, err := os.ReadFile("docs/internals/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	read := tables{map[string]string{}, map[string][]string{}}
	for _, m := range libraryRow.FindAllStringSubmatch(string(text), -1) {
		read.libraries[m[1]] = m[2]
	}
	rows := packageRow.FindAllStringSubmatch(string(text), -1)
	for _, m := range rows {
		read.mayImport[m[1]] = nil
	}
	for _, m := range rows {
		for name := range strings.SplitSeq(m[2], ",") {
			name = strings.TrimSpace(name)
			_, isInternal := read.mayImport["internal/"+name]
			_, isPackage := read.mayImport[name]
			switch {
			case name == "":
			case isInternal:
				read.mayImport[m[1]] = append(read.mayImport[m[1]], "internal/"+name)
			case isPackage || read.libraries[name] != "":
				read.mayImport[m[1]] = append(read.mayImport[m[1]], name)
			default:
				t.Errorf("docs/internals/architecture.md: the row of %s names %q, which is neither a package nor a library there", m[1], name)
			}
		}
	}
	return read
}

// testsMayImport is what the tests of every package may import besides what the
// package itself may.
var testsMayImport = []string{
	"internal/model", "internal/maglev", "internal/turns", "internal/etcdclient", "internal/group", "quiclb",
	"lab/etcdlab", "lab/memlab", "lab/netlab", "lab/ovnlab", "lab/packet", "lab/routerlab", "lab/twin",
	"cilium/ebpf", "etcd", "go-cmp", "gonum", "gopacket", "netlink", "netns", "x/sys",
}

// products are the programs that users run.
var products = []string{"./cmd/weir", "./kube/cmd/weir-kube"}

// goPackage is what these tests want to know of a package, as "go list -json" says it.
type goPackage struct {
	Name, ImportPath, Dir              string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

func (p goPackage) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json", "work").Output()
	if err != nil {
		t.Fatal("list the packages:", err)
	}
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal("read the list of packages:", err)
		}
		list = append(list, p)
	}
}

func TestImports(t *testing.T) {
	read := readTables(t)
	for _, p := range packages(t) {
		allowed, known := read.mayImport[p.path()]
		if !known && len(p.GoFiles) > 0 {
			t.Errorf("%s is in no table of docs/internals/architecture.md: add what it is for, and what it may import", p.path())
			continue
		}
		read.checkImports(t, p.path(), p.Imports, allowed)
		// Tests of these trees are about the whole and may use all of it.
		if isTest(p.path()) || p.ImportPath+"/" == module {
			continue
		}
		tests := slices.Concat(p.TestImports, p.XTestImports)
		read.checkImports(t, "a test of "+p.path(), tests, slices.Concat(allowed, testsMayImport, []string{p.path()}))
	}
}

// isTest reports whether a package is part of a tree that is for tests alone.
func isTest(path string) bool {
	return strings.HasPrefix(path+"/", "test/") || strings.HasPrefix(path+"/", "kube/test/")
}

func (read tables) checkImports(t *testing.T, who string, imports, allowed []string) {
	t.Helper()
	slices.Sort(imports)
	for _, i := range slices.Compact(imports) {
		if name, std := read.importName(i); !std && !slices.Contains(allowed, name) {
			t.Errorf("%s imports %s; it may import the standard library and %q", who, name, allowed)
		}
	}
}

// importName returns the tables' name of an import path.
func (read tables) importName(importPath string) (name string, std bool) {
	if own, found := strings.CutPrefix(importPath, module); found {
		return own, false
	}
	for name, library := range read.libraries {
		if importPath == library || strings.HasPrefix(importPath, library+"/") {
			return name, false
		}
	}
	first, _, _ := strings.Cut(importPath, "/")
	return importPath, !strings.Contains(first, ".")
}

func TestLabIsNotInTheProduct(t *testing.T) {
	for _, program := range products {
		out, err := exec.Command("go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatal("list what a program is made of:", err)
		}
		for dependency := range strings.Lines(string(out)) {
			name, own := strings.CutPrefix(strings.TrimSpace(dependency), module)
			if own && (strings.HasPrefix(name, "lab/") || strings.HasPrefix(name, "bench") || isTest(name)) {
				t.Errorf("%s has %s in it, which is for tests", program, name)
			}
		}
	}
}

func TestTableHasNoDeadRows(t *testing.T) {
	exists := map[string]bool{}
	for _, p := range packages(t) {
		exists[p.path()] = true
	}
	read := readTables(t)
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			name, _ := read.importName(i)
			used[name] = true
		}
		for _, name := range read.mayImport[p.path()] {
			if !slices.ContainsFunc(p.Imports, func(i string) bool { is, _ := read.importName(i); return is == name }) {
				t.Errorf("docs/internals/architecture.md: the row of %s names %s, which it does not import", p.path(), name)
			}
		}
	}
	for row := range read.mayImport {
		if !exists[row] {
			t.Errorf("docs/internals/architecture.md: there is no package %s", row)
		}
	}
	for name := range read.libraries {
		if !used[name] {
			t.Errorf("docs/internals/architecture.md: no package imports %s", name)
		}
	}
}

func TestPackageNames(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "misc", "internal"}, p.Name) {
			t.Errorf("%s: %q says nothing about what is in it", p.path(), p.Name)
		}
		if parts := strings.Split(p.path(), "/"); parts[0] == "internal" && len(parts) > 3 {
			t.Errorf("%s: packages of internal have parts, and parts have none", p.path())
		}
	}
}

// Each module of go.work says in its own go.mod what it is built of. What it requires directly is in
// the table of libraries, except for weir's main module. Its versions are those that all modules have
// together, so that a program is the same whether go.work is used or not.
func TestModules(t *testing.T) {
	var work struct{ Use []struct{ DiskPath string } }
	goJSON(t, &work, "work", "edit", "-json")
	read := readTables(t)
	for _, use := range work.Use {
		var file struct {
			Require []struct {
				Path     string
				Indirect bool
			}
		}
		goJSON(t, &file, "mod", "edit", "-json", use.DiskPath+"/go.mod")
		for _, r := range file.Require {
			if isMain := r.Path+"/" == module && use.DiskPath != "."; !isMain && !r.Indirect && !read.hasLibrary(r.Path) {
				t.Errorf("%s/go.mod requires %s, which is not in the libraries of the architecture's page", use.DiskPath, r.Path)
			}
		}
		if alone, together := builtOf(t, use.DiskPath, "GOWORK=off"), builtOf(t, use.DiskPath); alone != together {
			t.Errorf("%s is built of other versions alone than with the other modules; go work sync writes the latter into all of them (-alone +together):\n%s", use.DiskPath, cmp.Diff(alone, together))
		}
	}
}

// hasLibrary reports whether some library is a module, a package of it, or has it among others.
func (read tables) hasLibrary(modulePath string) bool {
	for _, library := range read.libraries {
		if strings.HasPrefix(library+"/", modulePath+"/") || strings.HasPrefix(modulePath+"/", library+"/") {
			return true
		}
	}
	return false
}

// builtOf returns the other modules, with their versions, that the packages and tests in a folder
// consist of.
func builtOf(t *testing.T, folder string, environment ...string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "./...")
	cmd.Dir, cmd.Env = folder, append(os.Environ(), environment...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list what %s is built of: %v", folder, err)
	}
	list := slices.DeleteFunc(strings.Split(string(out), "\n"), func(of string) bool {
		return strings.HasPrefix(of+"/", module) || strings.HasPrefix(of, strings.TrimSuffix(module, "/")+" ")
	})
	slices.Sort(list)
	return strings.Join(slices.Compact(list), "\n")
}

func goJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out, err := exec.Command("go", args...).Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
}
