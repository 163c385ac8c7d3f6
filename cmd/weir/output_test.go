package main

import (
	"bytes"
	"strings"
	"testing"
)

// What a backend or a router says is one cell of a table, and moves no cursor.
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
