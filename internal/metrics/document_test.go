package metrics_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/reference/metrics.md and testdata as they are now")

// golden is the content of a file, which -update writes.
func golden(t *testing.T, file, now string) string {
	t.Helper()
	if dir := filepath.Dir(file); dir == "." {
		file = filepath.Join("testdata", file)
	}
	now = strings.ReplaceAll(now, runtime.Version(), "GO")
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(want), "GO", runtime.Version())
}

var sample = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? `)

// TestDocument: docs/reference/metrics.md lists the metrics that scrapes have.
func TestDocument(t *testing.T) {
	var now strings.Builder
	for _, of := range []struct {
		preface string
		scrape  func() (int, string)
	}{
		{"preface.md", func() (int, string) { return scrape(t, busy) }},
		{"agents.md", func() (int, string) { return scrapeAgent(t, redirecting) }},
	} {
		preface, err := os.ReadFile(filepath.Join("testdata", of.preface))
		if err != nil {
			t.Fatal(err)
		}
		_, body := of.scrape()
		now.Write(preface)
		document(&now, body)
	}
	if diff := cmp.Diff(golden(t, filepath.Join("..", "..", "docs", "reference", "metrics.md"), now.String()), now.String()); diff != "" {
		t.Errorf("docs/reference/metrics.md is of another version; write it with -update (-it +now):\n%s", diff)
	}
}

// document writes a row for each metric of a scrape.
func document(now *strings.Builder, body string) {
	help, kind, labels := map[string]string{}, map[string]string{}, map[string]string{}
	var names []string
	for line := range strings.Lines(weirs(body)) {
		line = strings.TrimSuffix(line, "\n")
		if text, is := strings.CutPrefix(line, "# HELP "); is {
			name, text, _ := strings.Cut(text, " ")
			names, help[name] = append(names, name), text
		} else if text, is := strings.CutPrefix(line, "# TYPE "); is {
			name, text, _ := strings.Cut(text, " ")
			kind[name] = text
		} else if match := sample.FindStringSubmatch(line); match != nil {
			labels[match[1]] = regexp.MustCompile(`"[^"]*"`).ReplaceAllString(match[2], "")
		}
	}
	slices.Sort(names)
	for _, name := range names {
		of := ""
		if labels[name] != "" {
			of = "{" + strings.TrimSuffix(strings.ReplaceAll(labels[name], "=", ""), ",") + "}"
		}
		fmt.Fprintf(now, "| `%s%s` | %s | %s |\n", name, of, kind[name], strings.ReplaceAll(help[name], "|", "\\|"))
	}
}
