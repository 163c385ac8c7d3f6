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
// flags, and two builds write the same.
func TestManualPages(t *testing.T) {
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
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
		text, err := os.ReadFile(filepath.Join(pages, name))
		if err != nil {
			t.Error(err)
			return
		}
		for _, flag := range strings.Fields(cmd.LocalFlags().FlagUsages()) {
			if name, is := strings.CutPrefix(flag, "--"); is && !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), "--"+name) {
				t.Errorf("%s has nothing about --%s", name, flag)
			}
		}
	})
	if written, _ := filepath.Glob(filepath.Join(pages, "*.8")); len(written) < count || count < 15 {
		t.Errorf("%d pages are there for %d commands", len(written), count)
	}
	if text, err := os.ReadFile(filepath.Join(pages, "weir.8")); err != nil || !strings.Contains(string(text), "Exit status") {
		t.Errorf("weir.8 does not say what commands end with (%v)", err)
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
