package weir_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

var code = regexp.MustCompile("`([^`]+)`")

// codes calls with each piece of code within sentences and tables.
func codes(t *testing.T, each func(p paragraph, code string)) {
	t.Helper()
	for _, p := range paragraphs(t) {
		for _, match := range code.FindAllStringSubmatch(p.text, -1) {
			each(p, match[1])
		}
	}
}

var metricName = regexp.MustCompile(`\bweir_[a-z_]+\*?`)

// Every metric that a document names is one that scrapes have.
func TestNamedMetricsExist(t *testing.T) {
	list, err := os.ReadFile("docs/reference/metrics.md") // which a test of internal/metrics compares with scrapes
	if err != nil {
		t.Fatal(err)
	}
	codes(t, func(p paragraph, code string) {
		for _, name := range metricName.FindAllString(code, -1) {
			row := "\n| `" + name + "{"
			if start, all := strings.CutSuffix(name, "*"); all {
				row = "\n| `" + start
			}
			if !bytes.Contains(list, []byte(row)) && !bytes.Contains(list, []byte("\n| `"+name+"`")) {
				t.Errorf("%s:%d: there is no metric %s", p.file, p.line, name)
			}
		}
	})
}

var (
	testName = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	fileName = regexp.MustCompile(`^(?:bench|bpf|cmd|contrib|docs|internal|kube|lab|monitoring|quiclb|test|web)/[\w./-]*$`)
)

// Every test and file that a document names is there: what shows a claim, and where to look.
func TestNamedTestsAndFilesExist(t *testing.T) {
	there := map[string]bool{}
	for _, path := range tracked(t, "_test.go") {
		for _, decl := range parse(t, path, parser.SkipObjectResolution).Decls {
			if f, is := decl.(*ast.FuncDecl); is {
				there[f.Name.Name] = true
			}
		}
	}
	codes(t, func(p paragraph, code string) {
		if name := testName.FindString(code); name != "" && !there[name] {
			t.Errorf("%s:%d: there is no test %s", p.file, p.line, name)
		}
		if !fileName.MatchString(code) || strings.HasPrefix(p.file, "docs/decisions/") {
			return // decisions say where things were
		}
		if _, err := os.Stat(code); err != nil {
			t.Errorf("%s:%d: %v", p.file, p.line, err)
		}
	})
}

// foreignFlags are those of other programs that documents name without their program.
var foreignFlags = map[string]string{
	"auto-compaction-retention": "etcd", "allowed-unsafe-sysctls": "kubelet", "cluster-cidr": "kube-proxy",
	"random-fully": "iptables", "to-ports": "iptables", "network": "podman", "volume": "podman", "cap-drop": "podman",
}

var flagName = regexp.MustCompile(`(?:^|[ "])--([a-z][a-z0-9-]*)`)

// Every flag that a document names is one of this repository's programs. (That a command has the
// flags that it is shown with is what TestDocumentedCommandsExist finds.)
func TestNamedFlagsExist(t *testing.T) {
	var sources bytes.Buffer
	for _, path := range tracked(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	codes(t, func(p paragraph, code string) {
		if !strings.HasPrefix(code, "--") && !strings.HasPrefix(code, "make ") {
			return
		}
		for _, match := range flagName.FindAllStringSubmatch(code, -1) {
			name := match[1]
			if foreignFlags[name] == "" && !bytes.Contains(sources.Bytes(), []byte(`"`+name+`"`)) {
				t.Errorf("%s:%d: no program has --%s", p.file, p.line, name)
			}
		}
	})
}

// keys adds the paths of a configuration's keys, such as .services.health.kind, each with the field
// that holds it: a type that several keys have, has the same fields for all of them.
func keys(of reflect.Type, path string, to map[string]string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct {
		return
	}
	for _, field := range reflect.VisibleFields(of) { // those of embedded types are its own
		if of == reflect.TypeFor[model.NamedCheck]() && field.Name == "Check" {
			continue // what services name names none itself
		}
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			to[path+"."+name] = of.String() + "." + field.Name
			keys(field.Type, path+"."+name, to)
		}
	}
}

var (
	keyName    = regexp.MustCompile(`^(director|directors|agent|bgp|bfd|hooks|api|loads|services|limits|snat|store)(\[\])?(\.[a-z][a-z0-9-]*(\[\])?)+(: .*)?$`)
	keyHeading = regexp.MustCompile("(?m)^##+ (?:`([a-z.\\[\\]]+)`|.*)")
	keyRow     = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\| ([^|\n]*) \\| ([^|\n]*) ?\\|$")
)

// keyPage is the page of keys.
const keyPage = "docs/reference/configuration.md"

// describedKeys is a row of the page of keys, or a section about one key: of this section, with these
// names, what they mean and their default. A section is its own row, without names.
type describedKeys struct {
	section       string
	names         []string
	means, absent string
}

// keyRows reads the page of keys.
func keyRows(t *testing.T) (rows []describedKeys) {
	t.Helper()
	text, err := os.ReadFile(keyPage)
	if err != nil {
		t.Fatal(err)
	}
	headings := keyHeading.FindAllSubmatchIndex(text, -1)
	for i, h := range headings {
		end := len(text)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		if h[2] < 0 {
			continue // about something else than a key
		}
		section := "." + strings.ReplaceAll(string(text[h[2]:h[3]]), "[]", "")
		_, below, _ := strings.Cut(string(text[h[0]:end]), "\n")
		means, _, _ := strings.Cut(strings.TrimSpace(below), "\n")
		rows = append(rows, describedKeys{section: section, names: []string{""}, means: means})
		for _, row := range keyRow.FindAllSubmatch(text[h[0]:end], -1) {
			described := describedKeys{section: section, means: string(row[2]), absent: string(row[3])}
			before := ""
			for _, match := range code.FindAllSubmatch(row[1], -1) {
				name := strings.ReplaceAll(string(match[1]), "[]", "")
				if rest, of := strings.CutPrefix(name, "."); of { // store.ca .cert: the second one is store.cert
					name = before[:strings.LastIndex(before, ".")+1] + rest
				} else {
					before = name
				}
				described.names = append(described.names, name)
			}
			rows = append(rows, described)
		}
	}
	return rows
}

// paths returns the known keys that a row may be about.
func (d *describedKeys) paths(known map[string]string, name string) (paths []string) {
	if name == "" {
		return []string{d.section}
	}
	for k := range known {
		if strings.HasPrefix(k, d.section+".") && strings.HasSuffix(k, "."+name) {
			paths = append(paths, k)
		}
	}
	return paths
}

// Every key that a document names exists, and the page of keys has a row for each of its own: none
// else, and none is missing.
func TestNamedKeysExist(t *testing.T) {
	known := map[string]string{}
	keys(reflect.TypeFor[model.Config](), "", known)
	exists := func(key string) bool {
		key, _, _ = strings.Cut(strings.ReplaceAll(key, "[]", ""), ":")
		for k := range known {
			if strings.HasSuffix(k, "."+key) {
				return true
			}
		}
		before, of := strings.CutPrefix(key, "services.")
		return of && model.FormerServiceKeys[before] != ""
	}
	codes(t, func(p paragraph, code string) {
		// The chart has values, and programs files, that are called like keys.
		if keyName.MatchString(code) && !strings.Contains(p.file, "kubernetes") && !strings.HasSuffix(code, ".c") && !strings.HasSuffix(code, ".go") && !exists(code) {
			t.Errorf("%s:%d: there is no key %s", p.file, p.line, code)
		}
	})

	missing := map[string]string{} // by field
	for k, field := range known {
		missing[field] = k
	}
	for _, row := range keyRows(t) {
		for _, name := range row.names {
			paths := row.paths(known, name)
			if len(paths) == 0 {
				t.Errorf("%s, %s: there is no key %s", keyPage, row.section, name)
			}
			for _, k := range paths {
				delete(missing, known[k])
			}
		}
	}
	for field, k := range missing {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(below string) bool { return strings.HasPrefix(below, k+".") }) {
			t.Errorf("%s has no row for %s (%s)", keyPage, k, field)
		}
	}
}
