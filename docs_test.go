package weir_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/health"
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

var configKey = regexp.MustCompile(`^(director|directors|agent|bgp|bfd|hooks|api|services):`)

// A block whose first key is one of the configuration's is a file that a reader will
// copy: it must load as it stands, and be right by the schema.
func TestDocumentedConfigurationsLoad(t *testing.T) {
	loaded, schema := 0, schemaOf(t)
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
		if err := valid(t, schema, []byte(text)); err != nil {
			t.Errorf("%s is wrong by the schema: %v", &b, err)
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
