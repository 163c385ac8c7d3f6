package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Text of a backend or a router stays in one cell of a table, and moves no cursor.
func TestTablesArePrintable(t *testing.T) {
	var text bytes.Buffer
	out := output{format: "table"}
	if err := out.write(&text, nil, func(t *table) {
		t.row("WHY", "HEALTH")
		t.row("GET / was answered with 500 \x1b[2J\x1b]0;owned\a\tnone\r\nall well\u202e\u009b", "down")
	}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(text.String(), "\n"); len(lines) != 3 || strings.ContainsAny(text.String(), "\x1b\a\r\t\u202e\u009b") || !strings.Contains(lines[1], "500 \ufffd[2J") || !strings.HasSuffix(lines[1], "down") {
		t.Errorf("a terminal gets %q", text.String())
	}
}

// A table of services or backends fits a terminal of 120 columns, except for its last cell, which
// is free text; a wide table has every column.
func TestTablesFitATerminal(t *testing.T) {
	socket, _ := serveFakes(t)
	for _, command := range []string{"services", "backends"} {
		var narrow, wide bytes.Buffer
		for format, out := range map[string]*bytes.Buffer{"table": &narrow, "wide": &wide} {
			if code := execute(t.Context(), []string{command, "-o", format, "--socket", socket}, out, out); code != 0 {
				t.Fatalf("weir %s -o %s: %s", command, format, out)
			}
		}
		head, _, _ := strings.Cut(narrow.String(), "\n")
		if len(head) > 120 || !strings.Contains(head, "MODE") {
			t.Errorf("weir %s begins with %d columns:\n%s", command, len(head), head)
		}
		all, _, _ := strings.Cut(wide.String(), "\n")
		for _, name := range strings.Fields(head) {
			if !slices.Contains(strings.Fields(all), name) {
				t.Errorf("weir %s -o wide has no %s:\n%s", command, name, all)
			}
		}
		if len(strings.Fields(all)) <= len(strings.Fields(head)) {
			t.Errorf("weir %s -o wide has no column more:\n%s", command, all)
		}
	}
}
