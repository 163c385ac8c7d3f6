package model

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/glossary.md")

// glossary returns the page that says what the package comment says.
func glossary(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "// # Glossary\n")
	if !found {
		t.Fatal("doc.go has no glossary")
	}
	page := "# Glossary\n\nOne word for each thing, in the configuration, the API, the programs and these pages. The comment of the package `internal/model` has the same list; `go test ./internal/model -run Glossary -update` writes this page.\n"
	word := regexp.MustCompile(`^//   - ([^:]+): (.+)$`)
	for line := range strings.Lines(list) {
		line = strings.TrimSuffix(line, "\n")
		switch m := word.FindStringSubmatch(line); {
		case m != nil:
			page += "| " + m[1] + " | " + m[2] + " |\n"
		case strings.HasPrefix(line, "// "):
			page += "\n## " + strings.TrimSuffix(strings.TrimPrefix(line, "// "), ":") + "\n\n| | |\n|---|---|\n"
		}
	}
	return page
}

// The page and the package's comment are one list.
func TestGlossary(t *testing.T) {
	const path = "../../docs/reference/glossary.md"
	want := glossary(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/reference/glossary.md is not what doc.go says: go test ./internal/model -run Glossary -update writes it")
	}
}
