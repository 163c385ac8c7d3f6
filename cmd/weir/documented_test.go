package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// documentedTranscript has what each command prints that README.md and docs/ show.
const documentedTranscript = "testdata/documented/commands.txt"

// elsewhere are the commands that need a kernel or a host of their own, or print what each build changes,
// so other tests run them.
// Each command begins with the given words; the test must exist, in a file that has the command's
// words.
var elsewhere = []struct {
	command string
	file    string
	test    string
	words   []string
}{
	{"run", "../../test/restart_test.go", "TestRestartLosesNothing", nil}, // as all of the lab
	{"run", "../../test/daemon_test.go", "", []string{`"-c"`, `"--bpffs"`, `"--socket"`}},
	{"run --grace-period", "drain_test.go", "TestDirectorDrains", []string{`"--grace-period"`}},
	{"agent", "../../test/upgrade_test.go", "TestUpgradeLosesNothing", []string{`"agent"`}},
	{"bfd", "../../test/bfd_test.go", "TestBFDOutlivesTheProcess", nil},
	{"detach", "../../test/restart_test.go", "TestDetachRemovesEverything", []string{`"detach"`}},
	{"doctor", "doctor_test.go", "TestDoctor", []string{`"doctor"`, `"-c"`}},
	{"services --server", "remote_test.go", "TestCommandsFromElsewhere", []string{`"--server"`, `"--ca"`, `"--token-file"`}},
	{"events", "events_test.go", "TestEvents", []string{`"events"`, `"--follow"`, `"--last"`}},
	{"tune", "tune_test.go", "TestTune", []string{`"tune"`, `"--dry-run"`, `"--apply"`, `"--undo"`}},
	{"man", "man_test.go", "TestManualPages", []string{`"man"`}},
	{"version", "version_test.go", "TestVersion", []string{`"version"`, `"--formats"`}},
	{"completion", "man_test.go", "TestCompletionScripts", []string{`"completion"`}},
}

// shown is a command as a document has it.
type shown struct {
	at    string   // file:line, the first one
	words []string // behind "weir"
	into  string   // ">" or "|": what it prints goes elsewhere
}

func (s shown) line() string { return strings.Join(s.words, " ") }

// A command that a document shows is run, here or by a test named above. What it prints here is in
// a transcript: a new command in a document fails until the transcript has it, and until it works.
func TestDocumentedCommands(t *testing.T) {
	want, err := os.ReadFile(documentedTranscript)
	if err != nil && !*update {
		t.Fatal(err)
	}
	golden, err := filepath.Abs(documentedTranscript)
	if err != nil {
		t.Fatal(err)
	}
	commands := documentedCommands(t)
	if len(commands) < 20 {
		t.Fatalf("README.md and docs/ show %d commands alone: they are not read as they are written", len(commands))
	}
	socket, agentSocket := serveFakes(t)
	speaker := serveFakeBFD(t)
	inReadersDirectory(t, socket)
	var got strings.Builder
	for _, s := range commands {
		if runElsewhere(s) {
			continue
		}
		fmt.Fprintf(&got, "$ weir %s\n", s.line())
		args := slices.Clone(s.words)
		switch {
		case s.words[0] == "bfd":
			args = append(args, "--socket", speaker)
		case s.words[0] == "capture": // a director begins few captures at once
			alone, _ := serveFakes(t)
			args = append(args, "--socket", alone)
		case slices.Contains(args, "--agent"):
			args = append(args, "--socket", agentSocket)
		case acceptsFlag(args[0], "socket"):
			args = append(args, "--socket", socket)
		}
		if args[0] == "top" {
			args = append(args, "--once", "--every", "100ms")
		}
		if slices.Contains(args, "--watch") {
			args[slices.Index(args, "--watch")+1] = "0s" // nothing is served here
		}
		var out, complaint bytes.Buffer
		code := execute(t.Context(), args, &out, &complaint)
		if code != int(exitDone) && code != int(exitProblems) { // the director that answers here has problems
			t.Errorf("%s: weir %s ends with %d:\n%s", s.at, s.line(), code, &complaint)
		}
		switch {
		case s.into == "":
			got.Write(out.Bytes())
		case out.Len() == 0:
			t.Errorf("%s: weir %s prints nothing that could go elsewhere (%s)", s.at, s.line(), s.into)
		}
		got.Write(complaint.Bytes())
	}
	text := strings.NewReplacer(socket, "DIRECTOR", agentSocket, "AGENT").Replace(got.String())
	if *update {
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		want = []byte(text)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("what documented commands print differs (-want +got); go test ./cmd/weir -run TestDocumentedCommands -update writes it:\n%s", diff)
	}
}

// The tests that are named for the other commands exist, and run them.
func TestDocumentedCommandsRunElsewhere(t *testing.T) {
	for _, e := range elsewhere {
		text, err := os.ReadFile(e.file)
		if err != nil {
			t.Errorf("weir %s: %v", e.command, err)
			continue
		}
		if !strings.Contains(string(text), "func "+e.test+"(t *testing.T)") && e.test != "" {
			t.Errorf("weir %s: there is no %s in %s", e.command, e.test, e.file)
		}
		for _, word := range e.words {
			if !strings.Contains(string(text), word) {
				t.Errorf("weir %s: %s does not say %s", e.command, e.file, word)
			}
		}
	}
}

// Every command is run by a transcript, or by a test named above.
func TestEveryCommandHasATranscript(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var ran strings.Builder
	for _, file := range append(files, documentedTranscript) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ran.Write(text)
		ran.WriteByte('\n')
	}
	walk(newRoot(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "weir ")
		if cmd.RunE == nil || !cmd.HasParent() || runElsewhere(shown{words: strings.Fields(name)}) {
			return
		}
		if !regexp.MustCompile(`(?m)^\$ weir ` + name + `( |$)`).MatchString(ran.String()) {
			t.Errorf("no transcript runs weir %s", name)
		}
	})
}

// runElsewhere reports whether another test runs a command.
func runElsewhere(s shown) bool {
	for _, e := range elsewhere {
		words := strings.Fields(e.command)
		if s.words[0] != words[0] || len(words) > 1 && !slices.Contains(s.words, words[1]) {
			continue
		}
		if len(s.words) > 1 && s.words[0] == "bfd" && s.words[1] == "status" {
			continue // this command runs here
		}
		return true
	}
	return false
}

// acceptsFlag reports whether a command has a flag.
func acceptsFlag(name, flag string) bool {
	cmd, _, err := newRoot().Find([]string{name})
	return err == nil && cmd.Flag(flag) != nil
}

// inReadersDirectory changes to a directory like that of a reader of the documents, with the files
// that commands name.
func inReadersDirectory(t *testing.T, socket string) {
	t.Helper()
	set, err := os.ReadFile("testdata/set.yaml")
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := os.ReadFile("testdata/hosts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("testdata/check/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	for name, text := range map[string][]byte{"set.yaml": set, "new.yaml": set, "hosts.yaml": hosts, "weir.yaml": file} {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var complaint bytes.Buffer
	// One capture for both: a director lets a client begin a few at once, and then makes it wait.
	if code := execute(t.Context(), []string{"capture", "--socket", socket, "-w", "suspects.pcapng"}, &complaint, &complaint); code != 0 {
		t.Fatalf("weir capture ends with %d:\n%s", code, &complaint)
	}
	if err := os.Link("suspects.pcapng", "drops.pcapng"); err != nil {
		t.Fatal(err)
	}
}

var (
	fence       = regexp.MustCompile("^\\s*```(\\w*)")
	inline      = regexp.MustCompile("`(?:\\$ )?((?:bin/)?weir [^`]*)`")
	placeholder = regexp.MustCompile(`\b[A-Z]{3,}\b|\.\.\.|\w\|\w`)
)

// documentedCommands returns the commands that README.md and docs/ show, in blocks and between
// words, each once, in alphabetical order. Those with a placeholder are left out.
func documentedCommands(t *testing.T) []shown {
	t.Helper()
	files, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]shown{}
	for _, file := range append(files, "../../README.md") {
		if filepath.Base(file) == "ten-minutes.md" {
			continue // TestStartPage in test/ runs that page as it is, with a director
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		language, open, before := "", false, ""
		for i, line := range strings.Split(string(text), "\n") {
			at := fmt.Sprintf("%s:%d", strings.TrimPrefix(file, "../../"), i+1)
			if match := fence.FindStringSubmatch(line); match != nil {
				language, open = match[1], !open
				continue
			}
			var candidates []string
			switch {
			case !open:
				for _, match := range inline.FindAllStringSubmatch(line, -1) {
					candidates = append(candidates, match[1])
				}
			case strings.HasSuffix(line, `\`):
				before += strings.TrimSuffix(line, `\`)
				continue
			case slices.Contains([]string{"sh", "console", "shell", "bash"}, language):
				candidates = append(candidates, before+line)
			}
			before = ""
			for _, text := range candidates {
				s, is := commandIn(text)
				if len(s.words) == 1 && !open {
					continue // in a sentence this is a command's name, and no command line
				}
				if _, known := commands[s.line()]; is && !known {
					s.at = at
					commands[s.line()] = s
				}
			}
		}
	}
	var list []shown
	for _, s := range commands {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b shown) int { return strings.Compare(a.line(), b.line()) })
	return list
}

// commandIn finds a command of weir's in a line of a shell.
func commandIn(line string) (s shown, is bool) {
	line, _, _ = strings.Cut(line, " #")
	words := strings.Fields(line)
	root := newRoot()
	addCompletion(root)
	for i, word := range words {
		if word != "weir" && word != "bin/weir" || i+1 == len(words) {
			continue
		}
		if cmd, _, err := root.Find(words[i+1 : i+2]); err != nil || cmd == root {
			continue // it is a user's name, for example
		}
		for _, word := range words[i+1:] {
			if word[0] == '>' || word[0] == '|' {
				s.into = word[:1]
				break
			}
			s.words = append(s.words, word)
		}
		return s, !placeholder.MatchString(strings.Join(words[i+1:], " "))
	}
	return s, false
}

func fakeDirectors(context.Context) ([]model.DirectorRun, error) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return []model.DirectorRun{
		{Address: netip.MustParseAddr("10.0.0.2"), Self: true, Version: "v1.2.3", Started: at, Revision: 12, Services: 2},
		{Address: netip.MustParseAddr("10.0.0.3"), Version: "v1.2.2", Started: at.Add(-time.Hour), Revision: 11, Services: 2, Refused: "set web-team: its VIP is another's"},
	}, nil
}

func fakeFlows(context.Context, api.FlowQuery) (api.Flows, error) {
	return api.Flows{Flows: []api.Flow{{Table: api.TableFlowMemory, Service: "web", VIP: netip.MustParseAddr("203.0.113.10"), Client: netip.MustParseAddrPort("198.51.100.7:5555"), Port: 443, Class: "sustained",
		Backend: netip.MustParseAddrPort("10.0.1.1:443"), State: "open", Idle: model.Duration(3 * time.Second)}, {Table: api.TableFullNAT, Service: "mail", VIP: netip.MustParseAddr("203.0.113.11"), Client: netip.MustParseAddrPort("198.51.100.8:6000"), Port: 25,
		Source: netip.MustParseAddrPort("192.0.2.5:2048"), Backend: netip.MustParseAddrPort("10.0.1.2:25"), Class: "proved", State: "open"}}}, nil
}
