package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestManualPages: there is a page for every command that is not hidden, with all of its
// flags, and two builds of one commit write the same.
func TestManualPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	pages := t.TempDir()
	if code := execute(t.Context(), []string{"man", pages}, io.Discard, os.Stderr); code != 0 {
		t.Fatalf("weir man ends with %d", code)
	}
	root := newRoot()
	count := 0
	walk(root, func(cmd *cobra.Command) {
		if !cmd.IsAvailableCommand() && cmd.HasParent() {
			return
		}
		count++
		name := manName(cmd) + ".1"
		text, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil {
			t.Error(err)
			return
		}
		plain := strings.ReplaceAll(string(text), `\-`, "-")
		if !strings.Contains(plain, " 1 2023-11-14 ") {
			t.Errorf("%s does not have the date of SOURCE_DATE_EPOCH", name)
		}
		for _, flag := range strings.Fields(cmd.LocalFlags().FlagUsages()) {
			if flag, is := strings.CutPrefix(flag, "--"); is && !strings.Contains(plain, "--"+flag) {
				t.Errorf("%s has nothing about --%s", name, flag)
			}
		}
		if strings.Contains(plain, "=false") || strings.Contains(plain, `=""`) {
			t.Errorf("%s says of flags what a reader cannot type", name)
		}
	})
	if written, _ := filepath.Glob(filepath.Join(pages, "*.1")); len(written) < count || count < 15 {
		t.Errorf("%d pages are there for %d commands", len(written), count)
	}
	if text, err := os.ReadFile(filepath.Join(pages, "weir.1")); err != nil || !strings.Contains(string(text), "Exit status") {
		t.Errorf("weir.1 does not say what commands end with (%v)", err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	var complaint strings.Builder
	if code := execute(t.Context(), []string{"man", pages}, io.Discard, &complaint); code != int(exitFailed) || !strings.Contains(complaint.String(), `SOURCE_DATE_EPOCH: "yesterday"`) {
		t.Errorf("with a date that is none it ends with %d: %s", code, complaint.String())
	}
}

// TestCompletionScripts: shells understand them.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		var script strings.Builder
		if code := execute(t.Context(), []string{"completion", shell}, &script, os.Stderr); code != 0 || !strings.Contains(script.String(), "__complete") {
			t.Errorf("weir completion %s ends with %d, and writes %d bytes", shell, code, script.Len())
		}
		if shell != "bash" {
			continue // the other shells are not installed everywhere
		}
		check := exec.Command("bash", "-n")
		check.Stdin = strings.NewReader(script.String())
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("bash: %v\n%s", err, out)
		}
	}
}

// TestExitStatuses: docs/reference/commands.md says the same of each as the program's help.
func TestExitStatuses(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range exitStatuses {
		row := fmt.Sprintf("| %d | %s |", s.status, s.meaning)
		if !strings.Contains(strings.ReplaceAll(string(text), "`", ""), row) {
			t.Errorf("docs/reference/commands.md has no row %s", row)
		}
	}
}
