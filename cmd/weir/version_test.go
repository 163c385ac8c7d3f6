package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"weir.io/weir/internal/store"
)

// TestVersion: one line, the table with formats, and the JSON say which version, commit and formats these are.
func TestVersion(t *testing.T) {
	var line, flag, table, wide, text bytes.Buffer
	for to, args := range map[*bytes.Buffer][]string{
		&line: {"version"}, &flag: {"--version"}, &table: {"version", "--formats"}, &wide: {"version", "-o", "wide"}, &text: {"version", "-o", "json"},
	} {
		if code := execute(t.Context(), args, to, os.Stderr); code != 0 {
			t.Fatalf("weir %v ends with %d", args, code)
		}
	}
	want := fmt.Sprintf("weir %s commit %s %s %s/%s\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if line.String() != want || flag.String() != want || !strings.HasPrefix(table.String(), want) || wide.String() != table.String() {
		t.Errorf("weir version says\n%sand --version\n%sand --formats\n%sand -o wide\n%s", &line, &flag, &table, &wide)
	}
	var about versionInfo
	if err := json.Unmarshal(text.Bytes(), &about); err != nil {
		t.Fatal(err)
	}
	if about.Version != version || about.Commit != commit {
		t.Errorf("version %s of commit %s says:\n%s%s", version, commit, table.String(), text.String())
	}
	if f := about.Formats; f.Store != store.Format || len(f.Flows) == 0 || f.Loads == 0 || f.Director["maps"] == "" || f.Agent["maps"] == "" {
		t.Errorf("formats are missing: %+v", f)
	}
	if about.Programs.Director == about.Programs.Agent || len(about.Programs.Agent) != 32 {
		t.Errorf("the programs are %+v", about.Programs)
	}
	for _, name := range []string{about.Commit, about.Programs.Director, about.Programs.Agent, about.Formats.Director["snat_table"], about.Formats.Agent["redirect"]} {
		if !strings.Contains(table.String(), name) {
			t.Errorf("the table does not have %s:\n%s", name, table.String())
		}
	}
}

// TestFormatsAreDocumented: the page on upgrades says of each format what meets another one.
func TestFormatsAreDocumented(t *testing.T) {
	about, err := aboutVersion()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/operate/upgrade.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n## What may meet what\n")
	if !found {
		t.Fatal("docs/operate/upgrade.md has no such section")
	}
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for name := range strings.SplitSeq(cells[1], ",") {
			documented[strings.Trim(name, " `")] = true
		}
	}
	known := map[string]bool{"store": true, "flows": true, "loads": true}
	for _, pins := range []map[string]string{about.Formats.Director, about.Formats.Agent} {
		for name := range pins {
			known[name] = true
		}
	}
	for name := range known {
		if !documented[name] {
			t.Errorf("the page says nothing of format %s", name)
		}
	}
	for name := range documented {
		if !known[name] {
			t.Errorf("the page names format %s, which weir version does not have", name)
		}
	}
}
