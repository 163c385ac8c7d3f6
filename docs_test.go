package weir_test

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/health"
	"weir.io/weir/internal/model"
)

// block is a fenced block of a document.
type block struct {
	file     string
	line     int    // of its fence
	language string // what the fence says: yaml, sh, json, ...
	lines    []string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

// documents are all that a reader may open. What tests keep is part of documents elsewhere, with the
// links of those.
func documents(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(tracked(t, ".md"), func(file string) bool { return strings.Contains(file, "/testdata/") })
}

// blocks returns the fenced blocks of all documents in these languages.
func blocks(t *testing.T, languages ...string) []block {
	t.Helper()
	var found []block
	for _, file := range documents(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range fenced(file, data) {
			for _, language := range languages {
				if b.language == language {
					found = append(found, b)
				}
			}
		}
	}
	return found
}

// paragraph is text between blank lines: of a list one item, of a table one cell.
type paragraph struct {
	file string
	line int
	text string
}

var item = regexp.MustCompile(`^([-*]|\d+\.) `)

// paragraphs returns those of all documents, without their fenced blocks and headings.
func paragraphs(t *testing.T) []paragraph {
	t.Helper()
	var found []paragraph
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		open, fence := false, false
		for i, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSpace(line)
			isFence := strings.HasPrefix(line, "```")
			switch {
			case fence || isFence || line == "" || strings.HasPrefix(line, "#"):
				open, fence = false, fence != isFence
			case strings.HasPrefix(line, "|"):
				open = false
				for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
					found = append(found, paragraph{file, i + 1, cell})
				}
			case open && !item.MatchString(line):
				found[len(found)-1].text += " " + line
			default:
				open = true
				found = append(found, paragraph{file, i + 1, line})
			}
		}
	}
	return found
}

// A paragraph has one thought, which needs no more words than this.
const mostWords = 120

func TestParagraphsAreShort(t *testing.T) {
	for _, p := range paragraphs(t) {
		if n := len(strings.Fields(p.text)); n > mostWords {
			t.Errorf("%s:%d: a paragraph of %d words, more than %d", p.file, p.line, n, mostWords)
		}
	}
}

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
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			to[path+"."+name] = of.String() + "." + of.Field(i).Name
			keys(of.Field(i).Type, path+"."+name, to)
		}
	}
}

var (
	keyName    = regexp.MustCompile(`^(director|directors|agent|bgp|bfd|hooks|api|loads|services|limits|snat|store)(\[\])?(\.[a-z][a-z0-9-]*(\[\])?)+(: .*)?$`)
	keyHeading = regexp.MustCompile("(?m)^##+ (?:`([a-z.\\[\\]]+)`|.*)")
	keyRow     = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
)

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
		return false
	}
	codes(t, func(p paragraph, code string) {
		// The chart has values, and programs files, that are called like keys.
		if keyName.MatchString(code) && !strings.Contains(p.file, "kubernetes") && !strings.HasSuffix(code, ".c") && !exists(code) {
			t.Errorf("%s:%d: there is no key %s", p.file, p.line, code)
		}
	})

	const page = "docs/reference/configuration.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]string{} // by field
	for k, field := range known {
		missing[field] = k
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
		for _, row := range keyRow.FindAllSubmatch(text[h[0]:end], -1) {
			before := ""
			for _, match := range code.FindAllSubmatch(row[1], -1) {
				name := strings.ReplaceAll(string(match[1]), "[]", "")
				if rest, of := strings.CutPrefix(name, "."); of { // store.ca .cert: the second one is store.cert
					name = before[:strings.LastIndex(before, ".")+1] + rest
				} else {
					before = name
				}
				found := false
				for k, field := range known {
					if strings.HasPrefix(k, section+".") && strings.HasSuffix(k, "."+name) {
						found = true
						delete(missing, field)
					}
				}
				if !found {
					t.Errorf("%s, %s: there is no key %s", page, section, name)
				}
			}
		}
	}
	for field, k := range missing {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(known)), func(below string) bool { return strings.HasPrefix(below, k+".") }) {
			t.Errorf("%s has no row for %s (%s)", page, k, field)
		}
	}
}

func fenced(file string, data []byte) []block {
	var found []block
	var open *block
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; scanner.Scan(); number++ {
		fence, isFence := strings.CutPrefix(strings.TrimSpace(scanner.Text()), "```")
		switch {
		case isFence && open == nil:
			open = &block{file: file, line: number, language: fence}
		case isFence:
			found = append(found, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, scanner.Text())
		}
	}
	return found
}

var configKey = regexp.MustCompile(`^(director|directors|agent|bgp|bfd|hooks|api|services):`)

// A block whose first key is one of the configuration's is a file that a reader will
// copy: it must load as it stands.
func TestDocumentedConfigurationsLoad(t *testing.T) {
	loaded := 0
	for _, b := range blocks(t, "yaml") {
		text := strings.Join(b.lines, "\n") + "\n"
		first := ""
		for _, line := range b.lines {
			if line != "" && !strings.HasPrefix(line, "#") {
				first = line
				break
			}
		}
		if !configKey.MatchString(first) {
			continue
		}
		loaded++
		if _, err := config.Parse(b.String(), []byte(text)); err != nil {
			t.Error(err)
		}
	}
	if loaded == 0 {
		t.Error("no document shows a configuration")
	}
}

var (
	link         = regexp.MustCompile(`\]\(([^)\s]*)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]+`)
)

// A link to another document, or to a heading of one, leads there.
func TestLinksLead(t *testing.T) {
	for _, from := range documents(t) {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range link.FindAllStringSubmatch(string(text), -1) {
			path, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			to := from
			if path != "" {
				to = filepath.Join(filepath.Dir(from), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s leads to %s: %v", from, match[1], err)
			} else if anchor != "" && !anchors(t, to)[anchor] {
				t.Errorf("%s leads to %s, where no heading is called so", from, match[1])
			}
		}
	}
}

// anchors returns what the headings of a document are linked by.
func anchors(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(string(text), -1) {
		words := notInAnchors.ReplaceAllString(strings.ToLower(h[1]), "")
		found[strings.ReplaceAll(words, " ", "-")] = true
	}
	return found
}

var (
	weirLine = regexp.MustCompile(`^(?:[$#] )?(?:sudo )?(?:bin/|\./bin/|/)?weir((?: +[^ |>&#;]+)*)`)
	makeLine = regexp.MustCompile(`^(?:[$#] )?(?:sudo )?make ([a-z-]+)`)
)

// Every command that a document shows exists, with its flags. It is asked for its
// help, which reads the flags and does nothing.
func TestDocumentedCommandsExist(t *testing.T) {
	weir := filepath.Join(t.TempDir(), "weir")
	if out, err := exec.Command("go", "build", "-o", weir, "./cmd/weir").CombinedOutput(); err != nil {
		t.Fatalf("build weir: %v\n%s", err, out)
	}
	for _, b := range blocks(t, "sh", "console", "shell", "bash") {
		for _, line := range b.lines {
			if match := weirLine.FindStringSubmatch(strings.TrimSpace(line)); match != nil {
				args := append(strings.Fields(match[1]), "--help")
				if out, err := exec.Command(weir, args...).CombinedOutput(); err != nil {
					t.Errorf("%v: %s: %v\n%s", b, line, err, out)
				}
			}
		}
	}
}

func TestDocumentedTargetsExist(t *testing.T) {
	help, err := exec.Command("make", "help").Output()
	if err != nil {
		t.Fatal("make help:", err)
	}
	for _, b := range blocks(t, "sh", "console", "shell", "bash") {
		for _, line := range b.lines {
			match := makeLine.FindStringSubmatch(strings.TrimSpace(line))
			if match != nil && !strings.Contains(string(help), "make "+match[1]+" ") {
				t.Errorf("%v: %s: make help does not list it", b, line)
			}
		}
	}
}

// Every target is documented, and nothing else is: what make help prints is the
// whole of it.
func TestTargetsAreDocumented(t *testing.T) {
	data, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if target, found := strings.CutPrefix(line, ".PHONY: "); found &&
			!regexp.MustCompile(`(?m)^`+target+`:.*## .+`).Match(data) {
			t.Errorf("make %s has no ## comment", target)
		}
	}
}

// Every reason stands in the table of its kind: those that weir status may print, and those for which
// a probe may fail.
func TestReasonsAreDocumented(t *testing.T) {
	const document = "docs/reference/reasons.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for _, enum := range []struct{ name, prefix, header, section string }{
		{"reason", "", "bpf/abi/types.h", "Director"},
		{"host_reason", "HOST_", "bpf/abi/host_types.h", "Agent"},
		{"redirect_event", "REDIRECT_", "bpf/abi/redirect_types.h", "Redirection"},
	} {
		header, err := os.ReadFile(enum.header)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(header), "\nenum "+enum.name+" {\n")
		body, _, found := strings.Cut(rest, "\n};")
		if !found {
			t.Fatalf("%s has no enum %s", enum.header, enum.name)
		}
		for _, match := range regexp.MustCompile(`(?m)^\t`+enum.prefix+`([A-Z][A-Z0-9_]+)\b`).FindAllStringSubmatch(body, -1) {
			if reason := strings.ToLower(match[1]); !strings.HasSuffix(reason, "_count") {
				names[enum.section] = append(names[enum.section], reason)
			}
		}
	}
	for _, reason := range health.Reasons {
		names["Probes"] = append(names["Probes"], string(reason))
	}
	for section, reasons := range names {
		_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
		table, _, _ := strings.Cut(rest, "\n## ")
		for _, reason := range reasons {
			if !regexp.MustCompile("(?m)^\\| [^|]*`" + reason + "`").MatchString(table) {
				t.Errorf("%s, %s, does not say what %s means", document, section, reason)
			}
		}
	}
}

// Every page of docs/ is in its index.
func TestPagesAreInTheIndex(t *testing.T) {
	index, err := os.ReadFile("docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range tracked(t, ".md") {
		name, found := strings.CutPrefix(page, "docs/")
		if found && name != "README.md" && !bytes.Contains(index, []byte("]("+name+")")) {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}
